/* Why a call fails, in words: kept until the thread's next call that is traced. Only where a call is refused, so that nothing is paid for it else. */
#include <stdarg.h>
#include <stdio.h>

#include "objects/shim.h"

static _Thread_local char text[160];

void call_because(const char *format, ...) {
    va_list args;
    text[0] = 0;
    if (!format) return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
}

const char *call_reason(void) { return text[0] ? text : NULL; }
