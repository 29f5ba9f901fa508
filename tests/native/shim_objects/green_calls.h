/* The cases of test_calls that are about green contexts and events of contexts. */
#ifndef GREEN_CALLS_H
#define GREEN_CALLS_H

void green_contexts(void);

#endif
