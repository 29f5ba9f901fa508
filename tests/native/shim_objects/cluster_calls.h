#ifndef CLUSTER_CALLS_H
#define CLUSTER_CALLS_H

/* Thread block clusters: launches that name them, graphs that keep them, what fits. A context of device 0 is current. */
void clusters(void);

#endif
