/* A worker library that only echoes what it was given. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "native/worker/worker.h"
struct worker {
    struct worker_config c;
    uint32_t devices[4];
    int channel, hang;
};
struct worker *worker_open(const struct worker_config *c, char *err) {
    if (c->struct_size != sizeof *c || !strcmp(c->server_name, "bad")) {
        snprintf(err, 512, "no such backend");
        return NULL;
    }
    struct worker *w = calloc(1, sizeof *w);
    w->c = *c;
    memcpy(w->devices, c->devices, c->n_devices * sizeof *c->devices);
    return w;
}
int worker_add_channel(struct worker *w, int32_t channel, int32_t fd) {
    w->channel = channel;
    return write(fd, "c", 1) != 1;
}
int worker_resume(struct worker *w, int32_t channel, int32_t fd, uint32_t epoch) {
    char text[40];
    int n = snprintf(text, sizeof text, "again %d %u", channel, epoch);
    (void)w;
    return write(fd, text, (size_t)n) != n;
}
void worker_client_gone(struct worker *w) {
    if (write(w->c.fd, "gone", 4) != 4) _exit(1);
}
int worker_run(struct worker *w, char *err) {
    char in[100], out[400];
    for (;;) {
        ssize_t n = read(w->c.fd, in, sizeof in - 1);
        if (n <= 0) {
            snprintf(err, 512, "end of file");
            return 1;
        }
        in[n] = 0;
        if (!strcmp(in, "bye")) return 0;
        if (!strcmp(in, "hang")) {
            w->hang = 1;
            return 0;
        }
        if (!strcmp(in, "bad")) {
            snprintf(err, 512, "record 7 is malformed");
            return 2;
        }
        struct worker_config *c = &w->c;
        int m = snprintf(out, sizeof out, "%s %s %u:%u,%u", c->backend, c->driver ? c->driver : "-", c->n_devices, w->devices[0], w->devices[1]);
        m += snprintf(out + m, sizeof out - m, " %lu %lu %u %u", c->memory, c->device_memory, c->capability, c->strict);
        m += snprintf(out + m, sizeof out - m, " %u %s %u", c->memory_usage_slot, c->transport, c->n_descriptors);
        m += snprintf(out + m, sizeof out - m, " %.*s %lx %s %d %u", (int)c->blob_size, c->blob, c->session, c->server_name, w->channel, c->grace);
        if (write(w->c.fd, out, (size_t)m) != m) return 2;
    }
}
void worker_notice(struct worker *w, const char *text) { (void)w, (void)text; }
void worker_get_figures(struct worker *w, struct worker_figures *f) { *f = (struct worker_figures){11, 12, 13, 14, (uint64_t)w->channel}; }
void worker_close(struct worker *w) {
    if (w->hang) sleep(60);
    free(w);
}
