/* Between the target (decode.c) and its driver. */
#ifndef FUZZ_H
#define FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
/* How many command decoders are built in: 0 where the generated sources were not at hand. */
unsigned fuzz_decoders(void);

#endif
