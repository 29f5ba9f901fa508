/* Fuzzes what a worker makes of a session's image: image_fuzzer --folder FOLDER --session FILE [options] COMMAND
 *
 *   run            images that are damaged by chance, from --seed, for --runs or --seconds; ends at the first that is wrong, and leaves wrong.txt in --folder
 *   replay FILE... the damage of each file
 *
 * The session of FILE (tests/fuzz/worker/step.h has the grammar) is carried out over each transport, and saved by the worker. Each damaged image is given to a worker
 * of its own process, as in earnest. It refuses the image with a reason, or has a session, which is saved again, connected to by somebody, and closed. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../native/check.h"
#include "../../native/transport/pair.h"
#include "../../native/transport/sealed_peer.h"
#include "../worker/client.h"
#include "damage.h"
#include "image_stream.h"
#include "state.h"

#define TRANSPORTS 3u /* shm, tcp, sealed tcp: the numbers of a session's first step */
#define JOBS 16u      /* they wait more than they compute */
#define REPORT (32u << 10)
#define RESIDENT_MOST (400l << 10) /* KiB of a worker that restores; the sanitizers' own are among them */
#define LEFT_MOST (256u << 10)     /* bytes of a session that was closed */
#define LIMIT_MS 60000u
#define EXIT_REFUSED 10
#define TRIES_MOST 20u /* at making the images, on a busy server */

static const uint64_t rings[4] = {1 << 20, 1 << 20, 1 << 21, 1 << 21};
static const char *folder, *session_file;
static unsigned patience = 60;
static struct image bases[TRANSPORTS];
static int memory_of_rings = -1; /* of the session over shm, as the worker has left it */
static char caches[TRANSPORTS][300];
static unsigned transport;

/* ---- the images that are damaged ------------------------------------------------------------------------------------------ */

static char *read_text(const char *path) {
    char *text = calloc(1, 1 << 16);
    FILE *f = fopen(path, "r");
    if (!f || !fread(text, 1, (1 << 16) - 1, f)) perror(path), exit(2);
    fclose(f);
    return text;
}

static int saved_image = -1;

static void at_rest(void *arg) { (void)arg; }

static void save_and_leave(struct worker *w) {
    char why[GV_ERR_SIZE];
    if (!worker_save(w, saved_image, LIMIT_MS, at_rest, NULL, why)) _exit(0);
    fprintf(stderr, "the session cannot be saved: %s\n", why);
    _exit(EXIT_BUSY);
}

static void read_image(int fd, struct image *image) {
    off_t size = lseek(fd, 0, SEEK_END);
    image->n = (size_t)size / 8;
    image->words = malloc((size_t)size);
    CHECK(pread(fd, image->words, (size_t)size, 0) == size);
    if (!image_take_apart(image)) client_wrong("what was saved is no image");
}

/* Whether the server was not too busy: a client of the tests does not connect again, so a payload halfway in stays there. */
static bool make_base(unsigned over, const struct sequence *q) {
    static struct sequence over_it;
    int fd = memfd_create("image", MFD_CLOEXEC), status = -1;
    if (over == 0) memory_of_rings = make_memfd(rings);
    struct surroundings where = {.folder = folder, .patience = patience, .rings = over == 0 ? &memory_of_rings : NULL, .at_end = save_and_leave};
    over_it = *q;
    step_set(&over_it.steps[0], "transport", over);
    saved_image = fd;
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child) {
        prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
        client_run(&over_it, &where);
        client_wrong("the session has ended instead of being saved");
    }
    CHECK(waitpid(child, &status, 0) == child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == EXIT_BUSY) return close(fd), false;
    if (status) fprintf(stderr, "wrong: there is no image to damage\n"), exit(2);
    snprintf(caches[over], sizeof caches[over], "%s/cache-%d", folder, (int)child);
    read_image(fd, &bases[over]);
    return close(fd), true;
}

