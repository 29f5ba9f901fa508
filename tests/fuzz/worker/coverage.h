/* Which code was reached: where the compiler has put a call at every edge (-fsanitize-coverage=trace-pc), each sets a byte of a map that is shared with
 * forked children. */
#ifndef COVERAGE_H
#define COVERAGE_H

#include <stdint.h>

#define COVERAGE_SIZE 65536u

/* Several maps, for as many children at a time. */
void coverage_start(unsigned maps);
/* From here on this process, and what it forks, writes to that map, which is clear. */
void coverage_use(unsigned map);
/* What was reached there, added to `all` (COVERAGE_SIZE bytes); how much of it is new. */
uint32_t coverage_add(unsigned map, uint8_t *all);

#endif
