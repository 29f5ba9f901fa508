#include "framing.h"

#include <stdio.h>
#include <string.h>
#include <sys/uio.h>

#include "../../wire/ring.h"

#define BATCH (64u << 10) /* bytes of records in a frame, unless a single one is larger */

_Static_assert(sizeof(struct gv_sealed_head) % 8 == 0 && GV_SEAL_TAG % 8 == 0, "records in a frame are 8-aligned");

/* What is authenticated beside the ciphertext: the head but for the size. That would add nothing, for a tag covers how long its ciphertext is; and what is
 * left is known before the frame is, so that it can be prepared for. */
static struct gv_sealed_head aad_of(uint32_t kind, uint64_t counter) { return (struct gv_sealed_head){.kind = kind, .counter = counter}; }

static bool open_frame(struct gv_seal *key, const struct gv_sealed_head *head, const uint8_t *text, size_t size, uint8_t *to) {
    struct gv_sealed_head aad = aad_of(head->kind, head->counter);
    return gv_seal_open(key, head->counter, &aad, sizeof aad, text, size, to, text + size);
}

static void prepare(struct gv_seal *records, uint64_t counter) {
    struct gv_sealed_head aad = aad_of(GV_SEAL_RECORDS, counter);
    gv_seal_prepare(records, counter, &aad, sizeof aad);
}

/* ---- what is sent */

/* The first of the records that make up a frame: how many bytes, and the last one's seq. */
static uint64_t batch(const uint8_t *records, uint64_t size, uint64_t *last) {
    uint64_t taken = 0;
    while (taken < size) {
        const struct gv_record *record = (const struct gv_record *)(const void *)(records + taken);
        if (taken && taken + record->size > BATCH) break;
        taken += record->size;
        *last = record->seq;
    }
    return taken;
}

static bool seal(struct gv_seal *key, uint32_t kind, uint64_t counter, const void *from, uint64_t size, uint8_t *to) {
    struct gv_sealed_head head = {(uint32_t)(FRAME_ROOM + size), kind, counter}, aad = aad_of(kind, counter);
    struct iovec in = {(void *)(uintptr_t)from, size};
    uint8_t *text = to + sizeof head;
    memcpy(to, &head, sizeof head);
    return gv_seal_seal(key, counter, &aad, sizeof aad, &in, 1, text, text + size);
}

uint64_t gv_framing_put(struct gv_framing_out *out, struct gv_unacked *unacked, const void *records, uint64_t size) {
    uint64_t last = 0, first = ((const struct gv_record *)records)->seq, taken = out->records ? batch(records, size, &last) : size;
    uint64_t framed = out->records ? FRAME_ROOM + taken : taken;
    uint8_t *room = gv_unacked_room(unacked, framed);
    if (!room) return 0;
    if (!out->records)
        memcpy(room, records, size);
    else if (!seal(out->records, GV_SEAL_RECORDS, first, records, taken, room))
        return 0;
    gv_unacked_add(unacked, framed, last);
    out->next_seq = last + 1;
    return taken;
}

void gv_framing_prepare_to_put(struct gv_framing_out *out) {
    if (out->records) prepare(out->records, out->next_seq);
}

size_t gv_framing_note(struct gv_framing_out *out, const struct tcp_note *note, void *to) {
    if (out->notes) return seal(out->notes, GV_SEAL_NOTES, out->next_note++, note, sizeof *note, to) ? NOTE_ROOM : 0;
    memcpy(to, note, sizeof *note);
    return sizeof *note;
}

/* ---- what is received */

static enum gv_framed bad(const char *what, char why[GV_DEATH_TEXT]) {
    snprintf(why, GV_DEATH_TEXT, "malformed record: %s", what);
    return GV_FRAMED_BAD;
}

/* Whether these are whole records with consecutive numbers from `seq` on, the last of which is *last. */
static bool sound(const uint8_t *records, size_t size, uint64_t seq, uint64_t *last) {
    for (size_t at = 0; at < size; seq++) {
        const struct gv_record *record = (const struct gv_record *)(const void *)(records + at);
        if (size - at < sizeof *record || gv_record_check(record->size, size - at, GV_RECORD_MAX) != GV_RECORD_WHOLE) return false;
        if (record->seq != seq || record->op == GV_RECORD_ACK || record->op == GV_RECORD_RESUME) return false;
        *last = seq;
        at += record->size;
    }
    return true;
}

