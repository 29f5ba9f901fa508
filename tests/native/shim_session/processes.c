/* fork() and the end of the process. */
#include "scenarios.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

/* The descriptors of this process that are sockets or memfds. */
static int sockets(void) {
    DIR *dir = opendir("/proc/self/fd");
    struct dirent *e;
    int n = 0;
    CHECK(dir != NULL);
    while ((e = readdir(dir))) {
        char path[300], to[300];
        snprintf(path, sizeof path, "/proc/self/fd/%s", e->d_name);
        ssize_t k = readlink(path, to, sizeof to - 1);
        if (k <= 0) continue;
        to[k] = 0;
        n += !strncmp(to, "socket:", 7) || !strncmp(to, "/memfd:", 7) || strstr(to, "eventfd") != NULL;
    }
    closedir(dir);
    return n;
}

static int fork_before(struct fake *f) {
    (void)f;
    pid_t child = fork();
    if (!child) {
        static struct session_stream s;
        CHECK(!session_in_forked_child());
        set_up(&s, 5);
        CHECK(session_wait_stream(&s, post_marked_fence(&s)) == 0);
        exit(4);
    }
    CHECK(exit_of(child) == 4);
    return 0;
}

static void one_bye(struct fake *f) { CHECK(SOON(f->byes == 1) && f->sessions == 1); }

static void *keep_busy(void *arg) {
    struct session_stream *s = arg;
    while (!session_wait_stream(s, post_marked_fence(s))) {
    }
    return NULL;
}

#ifdef __SANITIZE_ADDRESS__
/* A leak check of a forked child would stop and search the threads that it knows of, and those stayed with the parent: it calls their memory leaked, or
 * never ends. The parent's own is made. */
int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void) { return session_in_forked_child(); }
#endif

static int fork_after(struct fake *f) {
    static struct session_stream s, busy;
    pthread_t t;
    int before = sockets();
    set_up(&s, 5);
    set_up(&busy, 6);
    CHECK(sockets() > before);
    CHECK(send_in(&s, 3, 100000) != 0 && SOON(f->payloads_in == 1)); /* the link has all its sockets by now */
    CHECK(!pthread_create(&t, NULL, keep_busy, &busy) && !pthread_detach(t));
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        if (!child) {
            alarm(100);
            CHECK(session_in_forked_child() && session_attach() == 3 && session_broken() == 3);
            CHECK(post_marked_fence(&s) == 0);
            session_poll();
            session_flush();
            CHECK(sockets() == before); /* nothing of the parent's session is held */
            if (i % 2) exit(5);
            _exit(5);
        }
        CHECK(session_wait_stream(&s, post_marked_fence(&s)) == 0);
        int status = exit_of(child);
        if (status != 5) fprintf(stderr, "child %d ended with %d\n", i, status);
        CHECK(status == 5);
    }
    CHECK(session_wait_stream(&s, post_marked_fence(&s)) == 0 && f->byes == 0 && session_broken() == 0);
    return 0;
}

/* A child that lives on does not keep its dead parent's session alive. */
static int orphan(struct fake *f) {
    static struct session_stream s;
    set_up(&s, 5);
    if (!fork()) {
        close(1);
        close(2);
        for (int i = 0; i < 1000 && !f->gone; i++) usleep(100000); /* longer than anybody looks */
        _exit(0);
    }
    kill(getpid(), SIGKILL);
    return 0;
}

static void gone_soon(struct fake *f) { CHECK(SOON(f->gone == 1) && f->byes == 0); }

/* ---- exit ---------------------------------------------------------------------------------------------------------- */

static int exits(struct fake *f) {
    (void)f;
    static struct session_stream s;
    set_up(&s, 5);
    CHECK(post_order(FAKE_NOTHING, 0, NULL, 0) != 0);
    return 42;
}

/* As cudart does: its own teardown, at exit, still calls the driver. */
static struct session_stream at_exit;
static void tear_down(void) { CHECK(session_wait_stream(&at_exit, post_marked_fence(&at_exit)) == 0 && session_broken() == 0); }

static int exits_late(struct fake *f) {
    (void)f;
    atexit(tear_down);
    set_up(&at_exit, 5);
    return 42;
}

static void *call_on(void *arg) {
    struct session_stream *s = arg;
    char params[2000] = {0};
    struct gv_cmd_launch c = {.stream = s->id, .params = params, .params_size = sizeof params};
    for (;;) {
        post_launch(1, 0, &c);
        if (session_wait_stream(s, post_marked_fence(s))) usleep(100);
    }
    return NULL;
}

static int exits_busy(struct fake *f) {
    (void)f;
    static struct session_stream s[6];
    pthread_t t;
    for (int i = 0; i < 6; i++) {
        set_up(&s[i], 100 + (uint64_t)i);
        CHECK(!pthread_create(&t, NULL, call_on, &s[i]));
    }
    usleep(100000);
    return 42;
}

static void exit_here(void *arg) {
    (void)arg;
    exit(42);
}

static int exits_in_host_function(struct fake *f) {
    (void)f;
    static struct session_stream s;
    set_up(&s, 5);
    post_function(&s, session_host_func(exit_here, NULL));
    session_flush();
    pause();
    return 1;
}

static void *fill_ring(void *arg) {
    char params[4000] = {0};
    struct gv_cmd_launch c = {.stream = 5, .params = params, .params_size = sizeof params};
    (void)arg;
    while (post_launch(1, 0, &c)) {
    }
    return NULL;
}

/* The worker hangs; another thread holds the link, blocked on a full ring. */
static int exits_hung(struct fake *f) {
    pthread_t t;
    CHECK(session_attach() == 0 && post_order(FAKE_STOP, 0, NULL, 0));
    CHECK(!pthread_create(&t, NULL, fill_ring, NULL));
    usleep(200000);
    f->delay_ms = (int)seconds(); /* where `after` finds it */
    return 42;
}

static void not_long(struct fake *f) { CHECK(f->byes == 0 && (int)seconds() - f->delay_ms <= 40); }

static int killed(struct fake *f) {
    (void)f;
    CHECK(session_attach() == 0);
    _exit(9);
}

const struct scenario process_scenarios[] = {
    {"fork_before", FAKE_ATTACH, fork_before, one_bye, 0},
    {"fork_after", FAKE_ATTACH, fork_after, one_bye, 0},
    {"fork_orphan", FAKE_ATTACH, orphan, gone_soon, 128 + SIGKILL},
    {"exit", FAKE_ATTACH, exits, one_bye, 42},
    {"exit_late", FAKE_ATTACH, exits_late, one_bye, 42},
    {"exit_busy", FAKE_ATTACH, exits_busy, one_bye, 42},
    {"exit_in_host_function", FAKE_ATTACH, exits_in_host_function, one_bye, 42},
    {"exit_hung", FAKE_ATTACH, exits_hung, not_long, 42},
    {"exit_abrupt", FAKE_ATTACH, killed, gone_soon, 9},
    {0},
};
