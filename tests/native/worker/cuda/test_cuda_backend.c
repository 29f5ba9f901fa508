/* The cuda backend on a driver of the tests' own: test_cuda_backend DRIVER [case...]. What no GPU is needed for, and what a healthy GPU would not
 * show. Streams: test_cuda_streams.c; memory: test_cuda_memory.c. */
#include "wire/device_info.h"
#include "../../../../native/wire/module_meta.h"
#include "../../../../native/wire/memory_operation.h"
#include "backend_fixture.h"

static void links(void) {
    begin(0);
    struct gv_link_option options[] = {{.option = CU_JIT_OPTIMIZATION_LEVEL, .value = 3}, {.option = CU_JIT_GLOBAL_SYMBOL_ADDRESSES, .value = 4711}};
    struct gv_link_part parts[] = {{.type = 1, .name = "a", .data = "one", .size = 3, .options = options, .n_options = 2},
                                   {.type = 1, .name = "b", .data = "two", .size = 3}};
    struct gv_link_job job = {.inputs = parts, .n_inputs = 2, .options = options, .n_options = 2};
    struct gv_link_result *r = calloc(1, sizeof *r);
    CHECK(ops->link(context, &job, r) == 0);
    CHECK(r->size == 6 && !memcmp(r->image, "onetwo", 6)); /* copied before the driver's link was destroyed */
    CHECK_TEXT(r->info, "all is well");
    /* A client's numbers are handed on, a client's addresses never. */
    CHECK(fake_link.level == 3 && fake_link.own_options == 1 && !fake_link.addresses && !fake_link.created);
    free(r->image);
    *r = (struct gv_link_result){0};
    parts[1].name = "bad";
    CHECK(ops->link(context, &job, r) == 218 && !r->image && !fake_link.created);
    CHECK_TEXT(r->error, "bad is bad");
    free(r);
    end();
}

static void modules_and_launches(void) {
    begin(0);
    struct gv_module *m;
    void *meta;
    size_t size;
    char err[GV_ERR_SIZE] = "";
    CHECK(ops->module_load(context, "evil", 4, &m, &meta, &size, err) == 218);
    CHECK_TEXT(err, "line 1: not good");
    CHECK(ops->module_load(context, "good", 4, &m, &meta, &size, err) == 0);
    CHECK(gv_meta_check(meta, size) == 0);
    const struct gv_meta_header *header = meta;
    CHECK(header->n_kernels == 2 && header->n_params == 2 && !(header->flags & GV_META_GLOBALS_COMPLETE));
    const struct gv_meta_kernel *k = gv_meta_kernels(meta);
    CHECK(!strcmp(gv_meta_strings(meta) + k[0].name, "first") && k[0].n_params == 2 && k[0].param_bytes == 12 && k[0].max_threads == 1024);
    CHECK(!strcmp(gv_meta_strings(meta) + k[1].name, "second") && k[1].n_params == 0);
    CHECK(!k[0].cluster && !k[0].flags && k[1].cluster == (4 | 2 << 10 | 1 << 20) && k[1].flags == GV_META_KERNEL_NEEDS_CLUSTER);
    CHECK(gv_meta_params(meta)[1].offset == 8 && gv_meta_params(meta)[1].size == 4);
    free(meta);
    struct {
        uint64_t a;
        uint32_t b;
    } params = {4711, 2};
    struct gv_launch launch = {.module = m, .kernel = 0, .grid = {2, 3, 1}, .block = {32, 1, 1}, .shared = 5, .params = &params, .params_size = 12};
    CHECK(ops->launch(stream, &launch) == 0);
    CHECK(fake_launch.function == (CUfunction)1 && fake_launch.grid == 6 && fake_launch.block == 32 && fake_launch.shared == 5);
    CHECK(fake_launch.first == 4711 && !fake_launch.cooperative);
    launch.params_size = 8;
    CHECK(ops->launch(stream, &launch) == 1); /* the kernel takes more than was sent */
    launch.params_size = 12;
    launch.cooperative = 1;
    CHECK(ops->launch(stream, &launch) == 0);
    CHECK(fake_launch.first == 4711 && fake_launch.cooperative);
    launch.params_size = 8;
    CHECK(ops->launch(stream, &launch) == 1); /* the kernel takes more than was sent */
    launch.kernel = 2;
    CHECK(ops->launch(stream, &launch) == 400);
    ops->module_unload(m);
    end();
}

