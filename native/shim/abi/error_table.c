/* Names and texts of CUresult values. */
#include "abi/error_table.h"

const struct error_row *error_find(int value) {
    unsigned low = 0, high = error_rows_count;
    while (low < high) {
        unsigned middle = (low + high) / 2;
        if (error_rows[middle].value < value)
            low = middle + 1;
        else
            high = middle;
    }
    return low < error_rows_count && error_rows[low].value == value ? &error_rows[low] : NULL;
}

const char *error_name(CUresult code) {
    const struct error_row *row = error_find((int)code);
    return row ? row->name : "an unknown error";
}
