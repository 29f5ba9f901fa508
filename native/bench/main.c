/* Reads commands and answers them; see bench.h. First argument: shm, tcp or none, the bare transport to measure beside. Commands may also be given as
 * further arguments: then all their answers come in one object, and nothing is read.
 *
 *   oneway ROUNDS SUSTAINED           calls_one_way
 *   isolated ROUNDS                   calls_isolated
 *   waiting ROUNDS                    calls_waiting
 *   copies BYTES PAIRS                copies
 *   rate THREADS LAUNCHES PID own     rate; PID: the worker's, or 0; "shared" instead of "own": one stream for all
 *   training STEPS EVERY              training
 *
 * The first line of the output, before any command, is driver_start's answer. */
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

static void answer(void) {
    puts(fields ? "}" : "{}");
    fflush(stdout);
    fields = 0;
}

static bool obey(const char *line) {
    char word[16];
    long long a, b;
    int worker;
    if (sscanf(line, "oneway %lld %lld", &a, &b) == 2)
        calls_one_way((int)a, (int)b);
    else if (sscanf(line, "isolated %lld", &a) == 1)
        calls_isolated((int)a);
    else if (sscanf(line, "waiting %lld", &a) == 1)
        calls_waiting((int)a);
    else if (sscanf(line, "copies %lld %lld", &a, &b) == 2)
        copies((size_t)a, (int)b);
    else if (sscanf(line, "rate %lld %lld %d %15s", &a, &b, &worker, word) == 4)
        rate((int)a, (int)b, worker, !strcmp(word, "own"));
    else if (sscanf(line, "training %lld %lld", &a, &b) == 2)
        training((int)a, (int)b);
    else
        return false;
    return true;
}

int main(int argc, char **argv) {
    const char *bare = argc >= 2 ? argv[1] : "";
    if (strcmp(bare, "shm") && strcmp(bare, "tcp") && strcmp(bare, "none")) fail("usage", "gpuvirt-bench shm|tcp|none [COMMAND...]");
    bare_start(!strcmp(bare, "shm") ? BARE_SHM : !strcmp(bare, "tcp") ? BARE_TCP : BARE_NONE);
    driver_start();
    for (int i = 2; i < argc; i++)
        if (!obey(argv[i])) fail(argv[i], "no such command");
    answer();
    if (argc > 2) return 0;
    for (char line[256]; fgets(line, sizeof line, stdin); answer())
        if (!obey(line)) fail(line, "no such command");
    return 0;
}