static bool are(const unsigned *dims, unsigned x, unsigned y, unsigned z) { return dims[0] == x && dims[1] == y && dims[2] == z; }

static void clusters(void) {
    begin(0);
    struct gv_module *m;
    void *meta;
    size_t size;
    char err[GV_ERR_SIZE] = "";
    CHECK(ops->module_load(context, "good", 4, &m, &meta, &size, err) == 0);
    free(meta);
    struct {
        uint64_t a;
        uint32_t b;
    } params = {4711, 2};
    struct gv_launch launch = {.module = m, .grid = {8, 2, 1}, .block = {32, 1, 1}, .shared = 5, .params = &params, .params_size = 12};
    launch.cluster = 4 | 2 << 10 | 1 << 20;
    CHECK(ops->launch(stream, &launch) == 0);
    CHECK(fake_launch.function == (CUfunction)1 && fake_launch.grid == 16 && fake_launch.block == 32 && fake_launch.shared == 5);
    CHECK(fake_launch.first == 4711 && fake_launch.attributes == 1 && are(fake_launch.cluster, 4, 2, 1) && !fake_launch.cooperative);
    launch.preferred_cluster = 8 | 2 << 10 | 1 << 20;
    launch.cluster |= 2u << 30;
    launch.cooperative = 1;
    CHECK(ops->launch(stream, &launch) == 0);
    CHECK(fake_launch.attributes == 4 && are(fake_launch.cluster, 4, 2, 1) && are(fake_launch.preferred, 8, 2, 1));
    CHECK(fake_launch.policy == 2 && fake_launch.cooperative && fake_launch.first == 4711);
    launch.preferred_cluster = 0;
    launch.cluster = 1u << 30; /* the policy alone */
    launch.cooperative = 0;
    CHECK(ops->launch(stream, &launch) == 0);
    CHECK(fake_launch.attributes == 1 && fake_launch.policy == 1 && are(fake_launch.cluster, 0, 0, 0));
    launch.params_size = 8;
    CHECK(ops->launch(stream, &launch) == 1); /* the kernel takes more than was sent */

    int32_t count = 0;
    struct gv_cluster_query query = {.grid = {8, 2, 1}, .block = {64, 1, 1}, .shared = 7, .cluster = 4 | 2 << 10 | 1 << 20};
    fake_clusters.count = 9;
    CHECK(ops->cluster_count(m, &query, &count) == 0 && count == 9);
    CHECK(!fake_clusters.potential && fake_clusters.grid == 16 && fake_clusters.block == 64 && fake_clusters.shared == 7);
    CHECK(fake_clusters.attributes == 1 && are(fake_clusters.cluster, 4, 2, 1));
    query.potential = 1;
    query.cluster = 0;
    CHECK(ops->cluster_count(m, &query, &count) == 0 && fake_clusters.potential && !fake_clusters.attributes);
    fake_clusters.fail = CUDA_ERROR_INVALID_CLUSTER_SIZE;
    CHECK(ops->cluster_count(m, &query, &count) == CUDA_ERROR_INVALID_CLUSTER_SIZE);
    fake_clusters.fail = 0;
    query.kernel = 2;
    CHECK(ops->cluster_count(m, &query, &count) == 400);
    ops->module_unload(m);
    end();
}

/* What the driver tells by a private table: taken where the table looks as it is known, and given back. */
static void groups_of_multiprocessors(void) {
    begin(0);
    uint8_t order[GV_PROCESSOR_GROUPS_MAX], groups[GV_PROCESSOR_GROUPS_MAX];
    uint32_t n = 0;
    CHECK(ops->processor_groups(context, order, groups, &n) == CUDA_ERROR_NOT_SUPPORTED); /* a driver without the table */
    fake_groups.slots = 13;
    CHECK(ops->processor_groups(context, order, groups, &n) == CUDA_ERROR_NOT_SUPPORTED); /* a shorter one */
    fake_groups.slots = 17;
    fake_groups.hollow = true;
    CHECK(ops->processor_groups(context, order, groups, &n) == CUDA_ERROR_NOT_SUPPORTED);
    fake_groups.hollow = false;
    fake_groups.fail = 1;
    CHECK(ops->processor_groups(context, order, groups, &n) == CUDA_ERROR_NOT_SUPPORTED);
    fake_groups.fail = 0;
    CHECK(ops->processor_groups(context, order, groups, &n) == 0);
    CHECK(n == 8 && order[0] == 100 && order[7] == 107 && groups[0] == 0 && groups[7] == 7 && !fake_groups.alive);
    fake_groups.slots = 0;
    end();
}

