/* The real driver, opened by absolute path: never by name, so that our own libcuda.so.1 is not taken for it. */
#ifndef CUDA_DRIVER_H
#define CUDA_DRIVER_H

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>

/* Every driver function the backend calls: member, exported symbol, arguments. All exist since driver 12.4. */
#define DRIVER_FUNCTIONS(F)                                                                                                                   \
    F(init, cuInit, (unsigned))                                                                                                               \
    F(driver_version, cuDriverGetVersion, (int *))                                                                                            \
    F(error_name, cuGetErrorName, (CUresult, const char **))                                                                                  \
    F(error_string, cuGetErrorString, (CUresult, const char **))                                                                              \
    F(device_count, cuDeviceGetCount, (int *))                                                                                                \
    F(device_get, cuDeviceGet, (CUdevice *, int))                                                                                             \
    F(device_name, cuDeviceGetName, (char *, int, CUdevice))                                                                                  \
    F(device_uuid, cuDeviceGetUuid_v2, (CUuuid *, CUdevice))                                                                                  \
    F(device_memory, cuDeviceTotalMem_v2, (size_t *, CUdevice))                                                                               \
    F(device_attribute, cuDeviceGetAttribute, (int *, CUdevice_attribute, CUdevice))                                                          \
    F(primary_retain, cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                                                                      \
    F(primary_release, cuDevicePrimaryCtxRelease_v2, (CUdevice))                                                                              \
    F(context_create, cuCtxCreate_v2, (CUcontext *, unsigned, CUdevice))                                                                      \
    F(context_destroy, cuCtxDestroy_v2, (CUcontext))                                                                                          \
    F(context_set, cuCtxSetCurrent, (CUcontext))                                                                                              \
    F(context_set_limit, cuCtxSetLimit, (CUlimit, size_t))                                                                                    \
    F(context_get_limit, cuCtxGetLimit, (size_t *, CUlimit))                                                                                  \
    F(context_synchronize, cuCtxSynchronize, (void))                                                                                          \
    F(memory_info, cuMemGetInfo_v2, (size_t *, size_t *))                                                                                     \
    F(memory_alloc, cuMemAlloc_v2, (CUdeviceptr *, size_t))                                                                                   \
    F(memory_free, cuMemFree_v2, (CUdeviceptr))                                                                                               \
    F(pointer_attribute, cuPointerGetAttribute, (void *, CUpointer_attribute, CUdeviceptr))                                                   \
    F(address_reserve, cuMemAddressReserve, (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long))                                 \
    F(address_free, cuMemAddressFree, (CUdeviceptr, size_t))                                                                                  \
    F(memory_create, cuMemCreate, (CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long))                  \
    F(memory_release, cuMemRelease, (CUmemGenericAllocationHandle))                                                                           \
    F(memory_map, cuMemMap, (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long))                                  \
    F(memory_unmap, cuMemUnmap, (CUdeviceptr, size_t))                                                                                        \
    F(memory_access, cuMemSetAccess, (CUdeviceptr, size_t, const CUmemAccessDesc *, size_t))                                                  \
    F(memory_granularity, cuMemGetAllocationGranularity, (size_t *, const CUmemAllocationProp *, CUmemAllocationGranularity_flags))           \
    F(memory_export, cuMemExportToShareableHandle, (void *, CUmemGenericAllocationHandle, CUmemAllocationHandleType, unsigned long long))     \
    F(memory_import, cuMemImportFromShareableHandle, (CUmemGenericAllocationHandle *, void *, CUmemAllocationHandleType))                     \
    F(memory_range, cuMemGetHandleForAddressRange, (void *, CUdeviceptr, size_t, CUmemRangeHandleType, unsigned long long))                   \
    F(flush_writes, cuFlushGPUDirectRDMAWrites, (CUflushGPUDirectRDMAWritesTarget, CUflushGPUDirectRDMAWritesScope))                          \
    F(host_alloc, cuMemHostAlloc, (void **, size_t, unsigned))                                                                                \
    F(host_free, cuMemFreeHost, (void *))                                                                                                     \
    F(host_address, cuMemHostGetDevicePointer_v2, (CUdeviceptr *, void *, unsigned))                                                          \
    F(stream_create, cuStreamCreateWithPriority, (CUstream *, unsigned, int))                                                                 \
    F(stream_destroy, cuStreamDestroy_v2, (CUstream))                                                                                         \
    F(stream_query, cuStreamQuery, (CUstream))                                                                                                \
    F(stream_wait_event, cuStreamWaitEvent, (CUstream, CUevent, unsigned))                                                                    \
    F(memory_operations, cuStreamBatchMemOp_v2, (CUstream, unsigned, CUstreamBatchMemOpParams *, unsigned))                                   \
    F(event_create, cuEventCreate, (CUevent *, unsigned))                                                                                     \
    F(event_destroy, cuEventDestroy_v2, (CUevent))                                                                                            \
    F(event_record, cuEventRecord, (CUevent, CUstream))                                                                                       \
    F(event_query, cuEventQuery, (CUevent))                                                                                                   \
    F(event_synchronize, cuEventSynchronize, (CUevent))                                                                                       \
    F(event_elapsed, cuEventElapsedTime, (float *, CUevent, CUevent))                                                                         \
    F(copy_in, cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void *, size_t, CUstream))                                                           \
    F(copy_out, cuMemcpyDtoHAsync_v2, (void *, CUdeviceptr, size_t, CUstream))                                                                \
    F(copy_device, cuMemcpyDtoDAsync_v2, (CUdeviceptr, CUdeviceptr, size_t, CUstream))                                                        \
    F(copy_peer, cuMemcpyPeerAsync, (CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t, CUstream))                                       \
    F(copy_3d, cuMemcpy3DAsync_v2, (const CUDA_MEMCPY3D *, CUstream))                                                                         \
    F(copy_3d_peer, cuMemcpy3DPeerAsync, (const CUDA_MEMCPY3D_PEER *, CUstream))                                                              \
    F(fill_8, cuMemsetD2D8Async, (CUdeviceptr, size_t, unsigned char, size_t, size_t, CUstream))                                              \
    F(fill_16, cuMemsetD2D16Async, (CUdeviceptr, size_t, unsigned short, size_t, size_t, CUstream))                                           \
    F(fill_32, cuMemsetD2D32Async, (CUdeviceptr, size_t, unsigned, size_t, size_t, CUstream))                                                 \
    F(fill_row_8, cuMemsetD8Async, (CUdeviceptr, unsigned char, size_t, CUstream))                                                            \
    F(fill_row_16, cuMemsetD16Async, (CUdeviceptr, unsigned short, size_t, CUstream))                                                         \
    F(fill_row_32, cuMemsetD32Async, (CUdeviceptr, unsigned, size_t, CUstream))                                                               \
    F(module_load, cuModuleLoadDataEx, (CUmodule *, const void *, unsigned, CUjit_option *, void **))                                         \
    F(module_unload, cuModuleUnload, (CUmodule))                                                                                              \
    F(module_global, cuModuleGetGlobal_v2, (CUdeviceptr *, size_t *, CUmodule, const char *))                                                 \
    F(link_create, cuLinkCreate_v2, (unsigned, CUjit_option *, void **, CUlinkState *))                                                       \
    F(link_add, cuLinkAddData_v2, (CUlinkState, CUjitInputType, void *, size_t, const char *, unsigned, CUjit_option *, void **))             \
    F(link_complete, cuLinkComplete, (CUlinkState, void **, size_t *))                                                                        \
    F(link_destroy, cuLinkDestroy, (CUlinkState))                                                                                             \
    F(function_count, cuModuleGetFunctionCount, (unsigned *, CUmodule))                                                                       \
    F(functions, cuModuleEnumerateFunctions, (CUfunction *, unsigned, CUmodule))                                                              \
    F(function_name, cuFuncGetName, (const char **, CUfunction))                                                                              \
    F(function_param, cuFuncGetParamInfo, (CUfunction, size_t, size_t *, size_t *))                                                           \
    F(function_attribute, cuFuncGetAttribute, (int *, CUfunction_attribute, CUfunction))                                                      \
    F(function_set_attribute, cuFuncSetAttribute, (CUfunction, CUfunction_attribute, int))                                                    \
    F(launch, cuLaunchKernel, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **)) \
    F(launch_cooperative, cuLaunchCooperativeKernel,                                                                                          \
      (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **))                                  \
    F(launch_ex, cuLaunchKernelEx, (const CUlaunchConfig *, CUfunction, void **, void **))                                                    \
    F(active_clusters, cuOccupancyMaxActiveClusters, (int *, CUfunction, const CUlaunchConfig *))                                             \
    F(cluster_size, cuOccupancyMaxPotentialClusterSize, (int *, CUfunction, const CUlaunchConfig *))                                          \
    F(launch_host, cuLaunchHostFunc, (CUstream, CUhostFn, void *))

