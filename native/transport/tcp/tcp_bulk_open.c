/* Life and death of what carries the payloads of a tcp link: its threads, its sockets. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../link.h"
#include "tcp_channels.h"

int gv_tcp_bulk_open(struct tcp_bulk *b, struct gv_link *link, void (*came)(struct gv_link *link), uint32_t channels,
                     const struct gv_link_secret *secret, bool client) {
    b->link = link;
    b->came = came;
    b->secret = secret;
    b->client = client;
    pthread_mutex_init(&b->lock, NULL);
    pthread_mutex_init(&b->attaching, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&b->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    for (uint32_t i = 0; i < TCP_CHANNELS_MAX; i++) b->channels[i] = (struct tcp_channel){.fd = -1, .since = gv_now_ns()};
    b->n = channels;
    atomic_store(&b->reading, UINT64_MAX);
    b->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (b->wake_fd < 0) return errno;
    int error = gv_thread_start(&b->sender, gv_tcp_send_parts, b, "gpuvirt-bulk");
    b->has_sender = !error;
    if (!error && b->link->redial) {
        error = gv_thread_start(&b->dialler, gv_tcp_dial_channels, b, "gpuvirt-dial");
        b->has_dialler = !error;
    }
    return error;
}

void gv_tcp_bulk_died(struct tcp_bulk *b) {
    pthread_mutex_lock(&b->lock);
    for (uint32_t i = 0; i < TCP_CHANNELS_MAX; i++)
        if (b->channels[i].fd >= 0) shutdown(b->channels[i].fd, SHUT_RDWR);
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
    atomic_store(&b->sleeping, true);
    gv_tcp_wake_sender(b);
}

void gv_tcp_bulk_end(struct tcp_bulk *b) {
    if (b->has_sender) pthread_join(b->sender, NULL);
    if (b->has_dialler) pthread_join(b->dialler, NULL);
    b->has_sender = b->has_dialler = false;
}

void gv_tcp_bulk_close_sockets(struct tcp_bulk *b) {
    for (uint32_t i = 0; i < TCP_CHANNELS_MAX; i++)
        if (b->channels[i].fd >= 0) close(b->channels[i].fd);
    close(b->wake_fd);
}

void gv_tcp_bulk_free(struct tcp_bulk *b) {
    for (uint32_t i = 0; i < TCP_CHANNELS_MAX; i++) {
        gv_tcp_keys_free(&b->channels[i].keys);
        free(b->channels[i].sealed);
    }
    free(b->opened);
    pthread_mutex_destroy(&b->lock);
    pthread_mutex_destroy(&b->attaching);
    pthread_cond_destroy(&b->changed);
}