static void memory_operations(void) {
    begin(0);
    struct gv_memory_operation wanted[] = {{GV_WAIT_VALUE_64, CU_STREAM_WAIT_VALUE_NOR, 0x1000, 1ull << 40},
                                           {GV_WRITE_VALUE_32, CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER, 0x2000, 7},
                                           {GV_MEMORY_BARRIER, CU_STREAM_MEMORY_BARRIER_TYPE_GPU, 0, 0},
                                           {GV_FLUSH_REMOTE_WRITES, 0, 0, 0}};
    CHECK(ops->memory_operations(stream, wanted, sizeof wanted) == 0);
    const CUstreamBatchMemOpParams *o = fake_batch.operations;
    CHECK(fake_batch.n == 4 && fake_batch.flags == 0);
    CHECK(o[0].operation == CU_STREAM_MEM_OP_WAIT_VALUE_64 && o[0].waitValue.address == 0x1000 && o[0].waitValue.value64 == 1ull << 40 &&
          o[0].waitValue.flags == CU_STREAM_WAIT_VALUE_NOR);
    CHECK(o[1].operation == CU_STREAM_MEM_OP_WRITE_VALUE_32 && o[1].writeValue.address == 0x2000 && o[1].writeValue.value == 7 &&
          o[1].writeValue.flags == CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER);
    CHECK(o[2].operation == CU_STREAM_MEM_OP_BARRIER && o[2].memoryBarrier.flags == CU_STREAM_MEMORY_BARRIER_TYPE_GPU);
    CHECK(o[3].operation == CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES);
    static struct gv_memory_operation many[GV_MEMORY_OPERATIONS_MAX + 1];
    CHECK(ops->memory_operations(stream, many, sizeof many) == 1 && ops->memory_operations(stream, wanted, sizeof wanted - 1) == 1);
    wanted[1].address = FAKE_GLOBAL + FAKE_GLOBAL_SIZE; /* nobody's */
    CHECK(ops->memory_operations(stream, wanted, sizeof wanted) == 1);
    wanted[1].address = FAKE_GLOBAL;
    wanted[0].kind = CU_STREAM_MEM_OP_ATOMIC_REDUCTION;
    CHECK(ops->memory_operations(stream, wanted, sizeof wanted) == 1 && fake_batch.n == 4);
    end();
}

static void devices_and_limits(void) {
    begin(8 << 20);
    struct gv_device_info info;
    CHECK(ops->driver_version(backend) == 13010);
    CHECK(ops->device_info(backend, 0, &info) == 0);
    CHECK(info.total_memory == 8 << 20 && info.chunk == 2 << 20);
    CHECK(info.has_attribute[CU_DEVICE_ATTRIBUTE_WARP_SIZE] && info.attributes[CU_DEVICE_ATTRIBUTE_WARP_SIZE] == CU_DEVICE_ATTRIBUTE_WARP_SIZE);
    CHECK(info.has_attribute[CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS] && info.attributes[CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS] == 0);
    CHECK(info.attributes[CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY] != 0);
    CHECK(!info.has_attribute[160]);
    uint64_t a, b;
    CHECK(ops->memory_alloc(context, 6 << 20, &a) == 0);
    CHECK(ops->memory_alloc(context, 6 << 20, &b) == 2);
    CHECK(ops->memory_free(context, a) == 0);
    CHECK(ops->memory_alloc(context, 6 << 20, &b) == 0);
    CHECK(ops->memory_free(context, b) == 0);
    void *pinned = ops->host_alloc(backend, 4096);
    CHECK(pinned);
    ops->host_free(backend, pinned);
    end();
}

