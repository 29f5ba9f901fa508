#include "sealed_peer.h"

#include <sys/socket.h>

#include "../check.h"
#include "pair.h"

static struct gv_seal *key(bool sending, enum gv_seal_use use, uint32_t epoch) {
    char why[GV_DEATH_TEXT] = "";
    struct gv_seal *seal = gv_seal_new(&test_secret, true, sending, use, 0, epoch, why);
    if (!seal) fprintf(stderr, "no key: %s\n", why);
    CHECK(seal);
    return seal;
}

struct sealed_peer sealed_peer(uint32_t epoch) {
    return (struct sealed_peer){key(true, GV_SEAL_RECORDS, 0), key(false, GV_SEAL_RECORDS, 0), key(true, GV_SEAL_NOTES, epoch),
                                key(false, GV_SEAL_NOTES, epoch)};
}

void sealed_peer_free(struct sealed_peer *peer) {
    gv_seal_free(peer->records_out);
    gv_seal_free(peer->records_in);
    gv_seal_free(peer->notes_out);
    gv_seal_free(peer->notes_in);
    *peer = (struct sealed_peer){0};
}

static size_t frame(struct gv_seal *seal, uint32_t kind, uint64_t counter, const void *bytes, size_t size, uint8_t *to) {
    struct gv_sealed_head head = {(uint32_t)(FRAME_ROOM + size), kind, counter}, aad = {0, kind, counter};
    struct iovec in = {(void *)(uintptr_t)bytes, size};
    uint8_t *text = to + sizeof head;
    memcpy(to, &head, sizeof head);
    CHECK(gv_seal_seal(seal, counter, &aad, sizeof aad, &in, 1, text, text + size));
    return head.size;
}

size_t seal_records(struct sealed_peer *peer, uint64_t counter, const void *records, size_t size, void *to) {
    return frame(peer->records_out, GV_SEAL_RECORDS, counter, records, size, to);
}

size_t seal_note(struct sealed_peer *peer, uint64_t counter, struct tcp_note note, void *to) {
    return frame(peer->notes_out, GV_SEAL_NOTES, counter, &note, sizeof note, to);
}

struct gv_sealed_head hear_frame(struct sealed_peer *peer, int fd, void *into) {
    struct gv_sealed_head head;
    uint8_t *text = (uint8_t *)into + sizeof head;
    CHECK(recv(fd, into, sizeof head, MSG_WAITALL) == sizeof head);
    memcpy(&head, into, sizeof head);
    CHECK(head.size > FRAME_ROOM && head.size <= FRAME_MOST);
    CHECK(recv(fd, text, head.size - sizeof head, MSG_WAITALL) == (ssize_t)(head.size - sizeof head));
    size_t size = head.size - FRAME_ROOM;
    struct gv_seal *seal = head.kind == GV_SEAL_RECORDS ? peer->records_in : peer->notes_in;
    CHECK(head.kind == GV_SEAL_RECORDS || head.kind == GV_SEAL_NOTES);
    struct gv_sealed_head aad = {0, head.kind, head.counter};
    CHECK(gv_seal_open(seal, head.counter, &aad, sizeof aad, text, size, text, text + size));
    return head;
}
