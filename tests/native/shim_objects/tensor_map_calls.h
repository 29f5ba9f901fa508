/* The cases of test_calls that are about tensor maps. */
#ifndef TENSOR_MAP_CALLS_H
#define TENSOR_MAP_CALLS_H

void tensor_maps(void);

#endif
