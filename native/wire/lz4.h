/* The LZ4 block format, for images of modules on links where sending costs more than packing. */
#ifndef GV_LZ4_H
#define GV_LZ4_H

#include <stddef.h>
#include <stdint.h>

/* Packs `size` bytes into at most `room` bytes at `out`. Returns the packed size, 0 when it does not fit. */
size_t gv_lz4_pack(const void *data, size_t size, void *out, size_t room);
/* Unpacks exactly `size` bytes. 0, or -1 when the packed bytes are invalid. The input is untrusted: writes only to [out, out + size). */
int gv_lz4_unpack(const void *packed, size_t packed_size, void *out, size_t size);

#endif
