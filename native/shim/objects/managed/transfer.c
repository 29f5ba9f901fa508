#include "objects/managed/transfer.h"

#include "gv_client.h"
#include "wire/session_limits.h"

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

int transfer_prepare(struct shim_context *c) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    int rc = c->pages ? 0 : stream_new(c, STREAM_INTERNAL, CU_STREAM_NON_BLOCKING, 0, &c->pages);
    pthread_mutex_unlock(&lock);
    return rc;
}

int transfer_push(struct shim_stream *s, uint64_t address, const char *from, uint64_t size, uint64_t *seq) {
    for (uint64_t done = 0, n; done < size; done += n) {
        n = least(size - done, GV_COPY_MAX);
        struct gv_cmd_copy_in c = {.stream = stream_id(s), .dst = address + done, .width = n, .height = 1, .depth = 1, .pitch = n, .slice = n};
        uint16_t mark = done + n == size ? GV_RECORD_MARK : 0;
        if (n <= GV_INLINE_MAX) {
            c.data = from + done;
            c.data_size = (uint32_t)n;
            *seq = post_copy_in(stream_ctx(s), mark, &c);
        } else {
            struct session_bulk bulk;
            if (!session_bulk_reserve(&bulk, from + done, n, false)) return post_refused();
            c.bulk = bulk.number;
            *seq = session_bulk_commit(&bulk, post_copy_in(stream_ctx(s), mark, &c));
        }
        if (!*seq) return post_refused();
        stream_posted(s, *seq, mark != 0);
        stream_copied(s, *seq);
    }
    return 0;
}

int transfer_fetch(struct shim_stream *s, char *to, uint64_t address, uint64_t size, uint64_t *seq) {
    for (uint64_t done = 0, n; done < size; done += n) {
        n = least(size - done, GV_COPY_MAX);
        uint64_t tag = session_expect(to + done, n, 1, 1, n, n);
        if (!tag) return session_broken() ? session_broken() : (int)CUDA_ERROR_OUT_OF_MEMORY;
        struct gv_cmd_copy_out c = {
            .stream = stream_id(s), .src = address + done, .width = n, .height = 1, .depth = 1, .pitch = n, .slice = n, .tag = tag};
        *seq = post_copy_out(stream_ctx(s), GV_RECORD_MARK, &c);
        if (!*seq) {
            session_expect_cancel(tag);
            return post_refused();
        }
        session_expect_posted(tag, &s->session, *seq);
        stream_posted(s, *seq, true);
    }
    return 0;
}
