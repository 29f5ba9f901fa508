/* Thread block clusters: what launches name reaches the worker, what is wrong does not, and the worker is asked what fits once. */
#include "cluster_calls.h"

#include <stdlib.h>

#include "check.h"
#include "fake_session.h"
#include "gv_impl.h"
#include "objects/shim.h"
#include "wire/cluster_dims.h"

static CUfunction add, clustered;
static uint64_t a = 1, c = 2;
static uint32_t b = 3;
static void *params[] = {&a, &b, &c};

static CUlaunchAttribute dims(CUlaunchAttributeID id, unsigned x, unsigned y, unsigned z) {
    CUlaunchAttribute out = {.id = id};
    out.value.clusterDim.x = x, out.value.clusterDim.y = y, out.value.clusterDim.z = z; /* the preferred one has the same form */
    return out;
}

static CUlaunchConfig config(CUlaunchAttribute *attrs, unsigned n) {
    return (CUlaunchConfig){
        .gridDimX = 16, .gridDimY = 4, .gridDimZ = 1, .blockDimX = 32, .blockDimY = 1, .blockDimZ = 1, .attrs = attrs, .numAttrs = n};
}

static int launch(CUfunction f, CUlaunchAttribute *attrs, unsigned n) {
    CUlaunchConfig all = config(attrs, n);
    return (int)impl_cuLaunchKernelEx(&all, f, params, NULL);
}

static int launch_dims(unsigned x, unsigned y, unsigned z) {
    CUlaunchAttribute d = dims(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, x, y, z);
    return launch(add, &d, 1);
}

static uint32_t word(unsigned x, unsigned y, unsigned z) { return x | y << 10 | z << 20; }

/* A device that has clusters from now on, or not. */
static void device(int has, int multiprocessors, int major) {
    struct gv_device_info *info = (struct gv_device_info *)(uintptr_t)device_info(0);
    info->attributes[CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH] = has;
    info->has_attribute[CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH] = 1;
    info->attributes[CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT] = multiprocessors;
    info->attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR] = major;
}

static void without(void) {
    fake_reset();
    EQUAL(launch_dims(2, 1, 1), CUDA_ERROR_NOT_SUPPORTED);
    EQUAL(launch_dims(1, 1, 0), CUDA_ERROR_INVALID_CLUSTER_SIZE);
    EQUAL(impl_cuLaunchKernel(clustered, 2, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_NOT_SUPPORTED); /* was compiled for clusters of two */
    EQUAL(fake.count[GV_OP_LAUNCH], 0);
    EQUAL(launch_dims(1, 1, 1), 0);
    EQUAL(fake.launch.cluster, 0);
    EQUAL(impl_cuFuncSetAttribute(add, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1), 0);
    EQUAL(impl_cuFuncSetAttribute(add, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 0), 0);
    EQUAL(fake.count[GV_OP_KERNEL_ATTRIBUTE], 0); /* the worker's device would not know it */
    int n = 7;
    CUlaunchAttribute d = dims(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, 2, 1, 1);
    CUlaunchConfig all = config(&d, 1);
    EQUAL(impl_cuOccupancyMaxActiveClusters(&n, add, &all), 0);
    EQUAL(n, 0);
    EQUAL(impl_cuOccupancyMaxPotentialClusterSize(&n, add, &all), 0);
    EQUAL(n, 1);
    EQUAL(fake.count[GV_OP_CLUSTER_COUNT], 0);
}

static void launches(void) {
    fake_reset();
    EQUAL(launch_dims(2, 4, 1), 0);
    EQUAL(fake.launch.cluster, word(2, 4, 1));
    EQUAL(fake.launch.preferred_cluster, 0);
    EQUAL(launch_dims(1, 1, 1), 0);
    EQUAL(fake.launch.cluster, word(1, 1, 1));
    EQUAL(impl_cuLaunchKernel(add, 3, 1, 1, 32, 1, 1, 0, NULL, params, NULL), 0);
    EQUAL(fake.launch.cluster, 0);
    EQUAL(fake.count[GV_OP_CLUSTER_COUNT], 0); /* so many fit everywhere */

    fake_reset();
    EQUAL(launch_dims(0, 1, 1), CUDA_ERROR_INVALID_CLUSTER_SIZE);
    EQUAL(launch_dims(3, 1, 1), CUDA_ERROR_INVALID_CLUSTER_SIZE); /* of 16 blocks */
    EQUAL(launch_dims(1, 1, 2), CUDA_ERROR_INVALID_CLUSTER_SIZE);
    EQUAL(launch_dims(16, 1, 1), CUDA_ERROR_INVALID_CLUSTER_SIZE); /* not on every device, and the program has not said that it may be so */
    EQUAL(fake.count[GV_OP_LAUNCH], 0);

    CUlaunchAttribute more[] = {dims(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, 2, 1, 1),
                                dims(CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION, 4, 1, 1),
                                {.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE,
                                 .value.clusterSchedulingPolicyPreference = CU_CLUSTER_SCHEDULING_POLICY_LOAD_BALANCING},
                                {.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE, .value.cooperative = 1}};
    EQUAL(launch(add, more, 4), 0);
    EQUAL(fake.launch.cluster, word(2, 1, 1) | 2u << 30);
    EQUAL(fake.launch.preferred_cluster, 0); /* 9.0 has no such clusters */
    EQUAL(fake.launch.cooperative, 1);
    device(1, 132, 10);
    EQUAL(launch(add, more, 4), 0);
    EQUAL(fake.launch.preferred_cluster, word(4, 1, 1));
    more[1] = dims(CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION, 3, 1, 1);
    EQUAL(launch(add, more, 4), CUDA_ERROR_INVALID_CLUSTER_SIZE); /* not made of clusters of two */
    device(1, 132, 9);
}

static void attributes(void) {
    int value = 7;
    fake_reset();
    EQUAL(impl_cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET, clustered), 0);
    EQUAL(value, 1);
    EQUAL(impl_cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, clustered), 0);
    EQUAL(value, 2);
    EQUAL(impl_cuFuncSetAttribute(clustered, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, 4), CUDA_ERROR_INVALID_VALUE);
    EQUAL(impl_cuLaunchKernel(clustered, 2, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL), 0);
    EQUAL(fake.launch.cluster, 0); /* the driver knows */
    EQUAL(impl_cuLaunchKernel(clustered, 3, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_INVALID_CLUSTER_SIZE);
    CUlaunchAttribute other = dims(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, 4, 1, 1);
    EQUAL(launch(clustered, &other, 1), CUDA_ERROR_INVALID_CLUSTER_SIZE);

    EQUAL(impl_cuFuncSetAttribute(add, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, 4), 0);
    EQUAL(fake.kernel_attribute_value, 4);
    EQUAL(launch_dims(4, 1, 1), CUDA_ERROR_INVALID_CLUSTER_SIZE); /* height and depth are 0 */
    EQUAL(impl_cuFuncSetAttribute(add, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT, 1), 0);
    EQUAL(impl_cuFuncSetAttribute(add, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH, 1), 0);
    EQUAL(launch_dims(4, 1, 1), 0);
    EQUAL(launch_dims(2, 1, 1), CUDA_ERROR_INVALID_CLUSTER_SIZE);
    for (int i = CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH; i <= CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH; i++)
        EQUAL(impl_cuFuncSetAttribute(add, (CUfunction_attribute)i, 0), 0);
    EQUAL(launch_dims(2, 1, 1), 0);
}

