/* Fuzzes the worker: fuzzer --driver LIBRARY --folder FOLDER [options] COMMAND
 *
 * --ptx FILE: the driver is a real one, or gpuvirt's client library; every session is on the cuda backend, and this is its modules' image.
 *
 *   run              sessions by chance, from --seed, for --runs or --seconds, --jobs at a time; with --corpus from its files too; ends at the first that is wrong
 *   grow             the same, and adds what reaches new code to the corpus
 *   print [FILE]     the session that --seed makes, or the file's
 *   replay FILE      one session, --runs times, some at a time
 *   minimise FILE    makes a session that is wrong as small as it stays wrong
 *   reduce           removes from the corpus what reaches nothing that others do not
 *
 * Each session is a process of its own, as a worker's is. What is wrong with a session is written to wrong.txt in --folder, as small as it could be made. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "client.h"
#include "coverage.h"
#include "generate.h"
#include "mutate.h"

#define TEXT (512u << 10)
#define CORPUS_MAX 4096u
#define REPORT (64u << 10)
#define MINIMISE_PATIENCE 10 /* s */
#define TRIES 4u
#define BUSY_MOST 20u /* times that a session is begun on a server that is too busy */

static struct surroundings where = {.patience = 60};
static uint64_t seed = 1, runs = UINT64_MAX;
static double seconds = 1e9;
static double small = 120; /* s for making a session that is wrong smaller */
static const char *corpus_folder;
static struct sequence *corpus[CORPUS_MAX];
static char *names[CORPUS_MAX];
static unsigned n_corpus;
static uint8_t reached[COVERAGE_SIZE];
static char report[REPORT];
static uint64_t done, steps; /* sessions that have ended; what they were made of: commands, payloads, cuts and what else a step is */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static char *read_file(const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    char *text = calloc(1, TEXT);
    ssize_t n = fd < 0 ? -1 : read(fd, text, TEXT - 1);
    if (fd >= 0) close(fd);
    if (n >= 0) return text;
    perror(path);
    exit(2);
}

static void write_file(const char *folder, const char *name, const struct sequence *q) {
    char path[512], *text = malloc(TEXT);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    sequence_write(q, text, TEXT);
    FILE *f = fopen(path, "w");
    if (!f || fputs(text, f) < 0 || fclose(f)) perror(path), exit(2);
    free(text);
}

/* ---- sessions ------------------------------------------------------------------------------------------------------------------ */

/* Sessions wait more than they compute: several are under way at a time. */
#define JOBS_MAX 32u
struct job {
    struct sequence q;
    int output; /* what it says */
    pid_t child;
    unsigned begun; /* times */
};
static struct job under_way[JOBS_MAX];
static unsigned n_jobs = 8;

/* Begins a session in a process of its own. */
static void begin(unsigned slot, const struct sequence *q) {
    struct job *j = &under_way[slot];
    if (&j->q != q) j->q = *q;
    j->output = memfd_create("output", MFD_CLOEXEC);
    fflush(NULL);
    j->child = fork();
    coverage_use(slot);
    if (j->child < 0 || j->output < 0) perror("fork"), exit(2);
    if (j->child) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    dup2(j->output, 1);
    dup2(j->output, 2);
    client_run(&j->q, &where);
    exit(0); /* with what is done at exit: counters of coverage are written */
}

/* What a session that was ended has left on disk. */
static void clean_up(pid_t child) {
    char folder[512];
    snprintf(folder, sizeof folder, "%s/cache-%d", where.folder, (int)child);
    DIR *d = opendir(folder);
    for (struct dirent *f; d && (f = readdir(d));) unlinkat(dirfd(d), f->d_name, 0);
    if (d) closedir(d);
    rmdir(folder);
}

/* Waits for it; whether all went well. Else `report` has what it said. */
static bool end(unsigned slot) {
    struct job *j = &under_way[slot];
    int status = -1;
    if (waitpid(j->child, &status, 0) != j->child) perror("waitpid"), exit(2);
    clean_up(j->child);
    j->child = 0;
    if (WIFEXITED(status) && WEXITSTATUS(status) == EXIT_BUSY && ++j->begun < BUSY_MOST) {
        close(j->output);
        begin(slot, &j->q);
        return end(slot);
    }
    j->begun = 0;
    done++;
    steps += j->q.n;
    ssize_t n = pread(j->output, report, sizeof report - 128, 0);
    close(j->output);
    if (n < 0) n = 0;
    report[n] = 0;
    if (WIFSIGNALED(status)) snprintf(report + n, 128, "\nended by signal %d\n", WTERMSIG(status));
    return status == 0;
}

