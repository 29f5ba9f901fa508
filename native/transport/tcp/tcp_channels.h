/* What the files of tcp's payloads share: tcp_channels.c (channels go down and come up), tcp_bulk_send.c and tcp_bulk_receive.c, which use them, and
 * tcp_bulk_open.c (life and death). */
#ifndef GV_TCP_CHANNELS_H
#define GV_TCP_CHANNELS_H

#include "tcp_bulk.h"

#define TCP_PART_OWN 64 /* bytes that a part holds itself */

/* Bytes of the stream, [start, start + size), by reference. */
struct tcp_part {
    struct tcp_part *next;
    const uint8_t *data;
    uint64_t start, size;
    void (*done)(void *arg);
    void *arg;
    uint8_t own[TCP_PART_OWN];
};

/* ---- tcp_channels.c */
void gv_tcp_wake_sender(struct tcp_bulk *b);
/* The channel broke: it is down, or the link dead where a cut is the end. The caller uses the channel: no other connection takes the place of the one that
 * broke before it leaves. lock not held. */
void gv_tcp_channel_cut(struct tcp_bulk *b, struct tcp_channel *c, const char *what, int error);
/* Done with a system call on it. */
void gv_tcp_channel_leave(struct tcp_bulk *b, struct tcp_channel *c);
/* The first byte at or after `position` that goes over this channel. */
uint64_t gv_tcp_first_of(uint64_t position, uint32_t channel, uint32_t n);
/* The client's thread that dials channels which are down; `arg` is the struct tcp_bulk. */
void *gv_tcp_dial_channels(void *arg);

/* A frame was altered on its way: it is counted, and the link dies when that happens again and again. True: it is dead. */
bool gv_tcp_channel_altered(struct tcp_bulk *b, struct tcp_channel *c);
void gv_tcp_keys_free(struct tcp_keys *keys);

/* ---- tcp_bulk_send.c */
/* The sending thread; `arg` is the struct tcp_bulk. */
void *gv_tcp_send_parts(void *arg);

#endif
