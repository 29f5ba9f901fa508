/* Everything that reads bytes of a peer, on bytes of chance. A libFuzzer target (clang -fsanitize=fuzzer,address); driver.c runs it where there is
 * no clang.
 *
 * The first byte chooses the reader. Every reader gets its bytes in an allocation of exactly their size, so that one byte too far is seen. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../../native/wire/handshake.h"
#include "../../native/wire/link_inputs.h"
#include "../../native/wire/module_meta.h"
#include "../../native/wire/ring.h"
#include "fuzz.h"

#define RING 4096u
#define LIMIT 512u /* smaller than the ring, so that a record that is too large for its reader fits into the ring */

static volatile uint64_t sink;

static void touch(const void *bytes, size_t size) {
    for (size_t i = 0; i < size; i++) sink += ((const uint8_t *)bytes)[i];
}

/* Eight bytes of position, then the ring's bytes. The position is used as it is and within the ring. */
static void read_ring(const uint8_t *data, size_t size) {
    uint64_t tail = 0;
    if (size < sizeof tail) return;
    memcpy(&tail, data, sizeof tail);
    for (int within = 0; within < 2; within++) {
        struct gv_ring_control *control = aligned_alloc(GV_RING_LINE, sizeof *control);
        uint8_t *ring = calloc(1, RING), *into = malloc(LIMIT);
        size_t bytes = size - sizeof tail < RING ? size - sizeof tail : RING;
        struct gv_ring_reader r;
        memset(control, 0, sizeof *control);
        memcpy(ring, data + sizeof tail, bytes);
        gv_ring_reader_init(&r, control, ring, RING);
        atomic_store(&control->tail, within ? tail % (RING + 1) / 8 * 8 : tail);
        for (int64_t n; (n = gv_ring_read(&r, into, LIMIT)) > 0;) {
            uint32_t claimed;
            memcpy(&claimed, into, sizeof claimed);
            if (claimed != n) abort();
            touch(into, (size_t)n);
            gv_ring_release(&r);
        }
        gv_ring_reader_init(&r, control, ring, RING);
        bool wake;
        for (int64_t n; (n = gv_ring_take(&r, into, LIMIT, &wake)) > 0;) touch(into, (size_t)n);
        free(control);
        free(ring);
        free(into);
    }
}

/* A stream of records as they come over TCP. */
static void read_stream(const uint8_t *data, size_t size) {
    uint8_t *exact = malloc(size + 1), *into = malloc(LIMIT);
    memcpy(exact, data, size);
    for (size_t at = 0; size - at >= 8;) {
        uint32_t record;
        memcpy(&record, exact + at, sizeof record);
        if (gv_record_check(record, size - at, LIMIT) != GV_RECORD_WHOLE) break;
        memcpy(into, exact + at, record);
        touch(into, record);
        at += record;
    }
    free(exact);
    free(into);
}

static void read_meta(const uint8_t *data, size_t size) {
    uint8_t *blob = malloc(size + 1);
    memcpy(blob, data, size);
    if (gv_meta_check(blob, size) == 0) {
        const struct gv_meta_header *h = (const void *)blob;
        const char *strings = gv_meta_strings(blob);
        for (uint32_t i = 0; i < h->n_kernels; i++) {
            const struct gv_meta_kernel *k = gv_meta_kernels(blob) + i;
            sink += strlen(strings + k->name);
            for (uint32_t p = 0; p < k->n_params; p++) {
                const struct gv_meta_param *param = gv_meta_params(blob) + k->first_param + p;
                if ((uint64_t)param->offset + param->size > k->param_bytes) abort();
            }
        }
        for (uint32_t i = 0; i < h->n_globals; i++) sink += strlen(strings + gv_meta_globals(blob)[i].name);
    }
    free(blob);
}

static void read_link_inputs(const uint8_t *data, size_t size) {
    uint8_t *payload = malloc(size + 1);
    uint64_t at = 0;
    struct gv_link_part part;
    memcpy(payload, data, size);
    while (!gv_link_part_take(payload, size, &at, &part)) {
        if (at > size || part.name[strlen(part.name)]) abort();
        touch(part.options, part.n_options * sizeof *part.options);
        touch(part.data, part.size);
        uint8_t *again = malloc(gv_link_part_size(&part) + 1);
        gv_link_part_put(again, &part);
        free(again);
    }
    free(payload);
}

static void printed(const char *text, size_t room) {
    if (strnlen(text, room) >= room) abort(); /* ends in a NUL whatever came */
}

