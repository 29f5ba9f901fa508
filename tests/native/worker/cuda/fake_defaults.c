/* Whatever fake_driver.c does not define does nothing, and says that it went well. */
#include "../../../../native/backend/cuda/driver.h"

#define DEFAULT(member, symbol, arguments) \
    __attribute__((weak)) CUresult symbol arguments { return CUDA_SUCCESS; }
DRIVER_FUNCTIONS(DEFAULT)
DRIVER_TEXTURE_FUNCTIONS(DEFAULT)
DRIVER_REFERENCE_FUNCTIONS(DEFAULT)
