/* Names and texts of CUresult values; the table is generated from the header. */
#ifndef SHIM_ERROR_TABLE_H
#define SHIM_ERROR_TABLE_H

#include "objects/shim.h"

struct error_row {
    int value;
    const char *name, *text;
};
extern const struct error_row error_rows[]; /* by value */
extern const unsigned error_rows_count;

/* NULL for a number that is none. */
const struct error_row *error_find(int value);
/* "CUDA_ERROR_INVALID_VALUE"; "an unknown error" for a number that is none. */
const char *error_name(CUresult code);

#endif
