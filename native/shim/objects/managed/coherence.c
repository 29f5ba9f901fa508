#include "objects/managed/coherence.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "objects/managed/managed.h"
#include "objects/managed/mirror.h"
#include "objects/managed/shadow.h"
#include "objects/managed/transfer.h"

/* Bytes that are fetched, or become writable, at a time where the program goes through memory in order. */
#define MOST_AT_ONCE (32ull << 20)
#define LEAST_AT_ONCE (64ull << 10)
/* ns by which word of a stream's progress may come later, on a busy machine, than a host function of another stream that is ordered after it. */
#define LATE_NS 300000000

static unsigned sending; /* threads that send what the host has written; region_lock held */

/* A copy of blocks to the host that a touch waits for. */
struct fetch {
    struct fetch *next;
    const struct region *region;
    uint64_t number, given; /* region_given() when it began */
    bool beside_work;       /* work was under way when it began */
};
static struct fetch *fetches; /* region_lock held */
static uint64_t fetches_begun;
static _Atomic unsigned fetching; /* how many there are */

static void unlock(struct region *r) {
    r->users++;
    pthread_mutex_unlock(&region_lock);
}

static void lock(struct region *r) {
    pthread_mutex_lock(&region_lock);
    r->users--;
    pthread_cond_broadcast(&region_changed);
}

/* ---- touches ---- */

/* Blocks to begin with, where the program has not gone through them in order: as much as a round trip takes on a slow network, which a fetch costs in any case. */
static size_t first_run(const struct region *r) {
    uint64_t bytes = (uint64_t)session_server()->rtt_ns / 10, most = MOST_AT_ONCE / 8;
    if (bytes > most) bytes = most;
    if (bytes < LEAST_AT_ONCE) bytes = LEAST_AT_ONCE;
    return bytes >> r->shift ? bytes >> r->shift : 1;
}

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

/* The blocks around `block` that are alike and are to be changed together: *first, and how many. `next`, `run`: what the last touch of the kind left. */
static size_t choose(const struct region *r, size_t block, size_t *next, size_t *run, size_t *first) {
    uint8_t byte = r->blocks[block];
    size_t most = MOST_AT_ONCE >> r->shift ? MOST_AT_ONCE >> r->shift : 1, start = block, end;
    bool in_order = block == *next && *run;
    *run = in_order ? least(4 * *run, most) : least(first_run(r), most);
    if (!in_order) start -= block % *run; /* so that touches in falling order take as many */
    end = least((in_order ? block : start) + *run, r->n);
    *first = block;
    while (*first > start && r->blocks[*first - 1] == byte) --*first;
    size_t last = block + 1;
    while (last < end && r->blocks[last] == byte) last++;
    *next = last;
    return last - *first;
}

/* The session is gone, and with it what the program is about to read: as with a GPU that is gone, it cannot go on. */
static void lost(uint64_t address) {
    const char *why = session_error_text(session_broken());
    shim_log("managed memory at %#llx cannot be fetched: %s", (unsigned long long)address, why ? why : "the session is lost");
    sigset_t bus;
    sigemptyset(&bus);
    sigaddset(&bus, SIGBUS);
    pthread_sigmask(SIG_UNBLOCK, &bus, NULL);
    signal(SIGBUS, SIG_DFL);
    kill(getpid(), SIGBUS);
    pause();
}

/* The bytes of blocks [first, first + n) that are in an extent: false when there are none. */
static bool part(const struct region *r, size_t extent, size_t first, size_t n, uint64_t *low, uint64_t *size) {
    uint64_t from = (uint64_t)first << r->shift, end = from + region_bytes(r, first, n);
    if (from < r->extents[extent].low) from = r->extents[extent].low;
    if (end > r->extents[extent].high) end = r->extents[extent].high;
    *low = from;
    *size = end > from ? end - from : 0;
    return end > from;
}

