/* Runs the fuzz target without libFuzzer: mutations of a seed corpus, from a seeded generator, so that a failure comes again.
 *
 *     driver RUNS SECONDS SEED      at most RUNS inputs and SECONDS seconds; prints how many ran
 *     driver FILE                   one input, as a failure left it
 *
 * Before each run the input is kept in memory and written to ./crash-input when the program is about to abort. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../../native/wire/handshake.h"
#include "../../native/wire/link_inputs.h"
#include "../../native/wire/module_meta.h"
#include "../../native/wire/ring.h"
#include "fuzz.h"

#define MOST 6000u
#define SEEDS 64

struct input {
    size_t size;
    uint8_t bytes[MOST];
};

static struct input seeds[SEEDS], current;
static unsigned n_seeds;
static uint64_t state;

static uint64_t chance(uint64_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return below ? (state * 0x2545f4914f6cdd1du >> 11) % below : 0;
}

static void keep_input(int number) {
    int fd = open("crash-input", O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd >= 0 && write(fd, current.bytes, current.size) >= 0) close(fd);
    signal(number, SIG_DFL);
    raise(number);
}

static struct input *seed(uint8_t target) {
    struct input *s = &seeds[n_seeds++];
    s->bytes[0] = target;
    s->size = 1;
    return s;
}

static void add(struct input *s, const void *bytes, size_t size) {
    memcpy(s->bytes + s->size, bytes, size);
    s->size += size;
}

static void add_records(struct input *s) {
    uint8_t body[512];
    for (uint64_t i = 1; i <= 8; i++) {
        struct gv_record r = {.size = (uint32_t)(sizeof r + 16 * i), .op = (uint16_t)i, .seq = i};
        memset(body, (int)i, sizeof body);
        add(s, &r, sizeof r);
        add(s, body, 16 * i);
    }
}

/* One of each message, all fields filled. */
static void add_handshake(void) {
    static struct gv_greeting g = {.version_min = 2, .version_max = 2, .flags = 1, .boot_id = "boot", .unix_path = "/run/x", .server_name = "box"};
    static struct gv_hello h = {.purpose = 1,
                                .channel = 2,
                                .session = 3,
                                .epoch = 4,
                                .program = "p",
                                .user = "u",
                                .host = "h",
                                .transports = {2, {{3, "shm"}, {4, "tcp"}}},
                                .key_exchange = {8, {1}}};
    static struct gv_state s = {.state = 1, .place = 2, .queued = 3, .text = "soon"};
    static struct gv_welcome w = {.status = 6,
                                  .session = 5,
                                  .transport = {3, "shm"},
                                  .descriptors = 1,
                                  .connections = 16,
                                  .blob = {400, {1}},
                                  .grace_s = 60,
                                  .text = "t",
                                  .address = "tcp://h:1",
                                  .key_exchange = {1000, {1}}};
    static uint8_t raw[GV_MESSAGE_MAX];
    memset(g.nonce, 1, sizeof g.nonce);
    memset(h.nonce, 1, sizeof h.nonce);
    memset(h.token_id, 1, sizeof h.token_id);
    for (uint8_t kind = 0; kind < 4; kind++) {
        size_t size = kind == 0   ? gv_greeting_encode(&g, raw)
                      : kind == 1 ? gv_hello_encode(&h, raw)
                      : kind == 2 ? gv_state_encode(&s, raw)
                                  : gv_welcome_encode(&w, raw);
        struct input *in = seed(3);
        add(in, &kind, 1);
        add(in, raw, size);
    }
}

static void make_seeds(void) {
    uint64_t tails[] = {768, 24, 4096, 0};
    for (int i = 0; i < 4; i++) {
        struct input *s = seed(0);
        add(s, &tails[i], 8);
        add_records(s);
        if (i == 2) { /* a full ring that ends in a pad */
            uint64_t pad = (4096 - (s->size - 9)) | (uint64_t)GV_RING_PAD << 32;
            add(s, &pad, 8);
        }
    }
    add_records(seed(1));
    struct {
        struct gv_meta_header h;
        struct gv_meta_kernel k[2];
        struct gv_meta_param p[2];
        struct gv_meta_global g[1];
        char strings[16];
    } meta = {.h = {GV_META_MAGIC, GV_META_VERSION, 0, 2, 2, 1, 16, 0},
              .k = {{.n_params = 1, .param_bytes = 8}, {.name = 4, .first_param = 1, .n_params = 1, .param_bytes = 16}},
              .p = {{0, 8}, {8, 8}},
              .g = {{.name = 8, .size = 4, .align = 4}},
              .strings = "one\0two\0global"};
    add(seed(2), &meta, sizeof meta);
    add_handshake();

    struct gv_link_option option = {.option = 7, .value = 3};
    struct gv_link_part part = {.type = 1, .n_options = 1, .name = "kernel.ptx", .options = &option, .data = ".version 8.0", .size = 12};
    uint64_t payload[32];
    struct input *inputs = seed(5);
    for (int i = 0; i < 2; i++) {
        gv_link_part_put(payload, &part);
        add(inputs, payload, gv_link_part_size(&part));
    }
    for (uint16_t i = 0; i < 16; i++) {
        struct input *s = seed(4);
        uint8_t body[256] = {0};
        add(s, &i, 2);
        add(s, body, 16u * i);
    }
}