static void virtual_memory(void) {
    begin(8 << 20);
    struct gv_device_info info;
    CHECK(ops->device_info(backend, 0, &info) == 0);
    CHECK(info.attributes[CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED]);
    CHECK(info.attributes[CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED]);
    CHECK(!info.attributes[CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED] && !info.attributes[CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED]);
    uint64_t address, b;
    CHECK(ops->address_reserve(backend, 16 << 20, 4 << 20, &address) == 0);
    CHECK(address && fake_virtual.reserved == 16 << 20 && fake_virtual.alignment == 4 << 20);
    struct gv_physical *p, *none;
    CHECK(ops->physical_create(context, 6 << 20, &p) == 0);
    CHECK(fake_virtual.created == 6 << 20 && fake_virtual.prop.type == CU_MEM_ALLOCATION_TYPE_PINNED);
    CHECK(fake_virtual.prop.location.id == 1 && !fake_virtual.prop.requestedHandleTypes); /* the second device of the machine, the session's first */
    CHECK(ops->physical_create(context, 4 << 20, &none) == 2 && ops->memory_alloc(context, 4 << 20, &b) == 2); /* one limit for both kinds */
    fake_virtual.fail = 2;
    CHECK(ops->physical_create(context, 2 << 20, &none) == 2);
    CHECK(ops->memory_map(p, address, 6 << 20) == 0);
    CHECK(fake_virtual.mapped == address);
    CHECK(ops->memory_access(backend, address, 6 << 20, 0, 3) == 0);
    CHECK(fake_virtual.access.location.id == 1 && fake_virtual.access.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CHECK(ops->memory_unmap(backend, address, 2 << 20) == 1); /* a part of a mapping */
    fake_virtual.fail = 1;
    CHECK(ops->memory_unmap(backend, address, 6 << 20) == 1 && !fake_virtual.fail);
    CHECK(ops->memory_unmap(backend, address, 6 << 20) == 0 && fake_virtual.unmapped == address);
    fake_virtual.fail = 1;
    CHECK(ops->physical_destroy(p) == 1);
    CHECK(ops->memory_alloc(context, 4 << 20, &b) == 2); /* it is still there */
    CHECK(ops->physical_destroy(p) == 0 && fake_virtual.released == fake_virtual.handle);
    CHECK(ops->memory_alloc(context, 8 << 20, &b) == 0 && ops->memory_free(context, b) == 0);
    CHECK(ops->address_free(backend, address, 16 << 20) == 0 && fake_virtual.freed == address);
    end();
}

/* A copy's address is the session's device memory, or the copy is refused: the driver takes any address of this process, too. */
static void addresses_of_others(void) {
    begin(0);
    uint64_t a, mapped;
    struct gv_physical *p;
    char host[64] = "";
    struct gv_shape row = {64, 1, 1, 64, 64, 64, 64}, plane = {16, 4, 1, 1024, 4096, 1024, 4096};
    CHECK(ops->memory_alloc(context, 4096, &a) == 0);
    CHECK(ops->address_reserve(backend, 2 << 20, 2 << 20, &mapped) == 0);
    CHECK(ops->physical_create(context, 2 << 20, &p) == 0 && ops->memory_map(p, mapped, 2 << 20) == 0);
    CHECK(ops->memory_access(backend, mapped, 2 << 20, 0, 3) == 0);
    uint64_t pinned = (uint64_t)(uintptr_t)ops->host_alloc(backend, 4096);
    const uint64_t good[] = {a, a + 4032, FAKE_GLOBAL, mapped, mapped + (2 << 20) - 64},
                   bad[] = {0, a - 1, a + 4033, pinned, mapped + (2 << 20) - 63};
    for (size_t i = 0; i < 5; i++) {
        CHECK(ops->copy_to_device(stream, good[i], host, &row) == 0 && ops->copy_to_host(stream, host, good[i], &row) == 0);
        CHECK(ops->fill(stream, good[i], 0, 1, 7, 64, 1) == 0 && ops->copy_device(stream, good[i], context, a, context, &row) == 0);
        CHECK(ops->copy_to_device(stream, bad[i], host, &row) == 1 && ops->copy_to_host(stream, host, bad[i], &row) == 1);
        CHECK(ops->fill(stream, bad[i], 0, 1, 7, 64, 1) == 1 && ops->copy_device(stream, bad[i], context, a, context, &row) == 1);
        CHECK(ops->copy_device(stream, a, context, bad[i], context, &row) == 1);
    }
    CHECK(ops->copy_to_device(stream, a, host, &plane) == 0 && ops->copy_to_device(stream, a + 1024, host, &plane) == 1); /* its last row */
    CHECK(ops->fill(stream, a, 1024, 4, 7, 256, 4) == 0 && ops->fill(stream, a, 1024, 4, 7, 256, 5) == 1);
    CHECK(ops->memory_free(context, a) == 0 && ops->copy_to_device(stream, a, host, &row) == 1);
    CHECK(ops->memory_unmap(backend, mapped, 2 << 20) == 0 && ops->copy_to_host(stream, host, mapped, &row) == 1);
    CHECK(ops->physical_destroy(p) == 0);
    ops->host_free(backend, (void *)(uintptr_t)pinned);
    end();
}

/* What the driver takes for contexts, their limits and modules counts against the session's memory. */
static void what_the_driver_takes(void) {
    enum { MIB = 1 << 20 };
    fake_memory = (struct fake_memory){.free = 60 * MIB, .context = 3 * MIB, .module = 2 * MIB};
    begin(16 * MIB);
    char err[GV_ERR_SIZE] = "";
    struct gv_context *others[6];
    uint64_t a, value = 13ull << 20;
    for (int i = 0; i < 5; i++) CHECK(ops->context_create(backend, 0, 0, 0, &others[i], err) == 0);
    CHECK(ops->context_create(backend, 0, 0, 0, &others[5], err) == 2); /* 15 of 16 are used */
    CHECK(fake_memory.free == 45 * MIB);
    CHECK(ops->memory_alloc(context, 2 * MIB, &a) == 2);
    struct gv_module *m;
    void *meta;
    size_t size;
    CHECK(ops->module_load(context, "good", 4, &m, &meta, &size, err) == 2);
    CHECK_TEXT(err, "globals");
    CHECK(fake_memory.free == 45 * MIB);
    for (int i = 0; i < 5; i++) ops->context_destroy(others[i]);
    CHECK(ops->module_load(context, "good", 4, &m, &meta, &size, err) == 0);
    free(meta);
    CHECK(ops->memory_alloc(context, 15 * MIB, &a) == 2);
    ops->module_unload(m);
    CHECK(ops->memory_alloc(context, 15 * MIB, &a) == 0 && ops->memory_free(context, a) == 0);
    /* The heap has 8 MiB by default, which are the context's. */
    CHECK(ops->context_limit(context, CU_LIMIT_MALLOC_HEAP_SIZE, &value) == 0 && value == 13 * MIB);
    CHECK(ops->memory_alloc(context, 12 * MIB, &a) == 2);
    value = 25 * MIB;
    CHECK(ops->context_limit(context, CU_LIMIT_MALLOC_HEAP_SIZE, &value) == 2);
    value = 1ull << 40;
    CHECK(ops->context_limit(context, CU_LIMIT_STACK_SIZE, &value) == 2);
    CHECK(ops->context_limit(context, CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT, &value) == 215);
    value = 1 * MIB;
    CHECK(ops->context_limit(context, CU_LIMIT_MALLOC_HEAP_SIZE, &value) == 0);
    CHECK(ops->memory_alloc(context, 16 * MIB, &a) == 0 && ops->memory_free(context, a) == 0);
    end();
    fake_memory = (struct fake_memory){0};
}

static void references(void) {
    begin(64 << 20);
    fake_reference = (struct fake_reference){.array = NULL};
    struct gv_module *m;
    void *meta;
    size_t size;
    char err[GV_ERR_SIZE];
    const struct gv_array_shape shape = {.format = CU_AD_FORMAT_FLOAT, .channels = 1, .width = 64, .height = 32, .flags = 2};
    struct gv_array_shape mipmapped = shape;
    struct gv_array *a, *levels, *level;
    mipmapped.levels = 3;
    CHECK(ops->module_load(context, "good", 4, &m, &meta, &size, err) == 0);
    free(meta);
    CHECK(ops->array_create(context, &shape, &a) == 0 && ops->array_create(context, &mipmapped, &levels) == 0);
    CHECK(ops->array_level(levels, 0, &level) == 0);
    CHECK(ops->reference_find(m, "picture", 0) == 0 && ops->reference_find(m, "canvas", 1) == 0);
    CHECK(ops->reference_find(m, "canvas", 0) == CUDA_ERROR_NOT_FOUND && ops->reference_find(m, "picture", 1) == CUDA_ERROR_NOT_FOUND);
    /* An array: as it is, with its modes; the border's colour only where there is a border. */
    const struct gv_texture clamped = {.flags = 2, .filter = 1, .modes = {1, 1, 2}, .border = {1, 2, 3, 4}, .anisotropy = 8, .bias = 5};
    CHECK(ops->reference_array(m, "picture", a, &clamped) == 0);
    CHECK(fake_reference.array && !fake_reference.levels && fake_reference.how == CU_TRSA_OVERRIDE_FORMAT && fake_reference.flags == 2);
    CHECK(fake_reference.modes[2] == 2 && fake_reference.filter == 1 && fake_reference.anisotropy == 8);
    CHECK(fake_reference.border[3] == 0 && fake_reference.bias == 0);
    const struct gv_texture detailed = {.modes = {3, 1, 1}, .border = {1, 2, 3, 4}, .mip_filter = 1, .bias = 0.5f, .least = 1, .most = 2};
    CHECK(ops->reference_array(m, "picture", levels, &detailed) == 0);
    CHECK(fake_reference.levels && fake_reference.border[3] == 4 && fake_reference.mip_filter == 1 && fake_reference.bias == 0.5f);
    CHECK(fake_reference.least == 1 && fake_reference.most == 2);
    /* Memory, whose address the client has aligned. */
    struct gv_texture memory = {.kind = CU_RESOURCE_TYPE_LINEAR, .format = 0x20, .channels = 2, .address = 0x7000, .width = 4096, .modes = {3, 3, 3}};
    CHECK(ops->reference_memory(m, "picture", &memory) == 0);
    CHECK(fake_reference.address == 0x7000 && fake_reference.bytes == 4096 && fake_reference.format == 0x20 && fake_reference.channels == 2);
    CHECK(fake_reference.modes[1] == 1); /* of the mipmapped array: linear memory has none */
    fake_reference.offset = 256;
    CHECK(ops->reference_memory(m, "picture", &memory) == CUDA_ERROR_INVALID_VALUE);
    memory.kind = CU_RESOURCE_TYPE_PITCH2D, memory.height = 16, memory.pitch = 512;
    CHECK(ops->reference_memory(m, "picture", &memory) == 0);
    CHECK(fake_reference.shape.Width == 4096 && fake_reference.shape.Height == 16 && fake_reference.shape.NumChannels == 2);
    CHECK(fake_reference.pitch == 512 && fake_reference.modes[1] == 3);
    memory.kind = CU_RESOURCE_TYPE_ARRAY;
    CHECK(ops->reference_memory(m, "picture", &memory) == CUDA_ERROR_INVALID_VALUE);
    CHECK(ops->reference_memory(m, "canvas", &memory) == CUDA_ERROR_NOT_FOUND);
    /* Surfaces are of one level. */
    CHECK(ops->reference_surface(m, "canvas", a) == 0 && fake_reference.drawn);
    CHECK(ops->reference_surface(m, "canvas", levels) == CUDA_ERROR_INVALID_VALUE && ops->reference_surface(m, "canvas", level) == 0);
    CHECK(ops->array_destroy(level) == 0 && ops->array_destroy(levels) == 0 && ops->array_destroy(a) == 0);
    ops->module_unload(m);
    end();
}

static void arrays(void) {
    enum { MIB = 1 << 20 };
    fake_memory = (struct fake_memory){.free = 60 * MIB};
    fake_arrays = (struct fake_arrays){.each = 3 * MIB};
    begin(8 * MIB);
    const struct gv_array_shape shape = {.format = CU_AD_FORMAT_FLOAT, .channels = 1, .width = 64, .height = 32};
    struct gv_array_shape mipmapped = shape, none = {.format = 1, .channels = 1};
    struct gv_array *a, *b, *levels, *level;
    uint64_t memory, texture, surface;
    mipmapped.levels = 3;
    /* What the driver takes counts: two of 3 MiB are in 8, a third is not. */
    CHECK(ops->array_create(context, &none, &a) == 1);
    CHECK(ops->array_create(context, &shape, &a) == 0 && ops->array_create(context, &mipmapped, &levels) == 0);
    CHECK(ops->array_create(context, &shape, &b) == 2 && ops->array_create(context, &mipmapped, &b) == 2);
    CHECK(fake_arrays.alive == 1 && fake_arrays.mipmapped == 1 && fake_memory.free == 54 * MIB);
    /* A level keeps the whole. */
    CHECK(ops->array_level(a, 0, &b) == 1);
    CHECK(ops->array_level(levels, 1, &level) == 0 && ops->array_level(level, 0, &b) == 1);
    CHECK(ops->array_texture(context, levels, &(struct gv_texture){.flags = 2, .mip_filter = 1, .bias = 0.5f, .border = {1, 2, 3, 4}}, &texture) ==
          0);
    CHECK(fake_arrays.resource.resType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY && fake_arrays.sampling.borderColor[2] == 3);
    CHECK(fake_arrays.sampling.mipmapLevelBias == 0.5f && fake_arrays.sampling.mipmapFilterMode == CU_TR_FILTER_MODE_LINEAR);
    CHECK(ops->array_destroy(levels) == 0 && fake_arrays.mipmapped == 1);
    CHECK(ops->array_texture(context, level, &(struct gv_texture){.flags = 1}, &texture) == 0);
    CHECK(fake_arrays.resource.resType == CU_RESOURCE_TYPE_ARRAY && fake_arrays.resource.res.array.hArray == (CUarray)(uintptr_t)0x2002);
    CHECK(ops->array_destroy(level) == 0 && fake_arrays.mipmapped == 0 && fake_memory.free == 57 * MIB);
    CHECK(ops->surface_create(context, a, &surface) == 0 && ops->surface_destroy(context, surface) == 0);
    CHECK(ops->texture_destroy(context, texture) == 0);
    /* Copies: what lies in device memory has to be the session's. */
    CHECK(ops->memory_alloc(context, 65536, &memory) == 0);
    const struct gv_shape box = {128, 4, 1, 256, 2048, 256, 2048};
    const struct gv_array_side in = {.array = a, .at = {4, 5, 6}}, from = {.address = memory}, wrong = {.address = memory + 65000};
    CHECK(ops->copy_array(stream, &in, &from, &box) == 0);
    CHECK(fake_arrays.copy.dstMemoryType == CU_MEMORYTYPE_ARRAY && fake_arrays.copy.dstXInBytes == 4 && fake_arrays.copy.dstZ == 6);
    CHECK(fake_arrays.copy.srcDevice == memory && fake_arrays.copy.srcPitch == 256 && fake_arrays.copy.srcHeight == 8 &&
          fake_arrays.copy.Height == 4);
    CHECK(ops->copy_array(stream, &in, &wrong, &box) == 1 && ops->copy_array(stream, &wrong, &in, &box) == 1);
    CHECK(ops->copy_array(stream, &from, &in, &box) == 0 && fake_arrays.copy.srcY == 5);
    /* What the driver does not destroy stays. */
    fake_arrays.fail = 700;
    CHECK(ops->array_destroy(a) == 700 && fake_arrays.alive == 1);
    CHECK(ops->array_destroy(a) == 0 && fake_arrays.alive == 0);
    fake_arrays.fail = 2;
    CHECK(ops->array_create(context, &shape, &a) == 2);
    end();
    fake_memory = (struct fake_memory){0};
}

static void drivers_that_will_not_do(void) {
    char err[GV_ERR_SIZE];
    uint32_t device = 0;
    struct gv_backend_config config = {.devices = &device, .n_devices = 1, .driver = "libcuda.so.1", .memory_usage_fd = -1};
    CHECK(ops->open(&config, &backend, err) == 1);
    CHECK_TEXT(err, "absolute path");
    config.driver = "/nowhere/libcuda.so.1";
    CHECK(ops->open(&config, &backend, err) == 301);
    CHECK_TEXT(err, "could not be opened");
    config.driver = "/lib/x86_64-linux-gnu/libm.so.6";
    CHECK(ops->open(&config, &backend, err) == 801);
    CHECK_TEXT(err, "has no cuInit");
    config.driver = driver;
    device = 7;
    fake_driver_break(0);
    CHECK(ops->open(&config, &backend, err) == 101);
    CHECK_TEXT(err, "could not be started");
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {{"modules_and_launches", modules_and_launches},
                                             {"clusters", clusters},
                                             {"groups_of_multiprocessors", groups_of_multiprocessors},
                                             {"links", links},
                                             {"memory_operations", memory_operations},
                                             {"devices_and_limits", devices_and_limits},
                                             {"virtual_memory", virtual_memory},
                                             {"addresses_of_others", addresses_of_others},
                                             {"what_the_driver_takes", what_the_driver_takes},
                                             {"arrays", arrays},
                                             {"references", references},
                                             {"drivers_that_will_not_do", drivers_that_will_not_do}};
    if (argc < 2) return 2;
    driver = argv[1];
    return run_cases(cases, sizeof cases / sizeof *cases, argc - 1, argv + 1, 240);
}