/* Queues copies of blocks to the host. *seq gets what the stream must have passed, and stays as it is when there is nothing to copy. 0 or a CUresult. */
static int queue_fetch(struct shim_stream *s, const struct region *r, size_t first, size_t n, uint64_t *seq) {
    int rc = 0;
    uint64_t low, size;
    for (size_t i = 0; i < r->n_extents && !rc; i++)
        if (part(r, i, first, n, &low, &size)) rc = transfer_fetch(s, r->view + low, region_base(r) + low, size, seq);
    return rc;
}

static int queue_push(struct shim_stream *s, const struct region *r, size_t first, size_t n, uint64_t *seq) {
    int rc = 0;
    uint64_t low, size;
    for (size_t i = 0; i < r->n_extents && !rc; i++)
        if (part(r, i, first, n, &low, &size)) rc = transfer_push(s, region_base(r) + low, r->view + low, size, seq);
    return rc;
}

/* Whether what it brings may lack what kernels have written. */
static bool provisional(const struct fetch *f) { return f->beside_work || region_given(f->region) != f->given; }

static void fetch_begins(struct fetch *f, const struct region *r) {
    uint64_t newest, passed;
    *f = (struct fetch){.next = fetches, .region = r, .number = ++fetches_begun, .given = region_given(r)};
    fetches = f;
    atomic_fetch_add(&fetching, 1); /* before it is asked what is under way: who waits for that looks here afterwards */
    bool posting = atomic_load(&region_posting) != 0;
    stream_progress(&newest, &passed);
    f->beside_work = posting || passed != UINT64_MAX;
}

static void fetch_ends(struct fetch *f) {
    struct fetch **at = &fetches;
    while (*at != f) at = &(*at)->next;
    *at = f->next;
    atomic_fetch_sub(&fetching, 1);
}

/* The program has waited for work. Fetches that began before may bring what was there before that work: they end first, so that their blocks can be made stale. */
static void await_older_fetches(void) {
    uint64_t last = fetches_begun;
    for (const struct fetch *f = fetches; f;) {
        if (f->number > last || !provisional(f)) {
            f = f->next;
            continue;
        }
        pthread_cond_wait(&region_changed, &region_lock);
        f = fetches;
    }
}

/* Fetches stale blocks around one; region_lock is released meanwhile. False: the kernel has no memory to make them accessible. */
static bool fetch(struct region *r, size_t block) {
    size_t first, n = choose(r, block, &r->next_read, &r->read_run, &first);
    for (size_t i = first; i < first + n; i++) r->blocks[i] = BLOCK_FETCHING;
    struct fetch f;
    uint64_t seq = 0;
    fetch_begins(&f, r);
    unlock(r);
    struct shim_stream *s = r->context->pages;
    throttle_exempt_begin(); /* a host function may be what touches the page, and what others wait for */
    int rc = queue_fetch(s, r, first, n, &seq);
    int status = seq ? session_wait_stream(&s->session, seq) : 0;
    throttle_exempt_end();
    if (!rc) rc = status;
    if (session_broken()) lost(region_base(r) + ((uint64_t)first << r->shift));
    if (rc && rc != CUDA_ERROR_DEINITIALIZED) shim_log_once("managed memory: the context has failed, and the host sees what it saw last");
    lock(r);
    fetch_ends(&f);
    return !region_set(r, first, n, BLOCK_CLEAN, provisional(&f) ? BLOCK_PROVISIONAL : 0);
}

/* Makes a block that is good on the host accessible, and blocks like it that the program presumably touches next. True: it is. */
static bool allow(struct region *r, size_t block, bool write) {
    unsigned flags = r->blocks[block] & ~BLOCK_STATE;
    size_t first, n;
    if (flags & BLOCK_SENDING) return !region_set(r, block, 1, write ? BLOCK_DIRTY : BLOCK_CLEAN, BLOCK_PROVISIONAL);
    if (region_state(r, block) == BLOCK_DIRTY) return !region_set(r, block, 1, BLOCK_DIRTY, flags);
    if (write)
        n = choose(r, block, &r->next_write, &r->write_run, &first);
    else
        n = choose(r, block, &r->next_read, &r->read_run, &first);
    return !region_set(r, first, n, write ? BLOCK_DIRTY : BLOCK_CLEAN, flags);
}

