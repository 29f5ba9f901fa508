/* A link whose worker's end goes on in another process: to the client it is a cut, after which somebody else answers. What both ends know of records and
 * payloads is the link's own; what a transport keeps besides, its row saves. */
#include "../wire/image_stream.h"
#include "link.h"
#include "resume.h"

bool gv_link_movable(const struct gv_link *link) { return link->transport->save && link->resume && !gv_resume_final(link->resume); }

void gv_link_pause(struct gv_link *link) {
    atomic_store(&link->paused, true);
    if (link->transport->pause) link->transport->pause(link);
}

void gv_link_unpause(struct gv_link *link) {
    atomic_store(&link->paused, false);
    gv_link_release(link);
}

void gv_link_hold(struct gv_link *link, const char *why) {
    atomic_store(&link->held, true);
    gv_link_cut(link, why);
}

void gv_link_release(struct gv_link *link) { atomic_store(&link->held, false); }

void gv_link_cut(struct gv_link *link, const char *why) {
    /* Whoever brings a connection that came before is done first. */
    pthread_mutex_lock(&link->resume->one);
    link->transport->cut(link, why);
    pthread_mutex_unlock(&link->resume->one);
}

void gv_link_save(struct gv_link *link, struct gv_image_out *out) {
    const uint64_t positions[] = {
        link->seq_out, link->seq_in,        link->bytes_out, link->bytes_in,    link->bulk_out,
        link->bulk_in, link->bulk_position, link->epoch,     link->epoch_limit, gv_link_rtt_ns(link) > 0 ? (uint64_t)gv_link_rtt_ns(link) : 0};
    for (size_t i = 0; i < sizeof positions / sizeof *positions; i++) gv_image_put(out, positions[i]);
    link->transport->save(link, out);
}

void gv_link_restore(struct gv_link *link, struct gv_image_in *in) {
    link->seq_out = gv_image_get(in, UINT64_MAX);
    link->seq_in = gv_image_get(in, UINT64_MAX);
    atomic_store(&link->bytes_out, gv_image_get(in, UINT64_MAX));
    atomic_store(&link->bytes_in, gv_image_get(in, UINT64_MAX));
    link->bulk_out = gv_image_get(in, UINT64_MAX);
    link->bulk_in = gv_image_get(in, UINT64_MAX);
    link->bulk_position = gv_image_get(in, UINT64_MAX);
    atomic_store(&link->epoch, (uint32_t)gv_image_get(in, UINT32_MAX));
    atomic_store(&link->epoch_limit, (uint32_t)gv_image_get(in, UINT32_MAX));
    gv_link_set_rtt(link, (int64_t)gv_image_get(in, INT64_MAX));
    link->transport->restore(link, in);
}
