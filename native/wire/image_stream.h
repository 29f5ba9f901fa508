/* The bytes of a session's image, to and from a descriptor (a file, or a stream socket): numbers and blocks of bytes, little-endian, each a multiple of
 * eight bytes, with a digest of all of them at the end. Who reads believes nothing: every size is checked against a bound that the caller names, and
 * after the first thing that is wrong everything that is read is 0.
 *
 * native/worker/image/format.h says what follows what. */
#ifndef GV_IMAGE_STREAM_H
#define GV_IMAGE_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GV_IMAGE_BUFFER (256u << 10)
#define GV_IMAGE_WHY 200

struct gv_image_out {
    int fd;
    int64_t until; /* gv_now_ns: a reader that is slower than this has the image given up */
    uint64_t digest, bytes;
    size_t filled;
    bool failed;
    char why[GV_IMAGE_WHY]; /* the first thing that went wrong */
    uint8_t *buffer;
};

struct gv_image_in {
    int fd;
    int64_t until;
    uint64_t digest, bytes;
    size_t at, end; /* of the buffer: read and not yet handed out */
    bool failed;
    char why[GV_IMAGE_WHY];
    uint8_t *buffer;
};

/* The descriptor stays the caller's, and blocks no longer. False: no memory. */
bool gv_image_out_open(struct gv_image_out *out, int fd, int64_t until);
void gv_image_put(struct gv_image_out *out, uint64_t value);
void gv_image_put_bytes(struct gv_image_out *out, const void *data, uint64_t size); /* the size is not written */
/* Writes the digest and what is buffered, and frees the buffer. False: some of it could not be written. */
bool gv_image_out_close(struct gv_image_out *out);
/* Gives the image up, with a reason; a later one changes nothing. */
void gv_image_out_fail(struct gv_image_out *out, const char *why);

bool gv_image_in_open(struct gv_image_in *in, int fd, int64_t until);
/* A number, at most `most`. */
uint64_t gv_image_get(struct gv_image_in *in, uint64_t most);
/* As many bytes as the caller has room for. False: they are not there, and `data` is all zeros. */
bool gv_image_get_bytes(struct gv_image_in *in, void *data, uint64_t size);
/* As many bytes in memory of their own (free), with one of zero behind them; no more memory than twice what has come. NULL: they are not there. */
void *gv_image_get_block(struct gv_image_in *in, uint64_t size);
/* Whether the digest is the one of what was read; frees the buffer. False, with a reason, also when something was wrong before. */
bool gv_image_in_close(struct gv_image_in *in);
void gv_image_in_fail(struct gv_image_in *in, const char *why);

#endif
