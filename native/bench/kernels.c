/* The kernels that are measured, as PTX. gemm, add_rows, ... make up the step of a small neural network (training.c); one thread makes one element
 * of a result, and sums are taken in index order, so that a CPU can make the same bits. */
#include "bench.h"

/* One thread an element: %r0 is its number; threads behind the last one leave. */
#define ELEMENT                         \
    " mov.u32 %r1, %ctaid.x;\n"         \
    " mov.u32 %r2, %ntid.x;\n"          \
    " mov.u32 %r3, %tid.x;\n"           \
    " mad.lo.u32 %r0, %r1, %r2, %r3;\n" \
    " ld.param.u32 %r4, [n];\n"         \
    " setp.ge.u32 %p0, %r0, %r4;\n"     \
    "@%p0 ret;\n"

#define REGISTERS " .reg .pred %p<4>;\n .reg .b32 %r<32>;\n .reg .b64 %d<16>;\n .reg .f32 %f<16>;\n"

/* register = address of parameter's element `index`. */
#define AT(register, parameter, index) " ld.param.u64 " register ", [" parameter "];\n mad.wide.u32 " register ", " index ", 4, " register ";\n"

const char kernels[] =
    ".version 7.0\n.target sm_75\n.address_size 64\n"

    ".visible .entry nothing(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 d, .param .u32 e, .param .f32 f, .param .f32 g, .param .u32 "
    "h)\n"
    "{\n ret;\n}\n"

    /* out[i * columns + j] = sum over k of a[i * a_row + k * a_step] * b[k * b_step + j * b_column]; n = rows * columns */
    ".visible .entry gemm(.param .u64 out, .param .u64 a, .param .u64 b, .param .u32 n, .param .u32 columns, .param .u32 depth, .param .u32 a_row,\n"
    "  .param .u32 a_step, .param .u32 b_step, .param .u32 b_column)\n{\n" REGISTERS ELEMENT " ld.param.u32 %r5, [columns];\n"
    " div.u32 %r6, %r0, %r5;\n" /* i */
    " mul.lo.u32 %r7, %r6, %r5;\n"
    " sub.u32 %r7, %r0, %r7;\n" /* j */
    " ld.param.u32 %r8, [depth];\n"
    " ld.param.u32 %r9, [a_row];\n"
    " ld.param.u32 %r10, [a_step];\n"
    " ld.param.u32 %r11, [b_step];\n"
    " ld.param.u32 %r12, [b_column];\n"
    " mul.lo.u32 %r13, %r6, %r9;\n"
    " mul.lo.u32 %r14, %r7, %r12;\n" AT("%d0", "a", "%r13") AT(
        "%d1", "b",
        "%r14") " mul.wide.u32 %d2, %r10, 4;\n"
                " mul.wide.u32 %d3, %r11, 4;\n"
                " mov.f32 %f0, 0f00000000;\n"
                " mov.u32 %r15, 0;\n"
                "next:\n"
                " ld.global.f32 %f1, [%d0];\n"
                " ld.global.f32 %f2, [%d1];\n"
                " fma.rn.f32 %f0, %f1, %f2, %f0;\n"
                " add.u64 %d0, %d0, %d2;\n"
                " add.u64 %d1, %d1, %d3;\n"
                " add.u32 %r15, %r15, 1;\n"
                " setp.lt.u32 %p1, %r15, %r8;\n"
                "@%p1 bra next;\n" AT(
                    "%d4", "out",
                    "%r0") " st.global.f32 [%d4], %f0;\n ret;\n}\n"

                           /* x[i * columns + j] += row[j] */
                           ".visible .entry add_rows(.param .u64 x, .param .u64 row, .param .u32 n, .param .u32 columns)\n{\n" REGISTERS ELEMENT
                           " ld.param.u32 %r5, [columns];\n"
                           " rem.u32 %r6, %r0, %r5;\n" AT("%d0", "x", "%r0") AT(
                               "%d1", "row",
                               "%r6") " ld.global.f32 %f0, [%d0];\n"
                                      " ld.global.f32 %f1, [%d1];\n"
                                      " add.rn.f32 %f0, %f0, %f1;\n"
                                      " st.global.f32 [%d0], %f0;\n ret;\n}\n"

                                      /* out = max(x, 0) */
                                      ".visible .entry relu(.param .u64 out, .param .u64 x, .param .u32 n)\n{\n" REGISTERS ELEMENT AT("%d0", "out",
                                                                                                                                      "%r0")
                                          AT("%d1", "x",
                                             "%r0") " ld.global.f32 %f0, [%d1];\n"
                                                    " max.f32 %f0, %f0, 0f00000000;\n"
                                                    " st.global.f32 [%d0], %f0;\n ret;\n}\n"

                                                    /* gradient = 0 where x <= 0 */
                                                    ".visible .entry relu_back(.param .u64 gradient, .param .u64 x, .param .u32 n)\n{\n" REGISTERS
                                                        ELEMENT AT("%d0", "gradient", "%r0") AT(
                                                            "%d1", "x",
                                                            "%r0") " ld.global.f32 %f0, [%d1];\n"
                                                                   " setp.gt.f32 %p1, %f0, 0f00000000;\n"
                                                                   "@%p1 ret;\n"
                                                                   " mov.f32 %f1, 0f00000000;\n"
                                                                   " st.global.f32 [%d0], %f1;\n ret;\n}\n"

                                                                   /* out = x - y */
                                                                   ".visible .entry subtract(.param .u64 out, .param .u64 x, .param .u64 y, .param "
                                                                   ".u32 n)\n{\n" REGISTERS ELEMENT AT("%d0", "out", "%r0") AT("%d1", "x", "%r0") AT(
                                                                       "%d2", "y",
                                                                       "%r0") " ld.global.f32 %f0, [%d1];\n"
                                                                              " ld.global.f32 %f1, [%d2];\n"
                                                                              " sub.rn.f32 %f0, %f0, %f1;\n"
                                                                              " st.global.f32 [%d0], %f0;\n ret;\n}\n"

                                                                              /* x *= by */
                                                                              ".visible .entry scale(.param .u64 x, .param .f32 by, .param .u32 "
                                                                              "n)\n{\n" REGISTERS ELEMENT AT(
                                                                                  "%d0", "x",
                                                                                  "%r0") " ld.param.f32 %f1, [by];\n"
                                                                                         " ld.global.f32 %f0, [%d0];\n"
                                                                                         " mul.rn.f32 %f0, %f0, %f1;\n"
                                                                                         " st.global.f32 [%d0], %f0;\n ret;\n}\n"

                                                                                         /* x += by * y */
                                                                                         ".visible .entry axpy(.param .u64 x, .param .u64 y, .param "
                                                                                         ".f32 by, .param .u32 n)\n{\n" REGISTERS ELEMENT AT(
                                                                                             "%d0", "x", "%r0")
                                                                                             AT("%d1", "y",
                                                                                                "%r0") " ld.param.f32 %f2, [by];\n"
                                                                                                       " ld.global.f32 %f0, [%d0];\n"
                                                                                                       " ld.global.f32 %f1, [%d1];\n"
                                                                                                       " fma.rn.f32 %f0, %f2, %f1, %f0;\n"
                                                                                                       " st.global.f32 [%d0], %f0;\n ret;\n}\n"

                                                                                                       /* out[j] = sum over i of x[i * n + j], `rows` of them */
                                                                                                       ".visible .entry column_sums(.param .u64 out, "
                                                                                                       ".param .u64 x, .param .u32 n, .param .u32 "
                                                                                                       "rows)\n{\n" REGISTERS ELEMENT AT("%d0", "out",
                                                                                                                                         "%r0")
                                                                                                           AT("%d1", "x",
                                                                                                              "%r0") " ld.param.u32 %r5, [rows];\n"
                                                                                                                     " mul.wide.u32 %d2, %r4, 4;\n"
                                                                                                                     " mov.f32 %f0, 0f00000000;\n"
                                                                                                                     " mov.u32 %r6, 0;\n"
                                                                                                                     "next:\n"
                                                                                                                     " ld.global.f32 %f1, [%d1];\n"
                                                                                                                     " add.rn.f32 %f0, %f0, %f1;\n"
                                                                                                                     " add.u64 %d1, %d1, %d2;\n"
                                                                                                                     " add.u32 %r6, %r6, 1;\n"
                                                                                                                     " setp.lt.u32 %p1, %r6, %r5;\n"
                                                                                                                     "@%p1 bra next;\n"
                                                                                                                     " st.global.f32 [%d0], %f0;\n "
                                                                                                                     "ret;\n}\n"

                                                                                                                     /* out[0] = by * sum over x * x, `length` of them; n is 1 */
                                                                                                                     ".visible .entry "
                                                                                                                     "sum_squares(.param .u64 out, "
                                                                                                                     ".param .u64 x, .param .f32 by, "
                                                                                                                     ".param .u32 n, .param .u32 "
                                                                                                                     "length)\n{\n" REGISTERS ELEMENT
                                                                                                                         AT("%d0", "out", "%r0") AT(
                                                                                                                             "%d1", "x",
                                                                                                                             "%r0") " ld.param.u32 "
                                                                                                                                    "%r5, [length];\n"
                                                                                                                                    " ld.param.f32 "
                                                                                                                                    "%f2, [by];\n"
                                                                                                                                    " mov.f32 %f0, "
                                                                                                                                    "0f00000000;\n"
                                                                                                                                    " mov.u32 %r6, "
                                                                                                                                    "0;\n"
                                                                                                                                    "next:\n"
                                                                                                                                    " ld.global.f32 "
                                                                                                                                    "%f1, [%d1];\n"
                                                                                                                                    " fma.rn.f32 "
                                                                                                                                    "%f0, %f1, %f1, "
                                                                                                                                    "%f0;\n"
                                                                                                                                    " add.u64 %d1, "
                                                                                                                                    "%d1, 4;\n"
                                                                                                                                    " add.u32 %r6, "
                                                                                                                                    "%r6, 1;\n"
                                                                                                                                    " setp.lt.u32 "
                                                                                                                                    "%p1, %r6, %r5;\n"
                                                                                                                                    "@%p1 bra next;\n"
                                                                                                                                    " mul.rn.f32 "
                                                                                                                                    "%f0, %f0, %f2;\n"
                                                                                                                                    " st.global.f32 "
                                                                                                                                    "[%d0], %f0;\n "
                                                                                                                                    "ret;\n}\n";
