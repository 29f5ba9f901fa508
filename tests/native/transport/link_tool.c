/* Reads texts of links, each ended by a NUL, and prints a line for each: what it means, or "error" and why it means nothing. */
#include <stdio.h>

#include "../../../native/transport/link_spec.h"

int main(void) {
    char text[4096], error[GV_LINK_ERROR_TEXT];
    size_t size = 0;
    for (int c; (c = getchar()) != EOF;) {
        text[size < sizeof text - 1 ? size++ : size] = (char)c;
        if (c) continue;
        struct gv_link_spec s;
        if (gv_link_spec_parse(text, &s, error)) {
            printf("%s %u %d %lld %llu%s", *s.transport ? s.transport : "auto", s.channels, s.delayed, (long long)s.rtt_ns,
                   (unsigned long long)s.rate_bps, s.plain ? " plain" : "");
            if (s.rails) printf(" rails=%u", s.rails);
            putchar('\n');
        } else {
            printf("error %s\n", error);
        }
        size = 0;
    }
    return 0;
}