/* Whether a copy is under way. */
static bool under_way(const struct passing *p) { return p->stream && !stream_passed(p->stream, p->id, p->seq); }

static void wait_for(struct region *r, struct passing p) {
    unlock(r);
    throttle_exempt_begin();
    if (under_way(&p)) session_wait_stream(&p.stream->session, p.seq);
    throttle_exempt_end();
    if (session_broken()) lost(region_base(r));
    lock(r);
}

/* Waits a while for word that a copy to the device is over. The program has not waited for it, and a host function must not without end, for the copy may be behind it: then what the
 * host wrote is still there. But it may be over without a word of it yet, where another stream's progress was told first, and kernels may have written since. */
static void await_word(struct region *r, struct passing p) {
    int64_t ns = LATE_NS + 4 * session_server()->rtt_ns;
    unlock(r);
    throttle_exempt_begin();
    bool passed = session_stream_passes(&p.stream->session, p.seq, ns);
    throttle_exempt_end();
    lock(r);
    if (!passed) r->unpassed = p.seq;
}

/* Waits for the copies of a prefetch, which may still arrive in the pages. What was given to the device since they were queued is fetched when it is touched. */
static void end_prefetch(struct region *r) {
    struct passing p = r->prefetching;
    wait_for(r, p);
    if (r->prefetching.stream != p.stream || r->prefetching.seq != p.seq) return;
    r->prefetching.stream = NULL;
    enum block_state brought = region_given(r) == r->prefetch_given ? BLOCK_CLEAN : BLOCK_STALE;
    for (size_t i = 0; i < r->n; i++)
        if (r->blocks[i] == (BLOCK_STALE | BLOCK_PREFETCHED)) region_set(r, i, 1, brought, 0);
}

/* All of a region becomes accessible: the kernel has no room for more stretches of pages with different access. */
static void open_all(struct region *r) {
    shim_log_once("managed memory: the kernel keeps no more stretches of pages (vm.max_map_count); whole allocations are fetched and sent instead");
    for (size_t i = 0; i < r->n && !r->gone;) {
        if (r->blocks[i] == BLOCK_STALE)
            fetch(r, i);
        else
            i++;
    }
    region_set(r, 0, r->n, BLOCK_DIRTY, 0);
}

/* Whether kernels may be looking at it now. */
static bool wants_mirror(const struct region *r) {
    uint64_t newest, passed;
    if (!r->mapped || r->mirror || r->size > MIRROR_MOST) return false;
    stream_progress(&newest, &passed);
    return passed != UINT64_MAX || atomic_load(&region_posting);
}

/* Fetches what is missing, and makes all of it accessible. */
static bool begin_mirror(struct region *r) {
    for (size_t i = 0; i < r->n && !r->gone;) {
        if (region_state(r, i) == BLOCK_FETCHING)
            pthread_cond_wait(&region_changed, &region_lock);
        else if (r->blocks[i] != BLOCK_STALE)
            i++;
        else if (!fetch(r, i))
            return false;
    }
    return r->gone || r->mirror || mirror_begin(r);
}

