/* What programs say about managed memory and ask back. It changes no result and moves no byte by itself. */
#ifndef SHIM_ADVICE_H
#define SHIM_ADVICE_H

#include "objects/objects.h"

/* Whether all of [address, address + size) is in one managed allocation. 0 or CUDA_ERROR_INVALID_VALUE. */
int advice_range(CUdeviceptr address, size_t size);
/* Whether a place exists. 0 or a CUresult. */
int advice_location(CUmemLocation place);
/* A device, or CU_DEVICE_CPU. */
CUmemLocation advice_device(CUdevice device);
/* A checked range was prefetched to a place. */
void advice_prefetched(uint64_t address, uint64_t size, CUmemLocation to);

#endif
