/* What the worker's fuzzer sends, as data: a sequence is a list of steps, each a command of the client or something else that a client does. Sequences are
 * made (generate.c), changed, written and read as text (step.c), and carried out by a client of the real worker (client.c).
 *
 * A step is a line of text: `copy_in! @1 stream=4098 dst=a0+64 width=100 height=1 depth=1 data=noise:100:7`. `!` asks for the stream's completion, `&` does
 * not wait for the answer, @ names the context. Fields that are not named are 0. */
#ifndef STEP_H
#define STEP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gv_commands.h"

#define STEP_FIELDS 24u
#define STEP_BLOBS 6u
#define STEPS_MAX 256u
#define STEP_BODY_MAX (96u << 10)

/* Kinds of objects, from the table of commands (shapes.py): KIND_CONTEXT, KIND_STREAM, ... */
enum kind {
#define KIND(name, NAME) KIND_##NAME,
#include "kinds.inc"
#undef KIND
    N_KINDS
};

/* What a field of a command is to the worker. `kind` says which object where it names one. */
enum role { ROLE_NUMBER, ROLE_FIND, ROLE_MAKE, ROLE_DESTROY, ROLE_STREAM, ROLE_DEVICE, ROLE_KERNEL, ROLE_BULK, ROLE_BYTES, ROLE_TEXT };

struct field {
    const char *name;
    uint32_t offset, width; /* in the body's fixed part; of a blob: where its length is */
    enum role role;
    enum kind kind;
};
struct shape {
    const char *name;
    uint16_t op;
    bool awaited, context;
    uint32_t fixed, n_fields;
    struct field fields[STEP_FIELDS];
};
extern const struct shape shapes[]; /* the commands, then what else a client does */
extern const unsigned n_shapes, n_commands;

/* What else a client does: numbers beyond those of the wire. */
enum {
    DO_SESSION = 0xf000, /* the first step: which worker, over which transport, and how the client behaves */
    DO_PAYLOAD,          /* a payload, of which another size may be announced than comes */
    DO_EXPECT,           /* the bytes of the copy with this tag, when they come, are these */
    DO_WAIT,             /* until the worker has answered, and completed what was marked */
    DO_SLEEP,            /* us */
    DO_CUT,              /* the main connection ends without a goodbye */
    DO_RESUME,           /* a connection claims to be the session's */
    DO_CHANNEL,          /* a further bulk channel, or what claims to be one */
    DO_END,              /* the client closes the link at once */
};

/* A number, or one that only the session knows: a0+64 is 64 bytes behind what the answer (or the window) put into slot 0. */
enum base { BASE_NONE, BASE_ADDRESS, BASE_GLOBAL, BASE_TEXTURE, BASE_RESERVED, BASE_PAYLOAD };
#define SLOTS 16u
struct value {
    uint8_t base, slot;
    uint64_t number;
};

enum blob_kind {
    BLOB_ZERO,
    BLOB_NOISE,
    BLOB_TEXT,
    BLOB_IMAGE,
    BLOB_PACKED,
    BLOB_HASH,
    BLOB_DIGEST,
    BLOB_INPUTS,
    BLOB_OPTIONS,
    BLOB_WINDOWS,
    BLOB_PARAMS,
    BLOB_OPERATIONS,
    BLOB_WORDS,
    N_BLOB_KINDS
};
/* Made when it is sent, by these numbers. */
struct blob {
    uint8_t kind;
    uint32_t size, seed;
    struct value at;
};

struct step {
    uint16_t shape; /* index in shapes */
    bool mark, loose;
    uint8_t into; /* the slot that the answer's address goes to */
    uint32_t context;
    struct value values[STEP_FIELDS]; /* of the fields, in their order */
    struct blob blobs[STEP_BLOBS];    /* of the fields that are bytes or text, in their order */
    int32_t resize;                   /* bytes that the record is larger than its body */
    uint32_t flip_at, flip;           /* one byte of the record's body, and what it is changed by */
};
struct sequence {
    uint32_t n;
    struct step steps[STEPS_MAX];
};

const struct shape *shape_of(const struct step *s);
int shape_named(const char *name); /* -1: there is none */
struct step step_new(const char *name);
/* A field by its name; NULL: there is none. */
struct value *step_value(struct step *s, const char *field);
struct blob *step_blob(struct step *s, const char *field);
void step_set(struct step *s, const char *field, uint64_t number);
uint64_t step_get(const struct step *s, const char *field);
bool sequence_add(struct sequence *q, const struct step *s);

/* As text. sequence_read says on stderr what it does not understand, and returns false. */
void sequence_write(const struct sequence *q, char *to, size_t room);
bool sequence_read(struct sequence *q, const char *text);

/* What the session has for a base. */
struct step_world {
    uint64_t slots[BASE_PAYLOAD + 1][SLOTS];
    uint64_t numbers[STEPS_MAX]; /* of the payloads that are not late ones, as they will be sent */
    uint32_t n_numbers, announced;
};
/* Numbers the payloads of a sequence: every payload has one, and only what is late is named by something else. */
void world_number(struct step_world *w, const struct sequence *q);
uint64_t value_of(struct step_world *w, const struct value *v);
/* A blob's bytes, at most `room`; how many. */
uint32_t blob_put(struct step_world *w, const struct blob *b, uint8_t *to, uint32_t room);
/* A command's body, up to STEP_BODY_MAX bytes and 8-aligned; its size. */
uint32_t step_encode(struct step_world *w, const struct step *s, uint8_t *body);

/* Images that both backends of the tests take, and what they are named by. */
#define IMAGES 4u
/* For a driver that is none of the tests': PTX, with the kernels and globals of soft_modules.c. NULL: images that begin with "good". */
extern const char *image_text;
const char *image_of(uint32_t which, size_t *size);

#endif