static bool touched(uint64_t address, bool write) {
    if (session_in_forked_child()) return false; /* which has none of the pages */
    int before = errno;
    bool ours = false;
    pthread_mutex_lock(&region_lock);
    for (;;) {
        struct region *r = region_find(address);
        if (!r || r->gone) break;
        ours = true;
        size_t block = (address - region_base(r)) >> r->shift;
        if (region_state(r, block) == BLOCK_FETCHING) {
            pthread_cond_wait(&region_changed, &region_lock);
        } else if (r->prefetching.stream) {
            end_prefetch(r);
        } else if (r->blocks[block] == BLOCK_STALE && under_way(&r->pushed)) {
            if (!session_host_function_pending())
                wait_for(r, r->pushed);
            else if (r->unpassed == r->pushed.seq)
                r->blocks[block] |= BLOCK_SENDING;
            else
                await_word(r, r->pushed);
        } else if (wants_mirror(r) && under_way(&r->pushed) && !session_host_function_pending()) {
            wait_for(r, r->pushed); /* what the mirror sends comes after it */
        } else if (wants_mirror(r) && r->senders && !session_host_function_pending()) {
            pthread_cond_wait(&region_changed, &region_lock); /* the mirror would fetch what the device has without it */
        } else if (wants_mirror(r) && !under_way(&r->pushed) && !r->senders) {
            if (begin_mirror(r)) continue;
            open_all(r);
            break;
        } else if (r->blocks[block] == BLOCK_STALE) {
            if (!fetch(r, block)) open_all(r);
            if (!write) break;
        } else {
            if (!(r->mirror ? mirror_touched(r, address, write) : allow(r, block, write))) open_all(r);
            break;
        }
    }
    pthread_mutex_unlock(&region_lock);
    errno = before;
    return ours;
}

/* Accesses of the kernel for the program: as those of the program itself. */
static void reach(uint64_t address, uint64_t size, bool write) {
    if (session_in_forked_child()) return;
    uint64_t end = size > UINT64_MAX - address ? UINT64_MAX : address + size;
    while (address < end) {
        pthread_mutex_lock(&region_lock);
        struct region *r = region_find(address);
        if (!r) r = region_next(address);
        uint64_t base = r ? region_base(r) : UINT64_MAX, block = r ? 1ull << r->shift : 0;
        enum block_state state = BLOCK_STALE;
        if (r && base < address) base = address;
        if (r) state = region_state(r, (base - region_base(r)) >> r->shift);
        if (r) block -= (base - region_base(r)) & (block - 1);
        pthread_mutex_unlock(&region_lock);
        if (base >= end) return;
        bool reached = state == BLOCK_DIRTY || (state == BLOCK_CLEAN && !write);
        if (!reached) touched(base, write);
        address = base + block;
    }
}

const struct page_watch coherence_watch = {.touched = touched, .reach = reach};

/* ---- what the device is about to use ---- */

/* Blocks that the host has written. */
struct written {
    struct region *region;
    size_t first, n;
    uint64_t seq; /* of the copy that sends them, once it is queued */
};

struct written_list {
    struct written *all;
    size_t n, room;
};

static int append(struct written_list *l, struct region *r, size_t block) {
    struct written *last = l->n ? &l->all[l->n - 1] : NULL;
    if (last && last->region == r && last->first + last->n == block) {
        last->n++;
        return 0;
    }
    if (l->n == l->room) {
        size_t room = 2 * l->room + 16;
        struct written *more = realloc(l->all, room * sizeof *more);
        if (!more) return CUDA_ERROR_OUT_OF_MEMORY;
        l->all = more;
        l->room = room;
    }
    l->all[l->n++] = (struct written){.region = r, .first = block, .n = 1};
    return 0;
}