/* ---- a worker that is given one -------------------------------------------------------------------------------------------- */

static int image_file(const struct image *image) {
    int fd = memfd_create("image", MFD_CLOEXEC);
    CHECK(fd >= 0 && write(fd, image->words, image->n * 8) == (ssize_t)(image->n * 8) && lseek(fd, 0, SEEK_SET) == 0);
    return fd;
}

/* The rings as the session has left them, for this worker alone. */
static int rings_again(void) {
    int fd = make_memfd(rings);
    for (off_t at = 0, n; (n = (off_t)copy_file_range(memory_of_rings, &at, fd, NULL, 64 << 20, 0)) > 0;) continue;
    return fd;
}

static struct worker *open_worker(int *far) {
    int fds[2], memfd = transport ? -1 : rings_again();
    uint32_t devices[] = {2, 3};
    char why[GV_ERR_SIZE];
    uint8_t seal[sizeof test_secret.key + 1];
    memcpy(seal, test_secret.key, sizeof test_secret.key);
    seal[sizeof test_secret.key] = test_secret.cipher;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    struct worker_config config = {.struct_size = sizeof config,
                                   .n_devices = 2,
                                   .backend = "soft",
                                   .devices = devices,
                                   .device_memory = 64 << 20,
                                   .grace = 100,
                                   .memory_usage_fd = -1,
                                   .fd = fds[1],
                                   .transport = transport ? "tcp" : "shm",
                                   .descriptors = &memfd,
                                   .n_descriptors = !transport,
                                   .blob = (const uint8_t *)rings,
                                   .blob_size = sizeof rings,
                                   .session = 7,
                                   .compiler = soft_modules(),
                                   .server_name = "fuzz",
                                   .seal = transport == 2 ? seal : NULL,
                                   .restored = 1};
    struct worker *w = worker_open(&config, why);
    if (!w) client_wrong("no worker: %s", why);
    worker_use_cache(w, worker_open_cache(caches[transport]), "fuzz");
    *far = fds[0];
    return w;
}

static void *run_worker(void *arg) {
    char why[GV_ERR_SIZE];
    worker_run(arg, why);
    return NULL;
}

/* The session's client, or somebody, comes again. */
static int come_back(struct worker *w, int *end) {
    struct tcp_note note = {.record = {.op = GV_RECORD_RESUME, .epoch = w->link->epoch + 1, .seq = w->link->seq_out}};
    uint8_t frame[NOTE_ROOM];
    size_t size;
    int fds[2];
    if (!transport) {
        struct gv_memory_id memory = gv_shm_memory_id(((struct shm *)w->link)->memfd);
        CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
        memcpy(frame, &note.record, sizeof note.record);
        memcpy(frame + sizeof note.record, &memory, sizeof memory);
        size = sizeof note.record + sizeof memory;
        memcpy(frame, &(uint32_t){(uint32_t)size}, 4);
    } else {
        tcp_sockets(fds);
        note.received.bulk = w->link->bulk_position;
        note.record.size = sizeof note;
        memcpy(frame, &note, size = sizeof note);
        if (transport == 2) {
            struct sealed_peer peer = sealed_peer(note.record.epoch);
            size = seal_note(&peer, 0, note, frame);
            sealed_peer_free(&peer);
        }
    }
    CHECK(send(fds[0], frame, size, MSG_NOSIGNAL) == (ssize_t)size);
    *end = fds[0];
    return worker_resume(w, -1, fds[1], note.record.epoch);
}

/* What was taken over can be saved. */
static uint64_t save_again(struct worker *w) {
    struct gv_image_out out;
    int fd = memfd_create("again", MFD_CLOEXEC);
    CHECK(gv_image_out_open(&out, fd, INT64_MAX));
    worker_save_all(w, &out);
    gv_image_out_close(&out);
    close(fd);
    return out.failed ? 0 : out.bytes / 8 + 1;
}

