/* The answer to one command, a line with one JSON object on stdout, and what every measurement uses to make it. */
#include "bench.h"

static int fields;

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double quantile(double *values, int n, double p) {
    qsort(values, (size_t)n, sizeof *values, compare);
    int i = (int)(p * n);
    return values[i < n ? i : n - 1];
}

void *room(size_t size) {
    void *memory = malloc(size);
    if (!memory) fail("memory", "there is no more");
    return memory;
}

void put(const char *name, double value) { printf("%s\"%s\": %.6g", fields++ ? ", " : "{", name, value); }

void put_text(const char *name, const char *text) {
    printf("%s\"%s\": \"", fields++ ? ", " : "{", name);
    for (; *text; text++)
        if (*text >= ' ' && *text != '"' && *text != '\\') putchar(*text);
    putchar('"');
}

_Noreturn void fail(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    _Exit(1);
}

void end_answer(void) {
    puts(fields ? "}" : "{}");
    fflush(stdout);
    fields = 0;
}
