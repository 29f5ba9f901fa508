/* The handshake's messages as bytes. One table of fields for each message serves its encoder and its decoder. */
#include "handshake.h"

#include <string.h>

#include "record.h"

enum field_type {
    NUMBER, /* 2, 4 or 8 bytes */
    BYTES,  /* exactly so many, or none */
    TEXT,   /* at most so many, with the NUL, which is not sent */
    BLOB,   /* at most so many behind a u16 that says how many */
    OFFER,  /* a struct gv_offer */
    OFFERS  /* a struct gv_offers: a field for each */
};

struct field {
    uint16_t tag, offset, size;
    uint8_t type;
};

#define SIZE_OF(message, member) sizeof(((struct message *)0)->member)
#define FIELD(message, tag, member, type) {GV_TAG_##tag, offsetof(struct message, member), SIZE_OF(message, member), type}

static const struct field greeting_fields[] = {
    FIELD(gv_greeting, NONCE, nonce, BYTES),
    FIELD(gv_greeting, FLAGS, flags, NUMBER),
    FIELD(gv_greeting, CONTROL_PORT, control_port, NUMBER),
    FIELD(gv_greeting, BOOT_ID, boot_id, TEXT),
    FIELD(gv_greeting, UNIX_PATH, unix_path, TEXT),
    FIELD(gv_greeting, SERVER_NAME, server_name, TEXT),
    FIELD(gv_greeting, KEY_EXCHANGE, key_exchange, BLOB),
    {0},
};

static const struct field hello_fields[] = {
    FIELD(gv_hello, PURPOSE, purpose, NUMBER),
    FIELD(gv_hello, CHANNEL, channel, NUMBER),
    FIELD(gv_hello, NONCE, nonce, BYTES),
    FIELD(gv_hello, TOKEN_ID, token_id, BYTES),
    FIELD(gv_hello, SESSION, session, NUMBER),
    FIELD(gv_hello, EPOCH, epoch, NUMBER),
    FIELD(gv_hello, FLAGS, flags, NUMBER),
    FIELD(gv_hello, PID, pid, NUMBER),
    FIELD(gv_hello, GPUS, gpus, NUMBER),
    FIELD(gv_hello, MEMORY, memory, NUMBER),
    FIELD(gv_hello, PRIORITY, priority, NUMBER),
    FIELD(gv_hello, WAIT, wait_ms, NUMBER),
    FIELD(gv_hello, COMPUTE, compute, NUMBER),
    FIELD(gv_hello, PROGRAM, program, TEXT),
    FIELD(gv_hello, USER, user, TEXT),
    FIELD(gv_hello, HOST, host, TEXT),
    FIELD(gv_hello, LAUNCH, launch, BYTES),
    FIELD(gv_hello, PROCESS, process, BYTES),
    FIELD(gv_hello, EXEC_ID, exec_id, BYTES),
    FIELD(gv_hello, LEASE, lease, BYTES),
    FIELD(gv_hello, TRANSPORT, transports, OFFERS),
    FIELD(gv_hello, KEY_EXCHANGE, key_exchange, BLOB),
    {0},
};

static const struct field state_fields[] = {
    FIELD(gv_state, STATE, state, NUMBER),
    FIELD(gv_state, PLACE, place, NUMBER),
    FIELD(gv_state, QUEUED, queued, NUMBER),
    FIELD(gv_state, TEXT, text, TEXT),
    {0},
};

static const struct field welcome_fields[] = {
    FIELD(gv_welcome, STATUS, status, NUMBER),
    FIELD(gv_welcome, SESSION, session, NUMBER),
    FIELD(gv_welcome, TRANSPORT, transport, OFFER),
    FIELD(gv_welcome, DESCRIPTORS, descriptors, NUMBER),
    FIELD(gv_welcome, CONNECTIONS, connections, NUMBER),
    FIELD(gv_welcome, BLOB, blob, BLOB),
    FIELD(gv_welcome, GRACE, grace_s, NUMBER),
    FIELD(gv_welcome, TEXT, text, TEXT),
    FIELD(gv_welcome, ADDRESS, address, TEXT),
    FIELD(gv_welcome, KEY_EXCHANGE, key_exchange, BLOB),
    {0},
};

/* Every field at its largest fits. */
_Static_assert(sizeof(struct gv_hello) + 32 * 4 + GV_HEAD_SIZE + 4 + GV_PROOF_SIZE <= GV_MESSAGE_MAX, "a hello fits");
_Static_assert(sizeof(struct gv_welcome) + 32 * 4 + GV_HEAD_SIZE + 4 + GV_PROOF_SIZE <= GV_MESSAGE_MAX, "a welcome fits");

/* ---- encoding ------------------------------------------------------------------------------------------------------ */

struct writer {
    uint8_t *raw;
    size_t size;
};