/* Notes what is to be sent of blocks [first, first + n) but of those in [spare, spare + n_spare), which the device overwrites, and takes them from the host as far as the device writes them. */
static int give(struct region *r, size_t first, size_t n, size_t spare, size_t n_spare, bool written, struct written_list *out) {
    size_t before = out->n;
    for (size_t i = first; i < first + n; i++) {
        bool send = region_state(r, i) == BLOCK_DIRTY && i - spare >= n_spare;
        if (send && append(out, r, i)) return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (written) {
        int rc = region_invalidate(r, first, n);
        for (size_t i = spare; i < spare + n_spare; i++) r->blocks[i] &= (uint8_t)~BLOCK_SENDING;
        return rc ? CUDA_ERROR_OUT_OF_MEMORY : 0;
    }
    for (size_t i = before; i < out->n; i++) region_set(r, out->all[i].first, out->all[i].n, BLOCK_CLEAN, 0);
    return 0;
}

/* Sends what was noted; region_lock is released meanwhile. Launches of other threads wait until the copies are queued. */
static int send(struct shim_stream *s, const struct written_list *l) {
    int rc = 0;
    for (size_t i = 0; i < l->n; i++) {
        l->all[i].region->users++;
        l->all[i].region->senders++;
    }
    sending++;
    pthread_mutex_unlock(&region_lock);
    for (size_t i = 0; i < l->n && !rc; i++) {
        struct region *r = l->all[i].region;
        rc = queue_push(s, r, l->all[i].first, l->all[i].n, &l->all[i].seq);
    }
    pthread_mutex_lock(&region_lock);
    sending--;
    for (size_t i = 0; i < l->n; i++) {
        struct region *r = l->all[i].region;
        r->users--;
        r->senders--;
        if (l->all[i].seq) r->pushed = (struct passing){s, s->object.id, l->all[i].seq};
        for (size_t b = l->all[i].first; b < l->all[i].first + l->all[i].n; b++) r->blocks[b] &= (uint8_t)~BLOCK_SENDING;
    }
    pthread_cond_broadcast(&region_changed);
    return rc;
}

/* Sends the list, ends the work under region_lock and orders the stream after what other threads have sent. */
static int finish(struct shim_stream *s, int rc, struct written_list *l) {
    if (!rc && l->n) rc = send(s, l);
    while (sending) pthread_cond_wait(&region_changed, &region_lock);
    pthread_mutex_unlock(&region_lock);
    free(l->all);
    return rc ? rc : stream_after_copies(s);
}

/* Whether kernels on a stream may use a region. Programs for devices with concurrent managed access use the legacy stream whatever memory is attached to. */
static bool open_to(const struct region *r, const struct shim_stream *s) {
    if (s->kind == STREAM_LEGACY) return true;
    if (r->attached == CU_MEM_ATTACH_SINGLE) return r->stream == s && r->stream_id == s->object.id;
    return r->attached == CU_MEM_ATTACH_GLOBAL;
}

bool managed_begin(void) {
    bool begun = managed_in_use();
    if (begun) atomic_fetch_add(&region_posting, 1);
    return begun;
}

void managed_end(bool begun) {
    if (begun) atomic_fetch_sub(&region_posting, 1);
}

int managed_launch(struct shim_stream *s) {
    if (!managed_in_use()) return 0;
    struct written_list l = {0};
    int rc = shadow_launch();
    pthread_mutex_lock(&region_lock);
    region_launches++;
    region_renew();
    mirror_push_all();
    for (struct region *r = region_list, *next; r && !rc; r = next) {
        next = r->next;
        if (!r->gone && !r->mirror && open_to(r, s)) rc = give(r, 0, r->n, 0, 0, true, &l);
    }
    return finish(s, rc, &l);
}

int managed_access(struct shim_stream *s, uint64_t address, uint64_t size, bool written, bool whole) {
    if (!managed_in_use() || !size) return 0;
    struct written_list l = {0};
    int rc = shadow_access(address, written);
    pthread_mutex_lock(&region_lock);
    mirror_push_all();
    struct region *r = region_find(address);
    if (r && (written || r->mirror)) r->accesses++; /* a mirror lasts while anything uses the memory */
    if (r && !r->mirror && !rc) {
        uint64_t block = 1ull << r->shift, low = address - region_base(r), high = least(low + size, r->size);
        size_t first = low >> r->shift, n = ((high + block - 1) >> r->shift) - first;
        size_t spare = (low + block - 1) >> r->shift, end = high == r->size ? r->n : high >> r->shift;
        region_renew();
        rc = give(r, first, n, spare, written && whole && end > spare ? end - spare : 0, written, &l);
    }
    return finish(s, rc, &l);
}

bool managed_contains(uint64_t address) {
    if (!managed_in_use()) return false;
    pthread_mutex_lock(&region_lock);
    bool found = region_find(address) != NULL;
    pthread_mutex_unlock(&region_lock);
    return found || shadow_contains(address);
}

static void end_provisional(struct region *r) {
    for (size_t i = 0; i < r->n; i++) {
        if (!(r->blocks[i] & BLOCK_PROVISIONAL)) continue;
        bool dirty = region_state(r, i) == BLOCK_DIRTY;
        region_set(r, i, 1, dirty ? BLOCK_DIRTY : BLOCK_STALE, 0);
    }
}

void managed_waited(void) {
    if (atomic_load(&fetching) || atomic_load(&managed_provisional)) {
        pthread_mutex_lock(&region_lock);
        await_older_fetches();
        for (struct region *r = region_list, *next; r; r = next) {
            next = r->next;
            if (!r->mirror) end_provisional(r);
        }
        pthread_mutex_unlock(&region_lock);
    }
    mirror_refresh(); /* behind the fetches: a mirror may have begun with what they brought */
    shadow_waited();
}

int coherence_add(struct region *r, uint64_t address, uint64_t size) {
    int rc = region_extend(r, address, size);
    if (rc) return rc;
    const struct extent *e = &r->extents[r->n_extents - 1];
    for (size_t i = e->low >> r->shift; !rc && i << r->shift < e->high; i++) {
        enum block_state state = region_state(r, i);
        if (state == BLOCK_CLEAN) region_set(r, i, 1, BLOCK_STALE, 0);
        if (state != BLOCK_DIRTY) continue;
        /* Another variable in the same page was written: only the new one is fetched. */
        uint64_t seq = 0;
        struct shim_stream *s = r->context->pages;
        rc = transfer_fetch(s, r->view + e->low, region_base(r) + e->low, e->high - e->low, &seq);
        return rc ? rc : session_wait_stream(&s->session, seq);
    }
    return rc;
}

void managed_forget(uint64_t base) {
    pthread_mutex_lock(&region_lock);
    struct region *r = region_find(base);
    while (r && r->prefetching.stream && !session_broken()) end_prefetch(r);
    if (r) {
        region_retire(r);
        mirror_free(r);
        region_free(r);
    }
    pthread_mutex_unlock(&region_lock);
}

int coherence_prefetch(struct shim_stream *s, uint64_t address, uint64_t size) {
    int rc = 0;
    throttle_exempt_begin(); /* region_lock is held, which a host function that others wait for may want */
    pthread_mutex_lock(&region_lock);
    struct region *r = region_find(address);
    while (r && r->prefetching.stream && !r->gone) end_prefetch(r);
    uint64_t low = r ? address - region_base(r) : 0, high = r && !r->gone ? least(low + size, r->size) : 0;
    /* What other streams have under way may write it after the copy, and a wait for that comes before the touch. */
    bool settled = !atomic_load(&region_posting) && r && streams_passed_but(s, r->context->pages);
    for (size_t i = r ? low >> r->shift : 0, n; !rc && settled && i << r->shift < high; i += n ? n : 1) {
        for (n = 0; (i + n) << r->shift < high && r->blocks[i + n] == BLOCK_STALE; n++) r->blocks[i + n] |= BLOCK_PREFETCHED;
        uint64_t seq = 0;
        if (n) rc = queue_fetch(s, r, i, n, &seq);
        if (seq) r->prefetching = (struct passing){s, s->object.id, seq};
        r->prefetch_given = region_given(r);
    }
    pthread_mutex_unlock(&region_lock);
    throttle_exempt_end();
    if (!settled) stream_fence_all(); /* so that other streams say how far they are before the next prefetch */
    if (!rc) session_flush();
    return rc;
}
