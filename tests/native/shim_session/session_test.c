/* session_test SCENARIO LINK: runs one scenario; exit code 0 when it held. `session_test list` names them. */
#include "scenarios.h"

#include <string.h>
#include <sys/wait.h>
#include <time.h>

_Atomic uint32_t failed_ctx;
_Atomic int failed_status;

static void context_failed(uint32_t id, int status) {
    failed_status = status;
    failed_ctx = id;
}

double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

void set_up(struct session_stream *s, uint64_t id) {
    CHECK(session_attach() == 0);
    memset(s, 0, sizeof *s);
    s->id = id;
    s->ctx = 1;
    session_stream_add(s);
}

uint64_t post_marked_fence(struct session_stream *s) {
    struct gv_cmd_fence c = {.stream = s->id};
    uint64_t seq = post_fence(s->ctx, GV_RECORD_MARK, &c);
    session_stream_posted(s, seq, true, true);
    return seq;
}

uint64_t post_order(enum fake_order order, uint64_t argument, const void *params, uint32_t size) {
    struct gv_cmd_launch c = {.stream = 5, .module = argument, .kernel = order, .params = params, .params_size = size};
    uint64_t seq = post_launch(1, 0, &c);
    session_flush();
    return seq;
}

uint64_t post_out(struct session_stream *s, void *dst, uint64_t src, uint64_t width, uint64_t height, uint64_t pitch) {
    struct gv_cmd_copy_out c = {.stream = s->id, .src = src, .width = width, .height = height, .depth = 1};
    c.tag = session_expect(dst, width, height, 1, pitch, pitch * height);
    uint64_t seq = post_copy_out(s->ctx, GV_RECORD_MARK, &c);
    session_expect_posted(c.tag, s, seq);
    session_stream_posted(s, seq, true, false);
    return seq;
}

uint64_t post_function(struct session_stream *s, uint64_t tag) {
    struct gv_cmd_host_func c = {.stream = s->id, .tag = tag};
    CHECK(tag != 0);
    uint64_t seq = post_host_func(s->ctx, 0, &c);
    session_stream_posted(s, seq, true, false);
    session_host_func_posted(tag, s, seq);
    return seq;
}

static uint64_t post_in(struct session_stream *s, uint64_t dst, const void *data, uint64_t size, bool lend) {
    struct session_bulk bulk;
    if (!session_bulk_reserve(&bulk, data, size, lend)) return 0;
    struct gv_cmd_copy_in c = {.stream = s->id, .dst = dst, .width = size, .height = 1, .depth = 1, .bulk = bulk.number};
    uint64_t seq = session_bulk_commit(&bulk, post_copy_in(s->ctx, GV_RECORD_MARK, &c));
    if (seq) session_stream_posted(s, seq, true, false);
    return seq;
}

uint64_t send_in(struct session_stream *s, uint64_t dst, uint64_t size) {
    uint8_t *data = malloc(size);
    for (uint64_t i = 0; i < size; i++) data[i] = fake_byte(dst, i);
    uint64_t seq = post_in(s, dst, data, size, false);
    memset(data, 0xee, size);
    free(data);
    return seq;
}

uint8_t *lend_in(struct session_stream *s, uint64_t dst, uint64_t size) {
    uint8_t *data = malloc(size);
    for (uint64_t i = 0; i < size; i++) data[i] = fake_byte(dst, i);
    return post_in(s, dst, data, size, true) ? data : NULL;
}

int exit_of(pid_t pid) {
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static const struct scenario *const all[] = {attach_scenarios, work_scenarios, early_scenarios, order_scenarios, loss_scenarios, process_scenarios};

static const struct scenario *find(const char *name) {
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
        for (const struct scenario *s = all[i]; s->name; s++) {
            if (!name) puts(s->name);
            if (name && !strcmp(s->name, name)) return s;
        }
    return NULL;
}

static void set(const char *name, const char *value) {
    if (!getenv(name)) setenv(name, value, 1);
}

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "list")) return find(NULL) != NULL;
    const struct scenario *s = argc == 3 ? find(argv[1]) : NULL;
    if (!s) return 2;
    session_on_context_failure(context_failed);
    struct fake *f = fake_start(s->attach);
    char pool[64], token[256] = "gpuvirt1.";
    snprintf(pool, sizeof pool, "tcp://127.0.0.1:%d", f->port);
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    size_t n = strlen(token);
    for (int i = 0; i < 80; i += 3) {
        uint32_t three = (uint32_t)fake_token[i] << 16 | (uint32_t)(i + 1 < 80 ? fake_token[i + 1] : 0) << 8 | (i + 2 < 80 ? fake_token[i + 2] : 0);
        for (int k = 18; k >= 0 && n < strlen("gpuvirt1.") + 107; k -= 6) token[n++] = digits[three >> k & 63];
    }
    /* What the environment says goes first; "%s" in SESSION_TEST_POOL is this server. */
    const char *list = getenv("SESSION_TEST_POOL"), *here = list ? strstr(list, "%s") : NULL;
    char pools[256];
    snprintf(pools, sizeof pools, "%.*s%s", here ? (int)(here - list) : 0, list ? list : "", pool);
    set("GPUVIRT_POOL", pools);
    /* A token file, under the name that goes with this server's port. */
    const char *file = getenv("SESSION_TEST_TOKEN_FILE");
    char named[512] = "";
    if (file) {
        snprintf(named, sizeof named, "%.*s/%d.token", (int)(strrchr(file, '/') - file), file, f->port);
        CHECK(!link(file, named));
    }
    set("GPUVIRT_TOKEN", token);
    set("GPUVIRT_LINK", argv[2]);
    pid_t client = fork();
    if (!client) {
        alarm(240);
        exit(s->client(f));
    }
    int status = 0;
    waitpid(client, &status, 0);
    if (file) unlink(named);
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (code != s->code) {
        fprintf(stderr, "FAILED: the client ended with %d, not %d\n", code, s->code);
        fake_kill(f);
        return 1;
    }
    if (s->after) s->after(f);
    fake_kill(f);
    return 0;
}