static void be_gone(int signal) {
    static const char text[] = "wrong: the worker does not end\n";
    (void)signal;
    (void)!write(2, text, sizeof text - 1);
    _exit(3);
}

size_t __sanitizer_get_current_allocated_bytes(void); /* of the address sanitizer, whose headers not every compiler brings */
static const struct damage *doing;

/* In a process of its own. */
static void take_over(const struct image *image) {
    int fd = image_file(image), far, back = -1, before = open_descriptors();
    uint64_t bytes = __sanitizer_get_current_allocated_bytes();
    char why[GV_ERR_SIZE] = "";
    struct worker *w = open_worker(&far);
    int refused = worker_restore(w, fd, LIMIT_MS, why);
    if (refused && !why[0]) client_wrong("an image is refused without a reason");
    if (!refused) {
        pthread_t runs;
        uint64_t size = save_again(w);
        if (!doing->n && size != image->n) client_wrong("of an image of %zu words another one was made, of %llu", image->n, (unsigned long long)size);
        CHECK(worker_begin(w) == 0);
        CHECK(pthread_create(&runs, NULL, run_worker, w) == 0);
        int came = come_back(w, &back);
        if (!doing->n && came) client_wrong("the client is refused: %s", gv_link_death(w->link));
        usleep(3000); /* for what goes on then */
        shutdown(back, SHUT_RDWR);
        close(back);
        worker_client_gone(w);
        pthread_join(runs, NULL);
    }
    worker_close(w);
    close(far);
    if (open_descriptors() > before) client_wrong("a descriptor is left, of %d, %d", before, open_descriptors());
    uint64_t left = __sanitizer_get_current_allocated_bytes() - bytes;
    if ((int64_t)left > LEFT_MOST) client_wrong("%llu bytes are left", (unsigned long long)left);
    if (refused) printf("%s\n", why), fflush(stdout);
    _exit(refused ? EXIT_REFUSED : 0);
}

/* ---- many of them ------------------------------------------------------------------------------------------------------------ */

static struct job {
    struct damage damage;
    pid_t child;
    int output;
} jobs[JOBS];
static uint64_t refused, taken;
static char reasons[64][100];
static unsigned n_reasons;

static void begin(struct job *j) {
    struct image image;
    damage_do(&j->damage, &bases[j->damage.base], &image);
    j->output = memfd_create("output", MFD_CLOEXEC);
    fflush(NULL);
    j->child = fork();
    CHECK(j->child >= 0 && j->output >= 0);
    if (!j->child) {
        prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
        dup2(j->output, 1);
        dup2(j->output, 2);
        signal(SIGPIPE, SIG_IGN);
        signal(SIGALRM, be_gone);
        alarm(patience);
        transport = j->damage.base;
        doing = &j->damage;
        take_over(&image);
    }
    free(image.words);
}

static void note_reason(const char *why) {
    size_t n = strcspn(why, "0123456789(:\n");
    for (unsigned i = 0; i < n_reasons; i++)
        if (strlen(reasons[i]) == n && !strncmp(reasons[i], why, n)) return;
    if (n_reasons < sizeof reasons / sizeof *reasons && n < sizeof reasons[0]) memcpy(reasons[n_reasons++], why, n);
}

static bool end(struct job *j) {
    static char report[REPORT];
    char text[2000];
    struct rusage used;
    int status = -1;
    CHECK(wait4(j->child, &status, 0, &used) == j->child);
    j->child = 0;
    ssize_t n = pread(j->output, report, sizeof report - 1, 0);
    report[n > 0 ? n : 0] = 0;
    close(j->output);
    bool no = WIFEXITED(status) && WEXITSTATUS(status) == EXIT_REFUSED, large = used.ru_maxrss > RESIDENT_MOST;
    if ((no || status == 0) && !large) {
        if (no) note_reason(report);
        no ? refused++ : taken++;
        return true;
    }
    damage_write(&j->damage, text, sizeof text);
    printf("%s\n%sWRONG after %llu images: %s%d, %ld KiB\n%s", report, large ? "wrong: the memory is too large\n" : "",
           (unsigned long long)(refused + taken), WIFSIGNALED(status) ? "signal " : "exit ", WIFSIGNALED(status) ? WTERMSIG(status) : status >> 8,
           used.ru_maxrss, text);
    char path[400];
    snprintf(path, sizeof path, "%s/wrong.txt", folder);
    FILE *f = fopen(path, "w");
    if (!f || fputs(text, f) < 0 || fclose(f)) perror(path);
    return false;
}

