/* Reads commands and answers them; see bench.h. First argument: shm, tcp or none, the bare transport to measure beside. Commands may also be given as
 * further arguments: then all answers are written as one object and no input is read.
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

/* Up to three numbers behind the command's name, and the word behind them. Returns how many numbers there were. */
static int arguments(const char *from, long long numbers[3], const char **word) {
    int n = 0;
    for (char *end; n < 3; n++, from = end) {
        numbers[n] = strtoll(from, &end, 10);
        if (end == from) break;
    }
    while (*from == ' ') from++;
    *word = from;
    return n;
}

static bool obey(const char *line) {
    static const struct {
        const char *name;
        int numbers;
    } commands[] = {{"oneway", 2}, {"isolated", 1}, {"waiting", 1}, {"copies", 2}, {"rate", 3}, {"training", 2}};
    size_t length = strcspn(line, " "), which = 0, n = sizeof commands / sizeof *commands;
    while (which < n && (strlen(commands[which].name) != length || strncmp(line, commands[which].name, length) != 0)) which++;
    long long a[3] = {0};
    const char *word;
    if (which == n || arguments(line + length, a, &word) != commands[which].numbers) return false;
    switch (which) {
    case 0: calls_one_way((int)a[0], (int)a[1]); break;
    case 1: calls_isolated((int)a[0]); break;
    case 2: calls_waiting((int)a[0]); break;
    case 3: copies((size_t)a[0], (int)a[1]); break;
    case 4: rate((int)a[0], (int)a[1], (int)a[2], strncmp(word, "own", 3) == 0); break;
    default: training((int)a[0], (int)a[1]);
    }
    return true;
}

int main(int argc, char **argv) {
    const char *bare = argc >= 2 ? argv[1] : "";
    bool shm = strcmp(bare, "shm") == 0, tcp = strcmp(bare, "tcp") == 0;
    if (!shm && !tcp && strcmp(bare, "none") != 0) fail("usage", "gpuvirt-bench shm|tcp|none [COMMAND...]");
    bare_start(shm ? BARE_SHM : tcp ? BARE_TCP : BARE_NONE);
    driver_start();
    for (int i = 2; i < argc; i++)
        if (!obey(argv[i])) fail(argv[i], "no such command");
    end_answer();
    if (argc > 2) return 0;
    for (char line[256]; fgets(line, sizeof line, stdin); end_answer())
        if (!obey(line)) fail(line, "no such command");
    return 0;
}