static bool session(const struct sequence *q) {
    begin(0, q);
    return end(0);
}

static void end_all(void) {
    for (unsigned i = 0; i < JOBS_MAX; i++)
        if (under_way[i].child) end(i);
}

/* What a report is about: its first line of note and the first function of ours, so that a smaller session is known to be wrong in the same way. */
static void subject(const char *text, char *to, size_t room) {
    static const char *const marks[] = {"AddressSanitizer: ", "runtime error: ", "wrong: ", "not true: ", "ended by "};
    const char *at = NULL;
    for (size_t i = 0; i < sizeof marks / sizeof *marks && !at; i++) at = strstr(text, marks[i]);
    size_t n = 0;
    for (; at && at[n] && at[n] != '\n' && n < 60 && !(at[n] >= '0' && at[n] <= '9' && n > 20); n++) continue; /* numbers differ */
    snprintf(to, room, "%.*s", (int)n, at ? at : text);
    const char *frame = strstr(text, "/native/");
    while (frame && strncmp(frame, "/native/check", 13) == 0) frame = strstr(frame + 1, "/native/");
    size_t used = strlen(to);
    if (frame && strncmp(to, "wrong", 5) != 0) snprintf(to + used, room - used, " %.*s", (int)strcspn(frame, ":\n)"), frame);
}

/* In this way alone: a sound session of which something is left out may be wrong by itself. Tried as often at a time as is tried at all: threads do not
 * always meet in the same way. */
static bool wrong_as(const struct sequence *q, const char *wanted) {
    char what[200];
    bool wrong = false, otherwise = false;
    for (unsigned i = 0; i < TRIES; i++) begin(i, q);
    for (unsigned i = 0; i < TRIES; i++) {
        if (end(i)) continue;
        subject(report, what, sizeof what);
        *(strcmp(what, wanted) ? &otherwise : &wrong) = true;
    }
    return wrong && !otherwise;
}

/* Whether none of `n` at a time is wrong; `report` is about the first that is. */
static bool replayed(const struct sequence *q, unsigned n) {
    static char first[REPORT];
    bool sound = true;
    for (unsigned i = 0; i < n; i++) begin(i, q);
    for (unsigned i = 0; i < n; i++) {
        if (end(i) || !sound) continue;
        sound = false;
        memcpy(first, report, sizeof first);
    }
    if (!sound) memcpy(report, first, sizeof first);
    return sound;
}

/* ---- making a session smaller --------------------------------------------------------------------------------------------------- */

static struct sequence without(const struct sequence *q, uint32_t from, uint32_t n) {
    struct sequence less = *q;
    memmove(&less.steps[from], &less.steps[from + n], (q->n - from - n) * sizeof *q->steps);
    less.n -= n;
    return less;
}

/* Leaves out what can be left out, larger parts first, then fields. */
static void minimise(struct sequence *q, const char *wanted, double until) {
    static struct sequence less;
    /* What waits for something that was left out is not waited for as long as before. */
    if (where.patience > MINIMISE_PATIENCE && !strstr(wanted, "does not end")) where.patience = MINIMISE_PATIENCE;
    less = *q;
    step_set(&less.steps[0], "sound", 0);
    if (step_get(&q->steps[0], "sound") && wrong_as(&less, wanted)) *q = less;
    for (uint32_t n = q->n / 2; n; n = n > 1 ? n / 2 : 0) {
        for (uint32_t from = 1; from + n <= q->n && now() < until;) {
            less = without(q, from, n);
            if (wrong_as(&less, wanted))
                *q = less;
            else
                from += n;
        }
    }
    for (uint32_t i = 0; i < q->n; i++) {
        for (unsigned f = 0; f < STEP_FIELDS + 5 && now() < until; f++) {
            less = *q;
            struct step *s = &less.steps[i];
            if (f < STEP_FIELDS) s->values[f] = (struct value){0};
            if (f == STEP_FIELDS) s->mark = false;
            if (f == STEP_FIELDS + 1) s->resize = 0;
            if (f == STEP_FIELDS + 2) s->flip = s->flip_at = 0;
            if (f == STEP_FIELDS + 3) s->context = 0;
            if (f == STEP_FIELDS + 4) s->loose = false;
            if (memcmp(&less.steps[i], &q->steps[i], sizeof less.steps[i]) != 0 && wrong_as(&less, wanted)) *q = less;
        }
    }
}