static enum gv_framed open_records(struct gv_framing_in *in, const struct gv_sealed_head *head, uint8_t *text, size_t size, char why[GV_DEATH_TEXT]) {
    uint64_t last = 0;
    if (in->comes_again ? head->counter > in->next_seq : head->counter != in->next_seq) return GV_FRAMED_ALTERED;
    if (!open_frame(in->records, head, text, size, text)) return GV_FRAMED_ALTERED;
    if (!sound(text, size, head->counter, &last)) return bad("a frame of impossible ones", why);
    if (last < in->next_seq) return GV_FRAMED_ALTERED; /* of an earlier connection */
    in->next_seq = last + 1;
    in->comes_again = false;
    return GV_FRAMED_RECORD;
}

static enum gv_framed open_note(struct gv_framing_in *in, const struct gv_sealed_head *head, uint8_t *text, size_t size, char why[GV_DEATH_TEXT]) {
    if (size != sizeof(struct tcp_note) || head->counter != in->next_note) return GV_FRAMED_ALTERED;
    if (!open_frame(in->notes, head, text, size, text)) return GV_FRAMED_ALTERED;
    in->next_note++;
    if (((const struct gv_record *)(const void *)text)->size != size) return bad("a note that is none", why);
    return GV_FRAMED_RECORD;
}

static bool possible(const struct gv_sealed_head *head) {
    if (head->kind != GV_SEAL_RECORDS && head->kind != GV_SEAL_NOTES) return false;
    return head->size % 8 == 0 && head->size >= FRAME_ROOM + sizeof(struct gv_record) && head->size <= FRAME_MOST;
}

static enum gv_framed look_sealed(struct gv_framing_in *in, uint8_t *buffer, size_t *at, size_t end, char why[GV_DEATH_TEXT]) {
    struct gv_sealed_head head;
    if (end - *at < sizeof head) return GV_FRAMED_PART;
    memcpy(&head, buffer + *at, sizeof head);
    bool note = head.kind == GV_SEAL_NOTES;
    enum gv_framed verdict = GV_FRAMED_ALTERED;
    if (possible(&head)) {
        if (end - *at < head.size) return GV_FRAMED_PART;
        uint8_t *text = buffer + *at + sizeof head;
        size_t size = head.size - FRAME_ROOM;
        verdict = note ? open_note(in, &head, text, size, why) : open_records(in, &head, text, size, why);
    }
    if (verdict == GV_FRAMED_ALTERED) in->altered[note]++;
    if (verdict == GV_FRAMED_RECORD) {
        in->altered[1] = 0;
        if (!note) in->altered[0] = 0; /* acknowledgements alone are no progress */
        *at += sizeof head;
        in->opened = *at + head.size - FRAME_ROOM;
    }
    return verdict;
}

enum gv_framed gv_framing_look(struct gv_framing_in *in, uint8_t *buffer, size_t *at, size_t end, char why[GV_DEATH_TEXT]) {
    if (in->opened) return GV_FRAMED_RECORD;
    if (in->records) return look_sealed(in, buffer, at, end, why);
    if (end - *at < sizeof(uint64_t)) return GV_FRAMED_PART;
    uint32_t size;
    memcpy(&size, buffer + *at, sizeof size);
    int verdict = gv_record_check(size, end - *at, GV_RECORD_MAX);
    if (verdict == GV_RECORD_BAD) return bad("an impossible size", why);
    return verdict == GV_RECORD_WHOLE ? GV_FRAMED_RECORD : GV_FRAMED_PART;
}

void gv_framing_prepare_to_look(struct gv_framing_in *in) {
    if (in->records) prepare(in->records, in->next_seq);
}

size_t gv_framing_behind(struct gv_framing_in *in, size_t at, size_t size) {
    if (at + size != in->opened) return at + size;
    in->opened = 0;
    return at + size + GV_SEAL_TAG;
}

size_t gv_framing_forget(struct gv_framing_in *in, size_t at, size_t size) {
    if (!in->records) return at + size;
    in->opened = size ? at + size : 0; /* as if the frame ended there: as many bytes for a tag follow in any case */
    return size ? at + size + GV_SEAL_TAG : at;
}

bool gv_framing_open_note(struct gv_framing_in *in, const void *from, struct tcp_note *note) {
    struct gv_sealed_head head;
    const uint8_t *text = (const uint8_t *)from + sizeof head;
    if (!in->notes) {
        memcpy(note, from, sizeof *note);
        return true;
    }
    memcpy(&head, from, sizeof head);
    if (head.size != NOTE_ROOM || head.kind != GV_SEAL_NOTES || head.counter != in->next_note) return false;
    in->next_note++;
    return open_frame(in->notes, &head, text, sizeof *note, (uint8_t *)note);
}
