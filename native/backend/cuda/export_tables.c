/* What the driver tells by one of its private tables, and by no public function: how the device's multiprocessors are grouped. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "../../wire/device_info.h"
#include "backend_cuda.h"

#define WORD sizeof(void *)
#define TELL_SLOT 4  /* (uint8_t **order, uint8_t **groups) makes two arrays, of the current context's device */
#define FREE_SLOT 13 /* (order, groups) */
#define MOST_SLOTS 64u

static const CUuuid table_id = {{0x17, 0x34, (char)0xdc, 0x26, (char)0x80, 0x0d, 0x47, 0x45, (char)0x87, 0x26, (char)0xc0, (char)0xf1, (char)0xe7,
                                 (char)0xdd, (char)0x8b, (char)0xca}};

typedef CUresult (*get_table)(const void **table, const CUuuid *id);
typedef CUresult (*tell_groups)(uint8_t **order, uint8_t **groups);
typedef CUresult (*free_groups)(uint8_t *order, uint8_t *groups);

/* The table, when it has the slots that are used here: the size in bytes comes first, and another driver may have another table under this name. */
static void *const *find_table(const struct driver *d) {
    get_table get;
    const void *table = NULL;
    *(void **)&get = dlsym(d->library, "cuGetExportTable");
    if (!get || get(&table, &table_id) || !table) return NULL;
    size_t size = *(const size_t *)table;
    if (size % WORD || size / WORD <= FREE_SLOT || size / WORD > MOST_SLOTS) return NULL;
    void *const *slots = table;
    return slots[TELL_SLOT] && slots[FREE_SLOT] ? slots : NULL;
}

int cuda_processor_groups(struct gv_context *c, uint8_t *order, uint8_t *groups, uint32_t *n) {
    int processors = 0, status = cuda_enter(c);
    if (!status) status = (int)c->b->driver.device_attribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, c->device);
    if (status) return status;
    void *const *slots = find_table(&c->b->driver);
    uint32_t pairs = processors > 0 ? (uint32_t)processors / 2 : 0;
    if (!slots || !pairs || pairs > GV_PROCESSOR_GROUPS_MAX) return CUDA_ERROR_NOT_SUPPORTED;
    tell_groups tell;
    free_groups done;
    memcpy(&tell, &slots[TELL_SLOT], sizeof tell);
    memcpy(&done, &slots[FREE_SLOT], sizeof done);
    uint8_t *a = NULL, *b = NULL;
    status = (int)tell(&a, &b);
    if (status || !a || !b) return CUDA_ERROR_NOT_SUPPORTED;
    memcpy(order, a, pairs);
    memcpy(groups, b, pairs);
    done(a, b);
    *n = pairs;
    return 0;
}