static void put(struct writer *w, uint16_t tag, const void *data, uint16_t size) {
    memcpy(w->raw + w->size, &tag, sizeof tag);
    memcpy(w->raw + w->size + 2, &size, sizeof size);
    if (size) memcpy(w->raw + w->size + 4, data, size);
    w->size += 4u + size;
}

static bool zero(const uint8_t *bytes, size_t size) {
    for (size_t i = 0; i < size; i++)
        if (bytes[i]) return false;
    return true;
}

static void put_offer(struct writer *w, const struct gv_offer *offer) {
    uint8_t bytes[sizeof *offer];
    uint16_t name = (uint16_t)strnlen(offer->name, sizeof offer->name - 1);
    memcpy(bytes, &offer->needs, 4);
    memcpy(bytes + 4, offer->name, name);
    if (name) put(w, GV_TAG_TRANSPORT, bytes, (uint16_t)(4 + name));
}

static void put_field(struct writer *w, const struct field *f, const uint8_t *at) {
    uint16_t size = f->size;
    const struct gv_offers *offers = (const void *)at;
    switch (f->type) {
    case TEXT:
        size = (uint16_t)strnlen((const char *)at, f->size - 1u);
        if (size) put(w, f->tag, at, size);
        break;
    case BLOB:
        memcpy(&size, at, sizeof size);
        if (size) put(w, f->tag, at + 2, size < f->size - 2u ? size : (uint16_t)(f->size - 2u));
        break;
    case OFFER: put_offer(w, (const void *)at); break;
    case OFFERS:
        for (uint32_t i = 0; i < offers->n && i < GV_TRANSPORTS_MAX; i++) put_offer(w, &offers->at[i]);
        break;
    default:
        if (!zero(at, size)) put(w, f->tag, at, size);
    }
}

static void put_head(uint8_t *raw, uint16_t first, uint16_t second, size_t size) {
    uint32_t size32 = (uint32_t)size;
    memcpy(raw, GV_MAGIC, 8);
    memcpy(raw + 8, &first, 2);
    memcpy(raw + 10, &second, 2);
    memcpy(raw + 12, &size32, 4);
}

static size_t encode(const struct field *fields, const void *message, uint16_t kind, bool proved, uint8_t *raw) {
    static const uint8_t no_proof[GV_PROOF_SIZE];
    struct writer w = {raw, GV_HEAD_SIZE};
    for (const struct field *f = fields; f->tag; f++) put_field(&w, f, (const uint8_t *)message + f->offset);
    if (proved) put(&w, GV_TAG_PROOF, no_proof, sizeof no_proof);
    put_head(raw, GV_WIRE_VERSION, kind, w.size);
    return w.size;
}

size_t gv_greeting_encode(const struct gv_greeting *greeting, uint8_t raw[GV_MESSAGE_MAX]) {
    static const uint8_t zeros[GV_GREETING_LEAST];
    struct writer w = {raw, encode(greeting_fields, greeting, 0, false, raw)};
    if (w.size + 4 < GV_GREETING_LEAST) put(&w, GV_TAG_PAD, zeros, (uint16_t)(GV_GREETING_LEAST - w.size - 4));
    put_head(raw, greeting->version_min, greeting->version_max, w.size);
    return w.size;
}

size_t gv_hello_encode(const struct gv_hello *hello, uint8_t raw[GV_MESSAGE_MAX]) { return encode(hello_fields, hello, GV_MESSAGE_HELLO, true, raw); }

size_t gv_state_encode(const struct gv_state *state, uint8_t raw[GV_MESSAGE_MAX]) {
    return encode(state_fields, state, GV_MESSAGE_STATE, false, raw);
}

size_t gv_welcome_encode(const struct gv_welcome *welcome, uint8_t raw[GV_MESSAGE_MAX]) {
    return encode(welcome_fields, welcome, GV_MESSAGE_WELCOME, true, raw);
}

/* ---- decoding ------------------------------------------------------------------------------------------------------ */

static bool read_head(const uint8_t raw[GV_HEAD_SIZE], struct gv_head *head) {
    if (memcmp(raw, GV_MAGIC, 8) != 0) return false;
    memcpy(&head->first, raw + 8, 2);
    memcpy(&head->second, raw + 10, 2);
    memcpy(&head->size, raw + 12, 4);
    return true;
}

static bool sound_size(const struct gv_head *head) { return head->size >= GV_HEAD_SIZE && head->size <= GV_MESSAGE_MAX; }

enum gv_head_verdict gv_greeting_head(const uint8_t raw[GV_HEAD_SIZE], struct gv_head *head) {
    if (!read_head(raw, head)) return GV_HEAD_FOREIGN;
    /* The size of another version's greeting is not checked: version 1 had none in the head. */
    if (head->second < GV_WIRE_VERSION) return GV_HEAD_OLDER;
    if (head->first > GV_WIRE_VERSION) return GV_HEAD_NEWER;
    return sound_size(head) ? GV_HEAD_GOOD : GV_HEAD_FOREIGN;
}

