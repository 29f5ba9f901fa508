/* An image as numbers of eight bytes, of which it is made, and what is done to one. Damage is text, one deed a line, so that it fits an image of the same
 * session that is made tomorrow: DEED SECTION WORD VALUE. A section is a number of format.h, 0 what is in front of the first; a word is counted from the
 * section's mark, modulo its length.
 *
 *     set S W V      the word becomes V            add S W V      V more
 *     xor S W V      bits are flipped              copy S W V     the word V of the same section
 *     drop S W V     V words are left out          repeat S W V   V words stand twice
 *     swap S W V     section S changes places with the next   lose S W V     without the section
 *     cut S W V      the image ends there          digest S W V   the digest is not made good again
 *     record S W V   a record of kind W, with V bytes of zeros, as one that was read ahead */
#ifndef DAMAGE_H
#define DAMAGE_H

#include "mutate.h"

#define DEEDS_MAX 16u
#define SECTIONS 11u /* that of no number among them */

struct deed {
    unsigned kind, section;
    uint64_t word, value;
};
struct damage {
    unsigned base; /* which image */
    uint32_t n;
    struct deed deeds[DEEDS_MAX];
};
struct image {
    uint64_t *words;
    size_t n;
    size_t sections[SECTIONS + 1]; /* where each begins; the last: where the digest is */
};

/* Finds the sections; false: it is no image. */
bool image_take_apart(struct image *image);
struct damage damage_by_chance(struct chances *r, const struct image *bases, unsigned n_bases);
/* `to` gets room of its own. */
void damage_do(const struct damage *d, const struct image *from, struct image *to);
void damage_write(const struct damage *d, char *to, size_t room);
bool damage_read(struct damage *d, const char *text);

#endif
