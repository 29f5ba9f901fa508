/* Streams of the cuda backend on a driver of the tests' own: test_cuda_streams DRIVER [case...]. Marks, gates, and what becomes of them when a queue is full or a
 * context is lost. */
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "backend_fixture.h"

/* What came, in its order. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char came[256];
static int last_status;
static atomic_bool gate_open;

static void note(char c, int status) {
    pthread_mutex_lock(&lock);
    size_t n = strlen(came);
    came[n] = c;
    came[n + 1] = 0;
    last_status = status;
    pthread_mutex_unlock(&lock);
}
static void on_mark(void *arg, int status) { note(*(char *)arg, status); }
static void on_gate(void *arg) { note(*(char *)arg, 0); }
static void on_blocking_gate(void *arg) {
    note(*(char *)arg, 0);
    while (!atomic_load(&gate_open)) usleep(1000);
    note((char)(*(char *)arg - 'a' + 'A'), 0);
}

static void nothing_came(void) {
    pthread_mutex_lock(&lock);
    came[0] = 0;
    pthread_mutex_unlock(&lock);
    atomic_store(&gate_open, false);
}

static void wait_for(const char *expected) {
    for (int i = 0; i < 100000; i++) {
        pthread_mutex_lock(&lock);
        bool there = !strcmp(came, expected);
        pthread_mutex_unlock(&lock);
        if (there) return;
        usleep(1000);
    }
    fprintf(stderr, "\"%s\" came, not \"%s\"\n", came, expected);
    CHECK(!"what was expected came");
}

static void mark(struct gv_stream *s, char *c) { CHECK(ops->mark(s, on_mark, c) == 0); }

/* ---- cases ---------------------------------------------------------------------------------------------------------------- */

static void order(void) {
    begin(0);
    nothing_came();
    fake_driver_hold(true);
    mark(stream, "a");
    mark(stream, "b");
    CHECK(ops->gate(stream, on_blocking_gate, "g") == 0);
    mark(stream, "c");
    CHECK(ops->gate(stream, on_gate, "h") == 0);
    mark(stream, "d");
    usleep(20000);
    wait_for("");
    fake_driver_hold(false);
    wait_for("abg"); /* what was marked before a gate is told before the gate is called */
    usleep(20000);
    wait_for("abg");
    atomic_store(&gate_open, true);
    wait_for("abgGchd");
    CHECK(last_status == 0);
    nothing_came();
    mark(ops->stream_legacy(context), "l");
    wait_for("l");
    end();
}

/* A driver whose queues are full waits within a call, and no other call returns meanwhile: what the stream waits for must come all the same. */
static void full_queues(void) {
    if (getenv("WITHOUT_WORDS")) return; /* only of the client library, which has no such lock */
    begin(0);
    nothing_came();
    fake_driver_room(5);
    char expected[61] = "";
    for (int i = 0; i < 20; i++) {
        strcat(expected, "agm");
        mark(stream, "a");
        CHECK(ops->gate(stream, on_gate, "g") == 0);
        mark(stream, "m");
    }
    wait_for(expected);
    fake_driver_room(0);
    end();
}

static void lost_context(void) {
    begin(0);
    nothing_came();
    struct gv_stream *other;
    CHECK(ops->stream_create(context, 1, 0, &other) == 0);
    CHECK(ops->gate(stream, on_blocking_gate, "g") == 0);
    mark(stream, "m");
    wait_for("g");
    CHECK(ops->gate(other, on_gate, "x") == 0); /* behind the first on the driver's only thread: it is never called there */
    mark(other, "y");
    usleep(10000);
    if (fake_driver_words)
        wait_for("gxy"); /* each gate has a thread */
    else
        wait_for("g");
    CHECK(!strcmp(ops->error_text(context), ""));
    fake_driver_break(700);
    wait_for("gxy"); /* called all the same, then its mark */
    CHECK(last_status == (fake_driver_words ? 0 : 700));
    usleep(20000);
    wait_for("gxy"); /* the first gate has not returned: its mark waits */
    atomic_store(&gate_open, true);
    wait_for("gxyGm");
    CHECK(last_status == 700);
    CHECK_TEXT(ops->error_text(context), "illegal memory access");
    /* Nothing can be queued any more, and everybody is told. */
    nothing_came();
    CHECK(ops->gate(stream, on_gate, "z") == 700);
    mark(stream, "n");
    mark(other, "o");
    usleep(20000);
    pthread_mutex_lock(&lock);
    CHECK(strlen(came) == 2 && strchr(came, 'n') && strchr(came, 'o') && last_status == 700);
    pthread_mutex_unlock(&lock);
    end();
}

