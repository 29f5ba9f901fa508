/* The cases of test_calls that are about memory pools. */
#ifndef POOL_CALLS_H
#define POOL_CALLS_H

void pools(void);

#endif
