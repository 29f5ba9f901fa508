#define _GNU_SOURCE
#include "silence.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <stddef.h>
#include <sys/socket.h>

#include "futex.h"

#define LOOK_NS 1000000000LL
#define SILENCE_LOOKS 5
/* Before Linux 6.15 the probes of a closed window come up to two minutes apart, so nothing is unanswered for long though nobody is there. Meanwhile one
 * hears the keepalive probes of the peer's end (every 2 s, gv_tcp_tune) if it is not full itself. */
#define SILENCE_LOOKS_UNASKED 12
/* Longer than a round trip can take: retransmissions are bounded by it, too. */
#define PROBE_MS 4000

#ifndef TCP_RTO_MAX_MS /* Linux 6.15 */
#define TCP_RTO_MAX_MS 44
#endif

void gv_silence_tune(int fd) {
    int most = PROBE_MS;
    setsockopt(fd, IPPROTO_TCP, TCP_RTO_MAX_MS, &most, sizeof most); /* an older kernel says no: gv_host_silent asks */
}

static bool probes_bounded(int fd) {
    int most = 0;
    socklen_t size = sizeof most;
    return getsockopt(fd, IPPROTO_TCP, TCP_RTO_MAX_MS, &most, &size) == 0 && most <= PROBE_MS;
}

bool gv_host_silent(struct gv_silence *s, int fd) {
    int64_t now = gv_now_ns();
    if (now < s->next) return false;
    s->next = now + LOOK_NS;
    struct tcp_info info = {0};
    socklen_t size = sizeof info;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 || size < offsetof(struct tcp_info, tcpi_min_rtt)) return false;
    bool under_way = info.tcpi_unacked || info.tcpi_notsent_bytes;
    if (!under_way || info.tcpi_segs_in != s->segments) {
        s->segments = info.tcpi_segs_in;
        s->looks = 0;
        return false;
    }
    s->looks++;
    bool unanswered = info.tcpi_probes || info.tcpi_retransmits;
    return unanswered ? s->looks >= SILENCE_LOOKS : s->looks >= SILENCE_LOOKS_UNASKED && !probes_bounded(fd);
}
