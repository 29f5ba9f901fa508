/* A fuzzer that plays a malicious server to the real shim.
 *
 *     shim_fuzz SESSIONS SECONDS FIRST LINK [honest | loud | on | lies=LIE,LIE...] [least=N]
 *
 * Runs sessions FIRST, FIRST + 1, ... until either limit (that of time once N are done, or three), or those that stdin lists (FIRST is -); the number is
 * the seed. A session fails when its client is ended by a signal or by a sanitizer, finds its memory changed, or has not ended PATIENCE_S
 * (FUZZ_PATIENCE_S in the environment) after its server has. Ends with the first that fails (`on`: with the fifth). lies= says which lies are told, by
 * the names in lies.h. Prints what was done, and the failures with the seed to run again: the choices come again, the timing of threads may not. */
#define _GNU_SOURCE
#include "fuzz.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "lies.h"
#include "transport/seal/exchange.h"

/* How long a client may take, in seconds, on a machine that is busy with other things: its server ends by itself before that. */
#define PATIENCE_S 40
#define SESSIONS_LEAST "3" /* however long they take */
static int patience_s;
#define FAILURES_MOST 5

struct shared *shared;
const uint8_t fuzz_token[80] = "0123456789abcdef"
                               "the secret of a hostile server.."
                               "a public key that nobody uses...";

/* Before main: what a sanitizer does. What a session leaves to the end of the process is no leak. A source that is lent may be gone when sendmsg returns. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) {
    return "detect_leaks=0:exitcode=99:quarantine_size_mb=8:allocator_may_return_null=1:intercept_send=0:max_allocation_size_mb=3000:hard_rss_limit_"
           "mb=900:"
           "handle_abort=1:detect_stack_use_after_return=1";
}
const char *__ubsan_default_options(void);
const char *__ubsan_default_options(void) { return "print_stacktrace=1:exitcode=99"; }

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void must(bool good, const char *what) {
    if (good) return;
    perror(what);
    exit(70);
}

/* ---- the environment of all clients ---------------------------------------------------------------------------------- */

static int port; /* of all servers, one after the other */

/* A socket on the port; 0: on any. */
static int bind_port(void) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    must(fd >= 0 && !setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) && !bind(fd, (struct sockaddr *)&at, sizeof at) &&
             !getsockname(fd, (struct sockaddr *)&at, &length),
         "bind");
    port = ntohs(at.sin_port);
    return fd;
}

/* The client library reads its settings when the program starts: so they are there before its constructors run. A socket that does not listen keeps the
 * port for this process. */
__attribute__((constructor(101))) static void set_environment(int argc, char **argv) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    char text[200] = "gpuvirt1.", pool[64], home[4096];
    size_t n = strlen(text);
    for (size_t i = 0; i < sizeof fuzz_token; i += 3) {
        uint32_t bits = 0;
        for (size_t j = 0; j < 3; j++) bits = bits << 8 | (i + j < sizeof fuzz_token ? fuzz_token[i + j] : 0);
        for (int shift = 18; shift >= 0 && (i + 2 < sizeof fuzz_token || shift > 0); shift -= 6) text[n++] = digits[bits >> shift & 63];
    }
    text[n] = 0;
    bind_port();
    snprintf(pool, sizeof pool, "tcp://127.0.0.1:%d", port);
    must(getcwd(home, sizeof home) != NULL, "the folder"); /* the cache of metadata lasts from session to session */
    setenv("GPUVIRT_TOKEN", text, 1);
    setenv("GPUVIRT_POOL", pool, 1);
    setenv("GPUVIRT_LINK", argc > 4 ? argv[4] : "shm", 1);
    setenv("GPUVIRT_GPUS", "2", 1);
    setenv("GPUVIRT_COMPUTE", "0.25", 1);
    setenv("GPUVIRT_CACHE", home, 1);
    setenv("HOME", home, 1);
    setenv("XDG_RUNTIME_DIR", home, 1);
}

/* ---- processes -------------------------------------------------------------------------------------------------------- */