static void ends_of_streams_and_contexts(void) {
    begin(0);
    nothing_came();
    char err[GV_ERR_SIZE];
    struct gv_context *mine;
    struct gv_stream *s;
    CHECK(ops->context_create(backend, 0, 0, 0, &mine, err) == 0);
    CHECK(ops->stream_create(mine, 1, 0, &s) == 0);
    int streams = atomic_load(&fake_streams);
    fake_driver_hold(true);
    mark(s, "a");
    CHECK(ops->gate(s, on_gate, "g") == 0);
    mark(s, "b");
    ops->stream_destroy(s);
    CHECK(atomic_load(&fake_streams) == streams); /* not while something is queued on it */
    fake_driver_hold(false);
    wait_for("agb");
    for (int i = 0; i < 100000 && atomic_load(&fake_streams) == streams; i++) usleep(1000);
    CHECK(atomic_load(&fake_streams) == streams - 1);
    nothing_came();
    CHECK(ops->stream_create(mine, 1, 0, &s) == 0);
    mark(s, "c");
    ops->stream_destroy(s);
    ops->context_destroy(mine); /* waits for its marks */
    wait_for("c");
    mark(stream, "d");
    wait_for("cd");
    int events = atomic_load(&fake_events);
    for (int i = 0; i < 100000 && events; i++, events = atomic_load(&fake_events)) usleep(1000);
    CHECK(events == 0);
    end();
}

static void closed_with_a_gate_that_waits(void) {
    begin(0);
    nothing_came();
    CHECK(ops->gate(stream, on_blocking_gate, "g") == 0);
    CHECK(ops->gate(stream, on_gate, "h") == 0);
    mark(stream, "m");
    wait_for("g");
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    end();
    clock_gettime(CLOCK_MONOTONIC, &b);
    CHECK(b.tv_sec - a.tv_sec <= 50);
    atomic_store(&gate_open, true); /* and when it returns after all, nothing of ours is touched that is gone */
    usleep(50000);
    wait_for("gG");
}

static void console(void *arg, const char *text, size_t size) {
    (void)arg;
    for (size_t i = 0; i < size; i++) note(text[i], 0);
}

/* What kernels print goes to standard output, says the driver. It comes before the mark that follows it, and afterwards standard output is what it
 * was. */
static void printing(void) {
    nothing_came();
    int to_program[2], before = dup(1);
    CHECK(pipe(to_program) == 0 && dup2(to_program[1], 1) == 1);
    uint32_t devices[] = {0};
    char err[GV_ERR_SIZE], text[16];
    struct gv_backend_config config = {.devices = devices, .n_devices = 1, .driver = driver, .console = console, .memory_usage_fd = -1};
    fake_driver_break(0);
    fake_driver_words = !getenv("WITHOUT_WORDS");
    CHECK(ops->open(&config, &backend, err) == 0);
    CHECK(ops->context_create(backend, 0, 0, 1, &context, err) == 0);
    CHECK(ops->stream_create(context, 1, 0, &stream) == 0);
    struct gv_module *prints;
    void *meta;
    size_t size;
    CHECK(ops->module_load(context, "call (r), vprintf, (a, b);", 26, &prints, &meta, &size, err) == 0);
    free(meta);
    fake_driver_print = "hello";
    mark(stream, "1");
    wait_for("hello1");
    fake_driver_print = "world";
    mark(stream, "2");
    wait_for("hello1world2");
    end();
    CHECK(write(1, "mine", 4) == 4 && read(to_program[0], text, sizeof text) == 4);
    CHECK(dup2(before, 1) == 1);
    close(before);
    close(to_program[0]);
    close(to_program[1]);
}

/* A context whose streams could not tell how far they are is refused, and the next one is as good as a first. */
static void no_words_left(void) {
    uint32_t devices[] = {1};
    char err[GV_ERR_SIZE], a = 'a';
    struct gv_backend_config config = {.devices = devices, .n_devices = 1, .driver = driver, .memory_usage_fd = -1};
    nothing_came();
    fake_driver_break(0);
    fake_driver_words = !getenv("WITHOUT_WORDS");
    CHECK(ops->open(&config, &backend, err) == 0);
    fake_driver_no_host_memory = fake_driver_words;
    int status = ops->context_create(backend, 0, 0, 0, &context, err);
    fake_driver_no_host_memory = false;
    CHECK(status == (fake_driver_words ? CUDA_ERROR_OUT_OF_MEMORY : 0));
    if (status) CHECK_TEXT(err, "error 2");
    CHECK(ops->context_create(backend, 0, 0, 0, &context, err) == 0);
    CHECK(ops->stream_create(context, 1, 0, &stream) == 0);
    mark(stream, &a);
    wait_for("a");
    end();
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {{"order", order},
                                             {"full_queues", full_queues},
                                             {"lost_context", lost_context},
                                             {"ends_of_streams_and_contexts", ends_of_streams_and_contexts},
                                             {"closed_with_a_gate_that_waits", closed_with_a_gate_that_waits},
                                             {"printing", printing},
                                             {"no_words_left", no_words_left}};
    if (argc < 2) return 2;
    driver = argv[1];
    return run_cases(cases, sizeof cases / sizeof *cases, argc - 1, argv + 1, 240);
}