/* Sixteen blocks are for some devices: the worker is asked, once for each shape. */
static void fits(void) {
    fake_reset();
    EQUAL(impl_cuFuncSetAttribute(add, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1), 0);
    EQUAL(fake.count[GV_OP_KERNEL_ATTRIBUTE], 1);
    fake.clusters = 5;
    EQUAL(launch_dims(16, 1, 1), 0);
    EQUAL(fake.launch.cluster, word(16, 1, 1));
    EQUAL(launch_dims(16, 1, 1), 0);
    EQUAL(fake.count[GV_OP_CLUSTER_COUNT], 1);
    int n = 0;
    CUlaunchAttribute d = dims(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, 16, 1, 1);
    CUlaunchConfig all = config(&d, 1);
    EQUAL(impl_cuOccupancyMaxActiveClusters(&n, add, &all), 0);
    EQUAL(n, 5);
    EQUAL(fake.count[GV_OP_CLUSTER_COUNT], 1);
    EQUAL(impl_cuOccupancyMaxPotentialClusterSize(&n, add, &all), 0);
    EQUAL(fake.count[GV_OP_CLUSTER_COUNT], 2);
    EQUAL(fake.query.potential, 1);
    EQUAL(fake.query.cluster, 0);
    fake.clusters = 0;
    EQUAL(launch_dims(8, 2, 1), CUDA_ERROR_INVALID_CLUSTER_SIZE); /* none fits */
    EQUAL(impl_cuFuncSetAttribute(add, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 0), 0);
    device(1, 14, 9);
    EQUAL(launch_dims(2, 1, 1), CUDA_ERROR_INVALID_CLUSTER_SIZE); /* a small part of a device: it is asked for every size */
    EQUAL(fake.query.cluster, word(2, 1, 1));
    device(1, 132, 9);
    fake.cluster_status = CUDA_ERROR_INVALID_CLUSTER_SIZE;
    EQUAL(impl_cuOccupancyMaxActiveClusters(&n, clustered, &all), CUDA_ERROR_INVALID_CLUSTER_SIZE);
    fake.cluster_status = 0;
    EQUAL(impl_cuOccupancyMaxActiveClusters(&n, clustered, &all), CUDA_ERROR_INVALID_CLUSTER_SIZE); /* known */
    EQUAL(impl_cuOccupancyMaxActiveClusters(NULL, add, &all), CUDA_ERROR_INVALID_VALUE);
    d.value.clusterDim.z = 0;
    EQUAL(impl_cuOccupancyMaxActiveClusters(&n, add, &all), CUDA_ERROR_INVALID_VALUE);
}