/* What decodes must encode again, and decode to the same. The head's size is set right, so that what is behind it is reached. */
#define MESSAGE(name)                                                              \
    static bool read_##name(uint8_t *raw, size_t size, struct gv_##name *first) {  \
        static struct gv_##name second;                                            \
        static uint8_t again[GV_MESSAGE_MAX];                                      \
        if (!gv_##name##_decode(first, raw, size)) return false;                   \
        size_t n = gv_##name##_encode(first, again);                               \
        if (n > GV_MESSAGE_MAX || !gv_##name##_decode(&second, again, n)) abort(); \
        if (memcmp(first, &second, sizeof second) != 0) abort();                   \
        return true;                                                               \
    }
MESSAGE(greeting)
MESSAGE(hello)
MESSAGE(state)
MESSAGE(welcome)

/* The first byte chooses the message. */
static void read_handshake(const uint8_t *data, size_t size) {
    static struct gv_greeting greeting;
    static struct gv_hello hello;
    static struct gv_state state;
    static struct gv_welcome welcome;
    if (size < 1 + GV_HEAD_SIZE || size - 1 > GV_MESSAGE_MAX) return;
    uint8_t kind = *data % 4, *raw = malloc(--size);
    uint32_t whole = (uint32_t)size;
    memcpy(raw, data + 1, size);
    struct gv_head head;
    if (gv_greeting_head(raw, &head) != GV_HEAD_FOREIGN) sink += head.size;
    memcpy(raw + 12, &whole, 4);
    if (kind == 0 && read_greeting(raw, size, &greeting)) {
        printed(greeting.boot_id, sizeof greeting.boot_id);
        printed(greeting.unix_path, sizeof greeting.unix_path);
        printed(greeting.server_name, sizeof greeting.server_name);
    } else if (kind == 1 && read_hello(raw, size, &hello)) {
        if (hello.transports.n > GV_TRANSPORTS_MAX) abort();
        for (uint32_t i = 0; i < hello.transports.n; i++) printed(hello.transports.at[i].name, GV_TRANSPORT_NAME);
        printed(hello.program, sizeof hello.program);
    } else if (kind == 2 && read_state(raw, size, &state)) {
        printed(state.text, sizeof state.text);
    } else if (kind == 3 && read_welcome(raw, size, &welcome)) {
        if (welcome.blob.size > GV_BLOB_MAX || welcome.key_exchange.size > GV_KEY_EXCHANGE_MAX) abort();
        printed(welcome.text, sizeof welcome.text);
        printed(welcome.address, sizeof welcome.address);
        printed(welcome.transport.name, GV_TRANSPORT_NAME);
    }
    free(raw);
}

#ifdef FUZZ_COMMANDS
#include "gv_commands.h"

/* What decodes must encode again to bytes that decode to the same: a pointer or length beyond the body does not survive that. */
#define DECODER(name)                                                  \
    static void read_##name(const void *body, uint32_t size) {         \
        struct name first, second;                                     \
        if (name##_decode(&first, body, size) != 0) return;            \
        uint64_t again = name##_size(&first);                          \
        if (again != size) abort();                                    \
        uint8_t *copy = malloc(again + 1), *twice = malloc(again + 1); \
        name##_encode(&first, copy);                                   \
        if (name##_decode(&second, copy, size) != 0) abort();          \
        name##_encode(&second, twice);                                 \
        if (memcmp(copy, twice, again) != 0) abort();                  \
        free(copy);                                                    \
        free(twice);                                                   \
    }
#include "decoders.inc"
#undef DECODER

static void (*const decoders[])(const void *, uint32_t) = {
#define DECODER(name) read_##name,
#include "decoders.inc"
};

/* Two bytes choose the decoder; the rest, cut to a multiple of 8 as records are, is the body. */
static void read_command(const uint8_t *data, size_t size) {
    if (size < 2) return;
    size_t which = ((size_t)data[0] | (size_t)data[1] << 8) % (sizeof decoders / sizeof *decoders);
    uint32_t body_size = (uint32_t)((size - 2) / 8 * 8);
    uint8_t *body = malloc(body_size ? body_size : 1);
    memcpy(body, data + 2, body_size);
    decoders[which](body, body_size);
    free(body);
}

unsigned fuzz_decoders(void) { return sizeof decoders / sizeof *decoders; }
#else
static void read_command(const uint8_t *data, size_t size) { touch(data, size); }

unsigned fuzz_decoders(void) { return 0; }
#endif

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1) return 0;
    switch (data[0] % 6) {
    case 0: read_ring(data + 1, size - 1); break;
    case 1: read_stream(data + 1, size - 1); break;
    case 2: read_meta(data + 1, size - 1); break;
    case 3: read_handshake(data + 1, size - 1); break;
    case 5: read_link_inputs(data + 1, size - 1); break;
    default: read_command(data + 1, size - 1); break;
    }
    return 0;
}