/* Of references, which later drivers may lack: NULL then. */
#define DRIVER_REFERENCE_FUNCTIONS(F)                                                                          \
    F(texture_reference, cuModuleGetTexRef, (CUtexref *, CUmodule, const char *))                              \
    F(reference_array, cuTexRefSetArray, (CUtexref, CUarray, unsigned))                                        \
    F(reference_levels, cuTexRefSetMipmappedArray, (CUtexref, CUmipmappedArray, unsigned))                     \
    F(reference_address, cuTexRefSetAddress_v2, (size_t *, CUtexref, CUdeviceptr, size_t))                     \
    F(reference_rows, cuTexRefSetAddress2D_v3, (CUtexref, const CUDA_ARRAY_DESCRIPTOR *, CUdeviceptr, size_t)) \
    F(reference_format, cuTexRefSetFormat, (CUtexref, CUarray_format, int))                                    \
    F(reference_mode, cuTexRefSetAddressMode, (CUtexref, int, CUaddress_mode))                                 \
    F(reference_filter, cuTexRefSetFilterMode, (CUtexref, CUfilter_mode))                                      \
    F(reference_mip_filter, cuTexRefSetMipmapFilterMode, (CUtexref, CUfilter_mode))                            \
    F(reference_bias, cuTexRefSetMipmapLevelBias, (CUtexref, float))                                           \
    F(reference_clamp, cuTexRefSetMipmapLevelClamp, (CUtexref, float, float))                                  \
    F(reference_anisotropy, cuTexRefSetMaxAnisotropy, (CUtexref, unsigned))                                    \
    F(reference_border, cuTexRefSetBorderColor, (CUtexref, float *))                                           \
    F(reference_flags, cuTexRefSetFlags, (CUtexref, unsigned))                                                 \
    F(surface_reference, cuModuleGetSurfRef, (CUsurfref *, CUmodule, const char *))                            \
    F(reference_surface, cuSurfRefSetArray, (CUsurfref, CUarray, unsigned))

