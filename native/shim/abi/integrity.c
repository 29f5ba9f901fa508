/* A runtime library asks the driver three times at its start. Two answers are constants, the third is a keyed digest of the process and its devices. */
#include "abi/integrity.h"

#include <cuda.h>
#include <string.h>

#include "abi/md2.h"

static const uint8_t key[MD2_SIZE] = {0x14, 0x6a, 0xdd, 0xae, 0x53, 0xa9, 0xa7, 0x52, 0xaa, 0x08, 0x41, 0x36, 0x0b, 0xf5, 0x5a, 0x9f};

/* A device in the digest. */
struct device_record {
    uint8_t uuid[16];
    int32_t domain, bus, device;
};

void integrity_answer(const struct integrity_query *query, const struct gv_device_info *const *devices, unsigned n_devices, uint64_t result[2]) {
    uint32_t question = query->version % 10;
    if (question < 2) {
        result[0] = question == 0 ? 0x3341181c03cb675cull : 0x1841181c03cb675cull;
        result[1] = 0x8ed383aa1f4cd1e8ull;
        return;
    }
    struct hmac_md2 h;
    hmac_md2_begin(&h, key);
    /* The members lie in the order and without the gaps of the digest's input. */
    _Static_assert(sizeof *query == 48, "the digest's input has no padding");
    hmac_md2_add(&h, query, sizeof *query);
    for (unsigned i = 0; i < n_devices; i++) {
        struct device_record record = {
            .domain = devices[i]->attributes[CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID],
            .bus = devices[i]->attributes[CU_DEVICE_ATTRIBUTE_PCI_BUS_ID],
            .device = devices[i]->attributes[CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID],
        };
        memcpy(record.uuid, devices[i]->uuid, sizeof record.uuid);
        hmac_md2_add(&h, &record, sizeof record);
    }
    uint8_t digest[MD2_SIZE];
    hmac_md2_end(&h, digest);
    memcpy(result, digest, sizeof digest);
}