/* A number that has broken programs before. */
static uint64_t odd_number(void) {
    static const uint64_t numbers[] = {0,
                                       1,
                                       7,
                                       8,
                                       16,
                                       23,
                                       24,
                                       25,
                                       504,
                                       512,
                                       520,
                                       1024,
                                       2048,
                                       4088,
                                       4096,
                                       4104,
                                       0x3fff8,
                                       0x40000,
                                       0x7fffffff,
                                       0x80000000,
                                       0xfffffff8,
                                       0xffffffff,
                                       0x100000000,
                                       0x7fffffffffffffff,
                                       0xffffffffffffffff};
    return numbers[chance(sizeof numbers / sizeof *numbers)];
}

/* Another size for one of a handshake's fields: they stand behind the target's byte, the message's and its head. */
static void mutate_field(struct input *in) {
    size_t at = 2 + GV_HEAD_SIZE;
    for (uint64_t skip = chance(18); at + 4 <= in->size; skip--) {
        uint16_t size;
        memcpy(&size, in->bytes + at + 2, sizeof size);
        if (skip == 0) {
            size = (uint16_t)(chance(2) ? odd_number() : size + 1 - 2 * chance(2));
            memcpy(in->bytes + at + 2, &size, sizeof size);
            return;
        }
        at += 4u + size;
    }
}

static void mutate(struct input *in) {
    if (in->bytes[0] == 3 && chance(2)) {
        mutate_field(in);
        return;
    }
    size_t body = in->size - 1;
    size_t at = 1 + chance(body);
    switch (chance(7)) {
    case 0: in->bytes[at] ^= (uint8_t)(1u << chance(8)); break;
    case 1: in->bytes[at] = (uint8_t)chance(256); break;
    case 2:
    case 3: { /* numbers mostly stand at multiples of their size behind the first byte (commands: behind the third) */
        size_t width = chance(2) ? 4 : 8, from = in->bytes[0] % 5 == 4 ? 3 : 1;
        uint64_t value = odd_number();
        at = from + chance(body / width + 1) * width;
        if (at + width <= in->size) memcpy(in->bytes + at, &value, width);
        break;
    }
    case 4: in->size = at; break;
    case 5:
        if (in->size + 8 <= MOST) { /* eight bytes more */
            memmove(in->bytes + at + 8, in->bytes + at, in->size - at);
            in->size += 8;
        }
        break;
    default: { /* a piece of another seed */
        const struct input *other = &seeds[chance(n_seeds)];
        size_t n = chance(64), from = chance(other->size);
        if (from + n <= other->size && at + n <= in->size) memcpy(in->bytes + at, other->bytes + from, n);
    }
    }
    if (in->size < 2) in->size = 2;
}

static int replay(const char *path) {
    int fd = open(path, O_RDONLY);
    ssize_t n = fd < 0 ? -1 : read(fd, current.bytes, MOST);
    if (n < 0) {
        perror(path);
        return 2;
    }
    current.size = (size_t)n;
    return LLVMFuzzerTestOneInput(current.bytes, current.size);
}

int main(int argc, char **argv) {
    if (argc == 2) return replay(argv[1]);
    if (argc != 4) {
        fprintf(stderr, "usage: driver RUNS SECONDS SEED | driver FILE\n");
        return 2;
    }
    uint64_t runs = strtoull(argv[1], NULL, 10), done = 0;
    time_t end = time(NULL) + strtol(argv[2], NULL, 10);
    state = strtoull(argv[3], NULL, 10) * 2654435761u + 88172645463325252u;
    make_seeds();
    signal(SIGABRT, keep_input);
    for (; done < runs && (done % 256 || time(NULL) < end); done++) {
        const struct input *from = &seeds[chance(n_seeds)];
        current.size = from->size;
        memcpy(current.bytes, from->bytes, sizeof current.bytes);
        if (current.bytes[0] == 4 && fuzz_decoders()) {
            uint16_t which = (uint16_t)chance(fuzz_decoders());
            memcpy(current.bytes + 1, &which, 2);
        }
        for (uint64_t i = chance(6); i > 0; i--) mutate(&current);
        LLVMFuzzerTestOneInput(current.bytes, current.size);
    }
    printf("%llu inputs, %u command decoders\n", (unsigned long long)done, fuzz_decoders());
    return 0;
}