/* Says what is wrong, and leaves the session behind. */
static int found(const struct sequence *q, double patience) {
    static struct sequence less;
    static char first[REPORT];
    char what[200], *text = malloc(TEXT);
    memcpy(first, report, sizeof first);
    subject(first, what, sizeof what);
    less = *q;
    write_file(where.folder, "found.txt", q);
    if (patience > 0 && wrong_as(&less, what)) minimise(&less, what, now() + patience);
    write_file(where.folder, "wrong.txt", &less);
    sequence_write(&less, text, TEXT);
    printf("%s\n", first);
    printf("WRONG after %llu sessions: %s\n%u steps of %u are left, in %s/wrong.txt (replay FILE):\n%s", (unsigned long long)done, what, less.n, q->n,
           where.folder, text);
    free(text);
    return 1;
}

/* ---- the corpus ------------------------------------------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static void read_corpus(void) {
    DIR *d = corpus_folder ? opendir(corpus_folder) : NULL;
    for (struct dirent *f; d && (f = readdir(d)) && n_corpus < CORPUS_MAX;)
        if (strstr(f->d_name, ".txt")) names[n_corpus++] = strdup(f->d_name);
    if (d) closedir(d);
    qsort(names, n_corpus, sizeof *names, by_name);
    for (unsigned i = 0; i < n_corpus; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", corpus_folder, names[i]);
        char *text = read_file(path);
        corpus[i] = malloc(sizeof *corpus[i]);
        if (!sequence_read(corpus[i], text)) fprintf(stderr, "%s\n", path), exit(2);
        free(text);
    }
}

static void keep(const struct sequence *q, bool on_disk) {
    if (n_corpus == CORPUS_MAX) return;
    corpus[n_corpus] = malloc(sizeof *q);
    *corpus[n_corpus] = *q;
    char name[64];
    snprintf(name, sizeof name, "%llu-%llu.txt", (unsigned long long)seed, (unsigned long long)done);
    names[n_corpus++] = strdup(name);
    if (on_disk) write_file(corpus_folder, name, q);
}

static int run(bool grow) {
    static struct sequence wrong;
    double begun = now(), told = begun;
    unsigned from_disk = n_corpus;
    struct chances r = {.state = seed};
    uint64_t begun_sessions = 0, made = 0;
    for (uint64_t ended = 0;; ended++) {
        for (; begun_sessions < ended + n_jobs && begun_sessions < runs && now() - begun < seconds; begun_sessions++) {
            struct sequence *q = &under_way[begun_sessions % n_jobs].q;
            if (begun_sessions < from_disk) {
                *q = *corpus[begun_sessions];
            } else if (n_corpus && made++ % 2) {
                *q = *corpus[chance(&r, n_corpus)];
                mutate(q, &r);
            } else {
                do generate(q, seed * 1000003 + made);
                while (where.cuda_alone && step_get(&q->steps[0], "backend") != 1 && ++made);
            }
            begin((unsigned)(begun_sessions % n_jobs), q);
        }
        if (ended == begun_sessions) break;
        unsigned slot = (unsigned)(ended % n_jobs);
        if (!end(slot)) {
            wrong = under_way[slot].q;
            static char kept[REPORT];
            memcpy(kept, report, sizeof kept);
            end_all();
            memcpy(report, kept, sizeof kept);
            return found(&wrong, small);
        }
        if (coverage_add(slot, reached) && ended >= from_disk) keep(&under_way[slot].q, grow);
        if (now() - told < 60) continue;
        told = now();
        fprintf(stderr, "%llu sessions, %u kept\n", (unsigned long long)done, n_corpus);
    }
    unsigned places = 0;
    for (unsigned i = 0; i < COVERAGE_SIZE; i++) places += reached[i];
    printf("%llu sessions of %llu steps in %.0f s, %u places reached, %u sessions kept, %u of them new\n", (unsigned long long)done,
           (unsigned long long)steps, now() - begun, places, n_corpus, n_corpus - from_disk);
    return 0;
}

/* Again and again the session that reaches most of what is left; the rest goes. */
static int reduce(void) {
    uint8_t (*maps)[COVERAGE_SIZE] = calloc(n_corpus + 1, sizeof *maps);
    bool *kept = calloc(n_corpus + 1, sizeof *kept);
    unsigned n = 0;
    for (unsigned i = 0; i < n_corpus; i++) {
        if (!session(corpus[i])) return found(corpus[i], small);
        coverage_add(0, maps[i]);
    }
    for (;;) {
        unsigned best = 0, most = 0;
        for (unsigned i = 0; i < n_corpus; i++) {
            unsigned more = 0;
            for (unsigned k = 0; k < COVERAGE_SIZE && !kept[i]; k++) more += maps[i][k] && !reached[k];
            if (more > most) best = i, most = more;
        }
        if (!most) break;
        kept[best] = true;
        n++;
        for (unsigned k = 0; k < COVERAGE_SIZE; k++) reached[k] |= maps[best][k];
    }
    for (unsigned i = 0; i < n_corpus; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", corpus_folder, names[i]);
        if (!kept[i]) unlink(path);
    }
    printf("%u of %u sessions stay\n", n, n_corpus);
    return 0;
}