static void open_listeners(struct session_plan *plan) {
    plan->port = port;
    plan->listener = bind_port();
    must(!listen(plan->listener, 64), "listen");
    plan->local = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    plan->local_at = (struct sockaddr_un){.sun_family = AF_UNIX};
    snprintf(plan->local_at.sun_path, sizeof plan->local_at.sun_path, "/tmp/gv-shim-fuzz-%d.sock", (int)getpid());
    unlink(plan->local_at.sun_path);
    must(!bind(plan->local, (struct sockaddr *)&plan->local_at, sizeof plan->local_at) && !listen(plan->local, 64), "listen on a unix socket");
}

/* A child whose stderr goes to a file of its own. */
static pid_t start(const struct session_plan *plan, int said, void (*run)(const struct session_plan *)) {
    fflush(NULL);
    pid_t pid = fork();
    must(pid >= 0, "fork");
    if (pid) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(said, 2);
    run(plan);
    _exit(70);
}

static void run_client(const struct session_plan *plan) {
    close(plan->listener);
    close(plan->local);
    client_run(plan);
}
static void run_server(const struct session_plan *plan) { server_run(plan); }

/* Waits for a child until `until`; its status, or -1: it still runs. */
static int wait_until(pid_t pid, double until) {
    for (useconds_t pause = 200;; pause = pause < 10000 ? pause * 2 : pause) {
        int status;
        if (waitpid(pid, &status, WNOHANG) == pid) return status;
        if (now() > until) return -1;
        usleep(pause);
    }
}

static int end(pid_t pid, int signal_number) {
    int status = 0;
    kill(pid, signal_number);
    waitpid(pid, &status, 0);
    return status;
}

static void show(const char *whose, int said) {
    char text[8192];
    off_t size = lseek(said, 0, SEEK_END), from = size > (off_t)sizeof text ? size - (off_t)sizeof text : 0;
    ssize_t n = pread(said, text, size < (off_t)sizeof text ? (size_t)size : sizeof text, from);
    fprintf(stderr, "  %s said:\n%.*s\n", whose, n > 0 ? (int)n : 0, text);
}

/* What a client prints is printable, whatever the server's texts hold. */
static bool printable(int said) {
    char text[65536];
    ssize_t n = pread(said, text, sizeof text, 0);
    for (ssize_t i = 0; i < n; i++)
        if ((unsigned char)text[i] < 0x20 && text[i] != '\n' && text[i] != '\t') return false;
    return true;
}

/* One session. False: it failed, and `why` says how. */
static bool session(struct session_plan *plan, bool loud) {
    char why[300] = "";
    int client_said = memfd_create("client", MFD_CLOEXEC), server_said = memfd_create("server", MFD_CLOEXEC);
    atomic_store(&shared->told, 0);
    memset((void *)shared->told_of, 0, sizeof shared->told_of);
    memset((void *)shared->at, 0, sizeof shared->at);
    uint64_t lost = atomic_load(&shared->lost);
    open_listeners(plan);
    pid_t server = start(plan, server_said, run_server), client = start(plan, client_said, run_client);
    close(plan->listener);
    close(plan->local);
    int status = wait_until(client, now() + patience_s);
    int served = wait_until(server, now() + (plan->honest ? 5 : 0));
    if (served < 0) served = end(server, SIGKILL);
    if (status < 0) {
        /* By now its server is gone, if it was not. */
        status = wait_until(client, now() + patience_s);
        size_t n = 0;
        if (status < 0) {
            n = (size_t)snprintf(why, sizeof why, "the client still runs %d s after its server's end, in:", patience_s);
            for (int i = 0; i <= FUZZ_THREADS && n < sizeof why; i++) {
                const char *at = atomic_load(&shared->at[i]);
                if (at) n += (size_t)snprintf(why + n, sizeof why - n, " %s", at);
            }
            status = end(client, SIGABRT);
        }
    } else if (WIFSIGNALED(status)) {
        snprintf(why, sizeof why, "the client was ended by signal %d", WTERMSIG(status));
    } else if (WEXITSTATUS(status)) {
        snprintf(why, sizeof why, "%s",
                 WEXITSTATUS(status) == FUZZ_SANITIZER   ? "a sanitizer ended the client"
                 : WEXITSTATUS(status) == FUZZ_VIOLATION ? "the client found a violation"
                                                         : "the client failed");
    } else if (!printable(client_said)) {
        snprintf(why, sizeof why, "the client printed what is not printable");
    }
    if (!*why && plan->honest && (!WIFEXITED(served) || WEXITSTATUS(served))) snprintf(why, sizeof why, "the honest server failed");
    for (int i = 0; i < FUZZ_LIES; i++) {
        if (!atomic_load(&shared->told_of[i])) continue;
        atomic_fetch_add(&shared->sessions_with[i], 1);
        if (atomic_load(&shared->lost) > lost) atomic_fetch_add(&shared->lost_with[i], 1);
    }
    if (*why) {
        fprintf(stderr, "session %llu over %s: %s; lies told:", (unsigned long long)plan->seed, plan->link, why);
        for (int i = 0; i < FUZZ_LIES; i++)
            if (atomic_load(&shared->told_of[i])) fprintf(stderr, " %s", lie_names[i]);
        fprintf(stderr, "\n");
        show("the client", client_said);
    }
    if (loud || *why) show("the server", server_said);
    if (loud && !*why) show("the client", client_said);
    close(client_said);
    close(server_said);
    unlink(plan->local_at.sun_path);
    return !*why;
}