static void say(void) {
    printf("%llu images, %llu refused for %u reasons, %llu taken over\n", (unsigned long long)(refused + taken), (unsigned long long)refused,
           n_reasons, (unsigned long long)taken);
    for (unsigned i = 0; i < n_reasons; i++) printf("  %s\n", reasons[i]);
}

static int run(uint64_t seed, uint64_t runs, double seconds, char *const *files, unsigned n_files) {
    struct chances r = {.state = seed * 2654435761u + 88172645463325252u};
    time_t until = time(NULL) + (time_t)seconds;
    uint64_t begun = 0;
    bool good = true;
    if (n_files) runs = n_files;
    for (uint64_t ended = 0;; ended++) {
        for (; good && begun < ended + JOBS && begun < runs && time(NULL) < until; begun++) {
            struct job *j = &jobs[begun % JOBS];
            if (n_files && (!damage_read(&j->damage, read_text(files[begun])) || j->damage.base >= TRANSPORTS))
                return fprintf(stderr, "%s: this is no damage\n", files[begun]), 2;
            if (!n_files && begun < TRANSPORTS) j->damage = (struct damage){.base = (unsigned)begun}; /* as it is */
            if (!n_files && begun >= TRANSPORTS) j->damage = damage_by_chance(&r, bases, TRANSPORTS);
            begin(j);
        }
        if (ended == begun) break;
        good = end(&jobs[ended % JOBS]) && good;
        if (good && !n_files && ended + 1 == TRANSPORTS && taken != TRANSPORTS) return say(), fprintf(stderr, "wrong: a whole image is refused\n"), 1;
    }
    say();
    return !good;
}

int main(int argc, char **argv) {
    static const struct option options[] = {{"folder", 1, 0, 'f'},
                                            {"session", 1, 0, 'q'},
                                            {"seed", 1, 0, 's'},
                                            {"runs", 1, 0, 'r'},
                                            {"seconds", 1, 0, 't'},
                                            {"patience", 1, 0, 'p'},
                                            {0}};
    static struct sequence q;
    uint64_t seed = 1, runs = UINT64_MAX;
    double seconds = 1e8;
    for (int o; (o = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (o) {
        case 'f': folder = optarg; break;
        case 'q': session_file = optarg; break;
        case 's': seed = strtoull(optarg, NULL, 10); break;
        case 'r': runs = strtoull(optarg, NULL, 10); break;
        case 't': seconds = strtod(optarg, NULL); break;
        case 'p': patience = (unsigned)strtoul(optarg, NULL, 10); break;
        default: return 2;
        }
    }
    const char *command = optind < argc ? argv[optind] : "";
    bool replays = !strcmp(command, "replay") && optind + 1 < argc;
    if (!folder || !session_file || (!replays && strcmp(command, "run") != 0))
        return fprintf(stderr, "image_fuzzer --folder FOLDER --session FILE run | replay FILE...\n"), 2;
    if (!sequence_read(&q, read_text(session_file))) return 2;
    for (unsigned i = 0, tries = 0; i < TRANSPORTS && tries < TRIES_MOST; tries++) i += make_base(i, &q);
    if (!bases[TRANSPORTS - 1].n) return 2;
    return run(seed, runs, seconds, argv + optind + 1, replays ? (unsigned)(argc - optind - 1) : 0);
}
