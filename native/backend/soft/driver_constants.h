/* Constants of the CUDA driver API that the soft backend uses, under their CUDA names. It is compiled without cuda.h. */
#ifndef SOFT_DRIVER_CONSTANTS_H
#define SOFT_DRIVER_CONSTANTS_H

#include "gv_results.h"

enum { /* flags of streams and events */
       CU_STREAM_NON_BLOCKING = 1,
       CU_EVENT_DISABLE_TIMING = 2,
       CU_EVENT_INTERPROCESS = 4,
};

enum { /* CUlimit */
       CU_LIMIT_MALLOC_HEAP_SIZE = 2,
};

enum { /* CUfunction_attribute that can be set */
       CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
       CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT = 9,
       CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH = 11,
       CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH = 13,
       CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14,
       CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE = 15,
};

/* CUstreamWaitValue_flags */
enum { CU_STREAM_WAIT_VALUE_GEQ = 0, CU_STREAM_WAIT_VALUE_EQ = 1, CU_STREAM_WAIT_VALUE_AND = 2 };

#endif