enum gv_head_verdict gv_message_head(const uint8_t raw[GV_HEAD_SIZE], struct gv_head *head) {
    if (!read_head(raw, head)) return GV_HEAD_FOREIGN;
    if (head->first < GV_WIRE_VERSION) return GV_HEAD_OLDER;
    if (head->first > GV_WIRE_VERSION) return GV_HEAD_NEWER;
    return sound_size(head) ? GV_HEAD_GOOD : GV_HEAD_FOREIGN;
}

static bool take_offer(struct gv_offer *offer, const uint8_t *data, uint16_t size) {
    if (size < 5 || size - 4u >= sizeof offer->name || memchr(data + 4, 0, size - 4u)) return false;
    memcpy(&offer->needs, data, 4);
    memcpy(offer->name, data + 4, size - 4u);
    offer->name[size - 4] = 0;
    return true;
}

static bool take_field(const struct field *f, uint8_t *at, const uint8_t *data, uint16_t size) {
    struct gv_offers *offers = (void *)at;
    switch (f->type) {
    case TEXT:
        if (size >= f->size) return false;
        memcpy(at, data, strnlen((const char *)data, size)); /* the rest is zeros */
        return true;
    case BLOB:
        if (size > f->size - 2u) return false;
        memcpy(at, &size, sizeof size);
        memcpy(at + 2, data, size);
        return true;
    case OFFER: return take_offer((void *)at, data, size);
    case OFFERS:
        if (offers->n == GV_TRANSPORTS_MAX || !take_offer(&offers->at[offers->n], data, size)) return false;
        offers->n++;
        return true;
    default:
        if (size != f->size) return false;
        memcpy(at, data, size);
        return true;
    }
}

/* `message` is all zeros. */
static bool decode(const struct field *fields, void *message, const uint8_t *raw, size_t size, bool proved) {
    uint32_t seen = 0;
    size_t at = GV_HEAD_SIZE, tail = proved ? GV_PROOF_SIZE + 4 : 0, end = size - tail;
    if (size < GV_HEAD_SIZE + tail) return false;
    while (at < end) {
        uint16_t tag, length;
        if (end - at < 4) return false;
        memcpy(&tag, raw + at, sizeof tag);
        memcpy(&length, raw + at + 2, sizeof length);
        at += 4;
#ifndef GV_BREAK_FIELD /* Defined by one test only, which shows that the fuzzer would notice if this check were missing. */
        if (length > end - at) return false;
#endif
        const struct field *f = fields;
        while (f->tag && f->tag != tag) f++;
        if (f->tag) {
            uint32_t bit = 1u << (f - fields);
            if ((seen & bit) && f->type != OFFERS) return false;
            seen |= bit;
            if (!take_field(f, (uint8_t *)message + f->offset, raw + at, length)) return false;
        } else if (tag & GV_TAG_CRITICAL) {
            return false;
        }
        at += length;
    }
    if (!proved) return true;
    static const uint8_t proof_field[4] = {GV_TAG_PROOF, 0, GV_PROOF_SIZE, 0};
    return memcmp(raw + end, proof_field, sizeof proof_field) == 0;
}

static bool of_kind(const uint8_t *raw, size_t size, uint16_t kind) {
    struct gv_head head;
    return size >= GV_HEAD_SIZE && gv_message_head(raw, &head) == GV_HEAD_GOOD && head.size == size && head.second == kind;
}

bool gv_greeting_decode(struct gv_greeting *greeting, const uint8_t *raw, size_t size) {
    struct gv_head head;
    memset(greeting, 0, sizeof *greeting);
    if (size < GV_HEAD_SIZE || gv_greeting_head(raw, &head) != GV_HEAD_GOOD || head.size != size) return false;
    greeting->version_min = head.first;
    greeting->version_max = head.second;
    return decode(greeting_fields, greeting, raw, size, false);
}

bool gv_hello_decode(struct gv_hello *hello, const uint8_t *raw, size_t size) {
    memset(hello, 0, sizeof *hello);
    return of_kind(raw, size, GV_MESSAGE_HELLO) && decode(hello_fields, hello, raw, size, true);
}

bool gv_state_decode(struct gv_state *state, const uint8_t *raw, size_t size) {
    memset(state, 0, sizeof *state);
    return of_kind(raw, size, GV_MESSAGE_STATE) && decode(state_fields, state, raw, size, false);
}

bool gv_welcome_decode(struct gv_welcome *welcome, const uint8_t *raw, size_t size) {
    memset(welcome, 0, sizeof *welcome);
    return of_kind(raw, size, GV_MESSAGE_WELCOME) && decode(welcome_fields, welcome, raw, size, true);
}