#define DRIVER_TEXTURE_FUNCTIONS(F)                                                                                                               \
    F(texture_create, cuTexObjectCreate, (CUtexObject *, const CUDA_RESOURCE_DESC *, const CUDA_TEXTURE_DESC *, const CUDA_RESOURCE_VIEW_DESC *)) \
    F(array_create, cuArray3DCreate_v2, (CUarray *, const CUDA_ARRAY3D_DESCRIPTOR *))                                                             \
    F(array_destroy, cuArrayDestroy, (CUarray))                                                                                                   \
    F(levels_create, cuMipmappedArrayCreate, (CUmipmappedArray *, const CUDA_ARRAY3D_DESCRIPTOR *, unsigned))                                     \
    F(levels_get, cuMipmappedArrayGetLevel, (CUarray *, CUmipmappedArray, unsigned))                                                              \
    F(levels_destroy, cuMipmappedArrayDestroy, (CUmipmappedArray))                                                                                \
    F(surface_create, cuSurfObjectCreate, (CUsurfObject *, const CUDA_RESOURCE_DESC *))                                                           \
    F(surface_destroy, cuSurfObjectDestroy, (CUsurfObject))                                                                                       \
    F(texture_destroy, cuTexObjectDestroy, (CUtexObject))                                                                                         \
    F(tensor_map, cuTensorMapEncodeTiled,                                                                                                         \
      (CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *, const cuuint64_t *, const cuuint32_t *, const cuuint32_t *,    \
       CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill))                                               \
    F(tensor_map_im2col, cuTensorMapEncodeIm2col,                                                                                                 \
      (CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *, const cuuint64_t *, const int *, const int *, cuuint32_t,      \
       cuuint32_t, const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill))               \
    F(tensor_map_address, cuTensorMapReplaceAddress, (CUtensorMap *, void *))

struct driver {
    void *library;
#define DRIVER_MEMBER(member, symbol, arguments) CUresult(*member) arguments;
    DRIVER_FUNCTIONS(DRIVER_MEMBER)
    DRIVER_TEXTURE_FUNCTIONS(DRIVER_MEMBER)
    DRIVER_REFERENCE_FUNCTIONS(DRIVER_MEMBER)
    bool has_references; /* all of the last list */
#undef DRIVER_MEMBER
};

/* Opens the library at `path`, or the system's driver when path is NULL. 0, or a CUresult and a line in err. */
int driver_open(struct driver *d, const char *path, char *err, size_t err_size);

#endif