/* What follows `word`, which ends with "=" or is all of an argument; NULL: no argument begins with it. */
static const char *said_so(char **arguments, const char *word) {
    size_t n = strlen(word);
    for (; *arguments; arguments++)
        if (strncmp(*arguments, word, n) == 0 && (word[n - 1] == '=' || !(*arguments)[n])) return *arguments + n;
    return NULL;
}

int main(int argc, char **argv) {
    if (argc < 5) return 2;
    bool listed = strcmp(argv[3], "-") == 0;
    uint64_t sessions = strtoull(argv[1], NULL, 10), seed = strtoull(argv[3], NULL, 10), done = 0, failed = 0, most = 1;
    double until = now() + strtod(argv[2], NULL);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    must(shared != MAP_FAILED, "mmap");
    signal(SIGPIPE, SIG_IGN);
    uint8_t secret[GV_CRYPTO_KEY], said[GV_EXCHANGE_SIZE];
    char why[GV_DEATH_TEXT];
    must(gv_exchange_offer(secret, said, why), "the cryptographic library"); /* loaded once, for all */
    patience_s = getenv("FUZZ_PATIENCE_S") ? atoi(getenv("FUZZ_PATIENCE_S")) : PATIENCE_S;
    bool honest = said_so(argv + 5, "honest"), loud = said_so(argv + 5, "loud");
    const char *only = said_so(argv + 5, "lies="), *n_least = said_so(argv + 5, "least=");
    uint64_t least = strtoull(n_least ? n_least : SESSIONS_LEAST, NULL, 10);
    if (said_so(argv + 5, "on")) most = FAILURES_MOST;
    for (; done < sessions && (now() < until || done < least) && failed < most; done++, seed++) {
        char line[100];
        if (listed && !fgets(line, sizeof line, stdin)) break;
        if (listed) seed = strtoull(line, NULL, 10);
        struct session_plan plan = {.seed = seed, .link = argv[4], .honest = honest, .only = only};
        failed += !session(&plan, loud);
    }
    printf("%llu sessions, %llu failed; %llu calls (%llu not carried out), %llu copies looked at, %llu host functions; %llu sessions lost, %llu "
           "never attached\n",
           (unsigned long long)done, (unsigned long long)failed, (unsigned long long)shared->calls, (unsigned long long)shared->failed_calls,
           (unsigned long long)shared->copies, (unsigned long long)shared->host_functions, (unsigned long long)shared->lost,
           (unsigned long long)shared->never_attached);
    for (int i = 0; i < FUZZ_LIES && lie_names[i]; i++)
        if (!honest)
            printf("lie %s: %llu told in %llu sessions, of which %llu were lost\n", lie_names[i], (unsigned long long)shared->lies[i],
                   (unsigned long long)shared->sessions_with[i], (unsigned long long)shared->lost_with[i]);
    return failed ? 1 : 0;
}