static void graphs(void) {
    CUstream s;
    CUgraph g;
    CUgraphNode node, other;
    CUgraphExec x;
    size_t n = 1;
    CUkernelNodeAttrValue value;
    EQUAL(impl_cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), 0);
    EQUAL(impl_cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_RELAXED), 0);
    CUlaunchAttribute d = dims(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, 2, 2, 1);
    CUlaunchConfig all = config(&d, 1);
    all.hStream = s;
    EQUAL(impl_cuLaunchKernelEx(&all, add, params, NULL), 0);
    EQUAL(impl_cuStreamEndCapture(s, &g), 0);
    EQUAL(impl_cuGraphGetNodes(g, &node, &n), 0);
    EQUAL(impl_cuGraphKernelNodeGetAttribute(node, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &value), 0);
    CHECK(value.clusterDim.x == 2 && value.clusterDim.y == 2 && value.clusterDim.z == 1);
    fake_reset();
    EQUAL(impl_cuGraphInstantiateWithFlags(&x, g, 0), 0);
    EQUAL(impl_cuGraphLaunch(x, s), 0);
    EQUAL(fake.launch.cluster, word(2, 2, 1));

    /* Other parameters, the same clusters. */
    CUDA_KERNEL_NODE_PARAMS p;
    EQUAL(impl_cuGraphKernelNodeGetParams_v2(node, &p), 0);
    p.gridDimY = 2;
    EQUAL(impl_cuGraphExecKernelNodeSetParams_v2(x, node, &p), 0);
    EQUAL(impl_cuGraphLaunch(x, s), 0);
    EQUAL(fake.launch.grid[1], 2);
    EQUAL(fake.launch.cluster, word(2, 2, 1));
    EQUAL(impl_cuGraphExecDestroy(x), 0);

    EQUAL(impl_cuGraphAddKernelNode_v2(&other, g, NULL, 0, &p), 0);
    EQUAL(impl_cuGraphKernelNodeCopyAttributes(other, node), 0);
    EQUAL(impl_cuGraphKernelNodeGetAttribute(other, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &value), 0);
    EQUAL(value.clusterDim.y, 2);
    value.clusterDim.x = 4;
    EQUAL(impl_cuGraphKernelNodeSetAttribute(node, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &value), 0);
    EQUAL(impl_cuGraphKernelNodeSetParams_v2(node, &p), 0);
    EQUAL(impl_cuGraphKernelNodeGetAttribute(node, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &value), 0);
    EQUAL(value.clusterDim.x, 4);
    value.clusterDim.z = 0;
    EQUAL(impl_cuGraphKernelNodeSetAttribute(node, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &value), CUDA_ERROR_INVALID_VALUE);
    EQUAL(impl_cuGraphDestroy(g), 0);
    EQUAL(impl_cuStreamDestroy(s), 0);
}

/* How multiprocessors are grouped is asked once, and only of devices that are no software. */
static void groups(void) {
    uint8_t *order = NULL, *group = NULL;
    struct gv_device_info *info = (struct gv_device_info *)(uintptr_t)device_info(0);
    fake_reset();
    EQUAL(processor_groups(&order, &group), CUDA_ERROR_NOT_SUPPORTED);
    EQUAL(fake.count[GV_OP_PROCESSOR_GROUPS], 0);
    info->flags &= ~GV_DEVICE_SOFTWARE;
    fake.groups_status = CUDA_ERROR_OUT_OF_MEMORY;
    EQUAL(processor_groups(&order, &group), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(!order && !group);
    fake.groups_status = 0;
    fake.groups = 66;
    for (int i = 0; i < 2; i++) {
        EQUAL(processor_groups(&order, &group), 0);
        EQUAL(fake.count[GV_OP_PROCESSOR_GROUPS], 2); /* the one that failed, and one */
        CHECK(order[65] == 195 && group[65] == 65 && !order[66] && !order[255] && !group[66] && !group[255]);
        free(order);
        free(group);
    }
}

void clusters(void) {
    CUmodule m;
    const struct gv_device_info before = *device_info(0);
    EQUAL(impl_cuModuleLoadData(&m, FAKE_PTX), 0);
    EQUAL(impl_cuModuleGetFunction(&add, m, "add"), 0);
    EQUAL(impl_cuModuleGetFunction(&clustered, m, "clustered"), 0);
    without();
    device(1, 132, 9);
    launches();
    attributes();
    fits();
    graphs();
    groups();
    EQUAL(impl_cuModuleUnload(m), 0);
    *(struct gv_device_info *)(uintptr_t)device_info(0) = before;
}
