/* Double precision in the rounding modes other than to nearest: the processor's own, for which LLVM has no vector code. */
#include "exec_private.h"

#include <math.h>

#define SOFT_EXPORT __attribute__((visibility("default")))

/* mxcsr's rounding control is numbered as SOFT_ROUND_* is; subnormal numbers are never flushed. Operands pass through volatile variables, or the compiler would compute before the mode is set. */
SOFT_EXPORT void soft_f64(uint32_t op, uint32_t mode, uint32_t lanes, const double *a, const double *b, const double *c, double *out) {
    uint32_t before = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr((before & ~0xE040u) | mode << 13);
    for (uint32_t todo = lanes; todo; todo &= todo - 1) {
        uint32_t i = (uint32_t)__builtin_ctz(todo);
        volatile double x = a[i], y = b[i], z = c[i], r;
        switch (op) {
        case SOFT_F64_MUL: r = x * y; break;
        case SOFT_F64_DIV: r = x / y; break;
        case SOFT_F64_FMA: r = fma(x, y, z); break;
        case SOFT_F64_SQRT: r = sqrt(x); break;
        default: r = x + y; break;
        }
        out[i] = r;
    }
    __builtin_ia32_ldmxcsr(before);
}