int main(int argc, char **argv) {
    static const struct option options[] = {{"jobs", 1, 0, 'j'},
                                            {"small", 1, 0, 'm'},
                                            {"driver", 1, 0, 'd'},
                                            {"folder", 1, 0, 'f'},
                                            {"seed", 1, 0, 's'},
                                            {"runs", 1, 0, 'r'},
                                            {"seconds", 1, 0, 't'},
                                            {"corpus", 1, 0, 'c'},
                                            {"patience", 1, 0, 'p'},
                                            {"ptx", 1, 0, 'x'},
                                            {0}};
    static struct sequence q;
    for (int o; (o = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (o) {
        case 'd': where.driver = optarg; break;
        case 'f': where.folder = optarg; break;
        case 's': seed = strtoull(optarg, NULL, 10); break;
        case 'r': runs = strtoull(optarg, NULL, 10); break;
        case 't': seconds = strtod(optarg, NULL); break;
        case 'c': corpus_folder = optarg; break;
        case 'j': n_jobs = (unsigned)strtoul(optarg, NULL, 10) % (JOBS_MAX + 1), n_jobs += !n_jobs; break;
        case 'm': small = strtod(optarg, NULL); break;
        case 'x': image_text = read_file(optarg), where.cuda_alone = true; break;
        case 'p': where.patience = (unsigned)strtoul(optarg, NULL, 10); break;
        default: return 2;
        }
    }
    const char *command = optind < argc ? argv[optind] : "", *file = optind + 1 < argc ? argv[optind + 1] : NULL;
    if (!where.driver || !where.folder || !*command) return fprintf(stderr, "fuzzer --driver LIBRARY --folder FOLDER COMMAND\n"), 2;
    coverage_start(JOBS_MAX);
    if (file && !sequence_read(&q, read_file(file))) return 2;
    if (!strcmp(command, "print")) {
        char *text = malloc(TEXT);
        if (!file) generate(&q, seed);
        sequence_write(&q, text, TEXT);
        return printf("%s", text) < 0;
    }
    if (file && !strcmp(command, "replay")) {
        for (uint64_t left = runs == UINT64_MAX ? 1 : runs; left;) {
            unsigned n = left < TRIES ? (unsigned)left : TRIES; /* at a time, as where it was made smaller: alone, threads may never meet so */
            if (!replayed(&q, n)) return printf("%s\n", report), 1;
            left -= n;
        }
        return printf("%s%s: nothing is wrong\n", report, file), 0;
    }
    if (file && !strcmp(command, "minimise")) {
        if (session(&q)) return printf("nothing is wrong\n"), 0;
        return found(&q, small);
    }
    read_corpus();
    if (!strcmp(command, "reduce")) return reduce();
    return run(!strcmp(command, "grow"));
}
