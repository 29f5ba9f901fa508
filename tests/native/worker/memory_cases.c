/* Memory commands: what is allocated, created, mapped, and addresses that the backend fixes. */
#include "scripted_client.h"

static void memory(void) {
    begin();
    attach();
    CHECK(answer(POST(memory_alloc, GV_RECORD_SYNC, 1, .size = 4096)) == 0);
    CHECK(answer(POST(memory_alloc, GV_RECORD_SYNC, 1, .size = 1 << 30)) == 2);
    CHECK(answer(POST(memory_info, GV_RECORD_SYNC, 1)) == 0);
    CHECK(answer(POST(memory_info, GV_RECORD_SYNC, 99)) == 201);
    CHECK(answer(POST(context_limit, GV_RECORD_SYNC, 1, .limit = 2, .value = 100)) == 0);
    CHECK(answer(POST(context_limit, GV_RECORD_SYNC, 1, .limit = 3, .value = 100)) == 215);
    CHECK(answer(POST(context_limit, GV_RECORD_SYNC, 99, .limit = 2, .value = 100)) == 201);
    CHECK(failed_status(POST(memory_free, 0, 1, .address = 1 << 29)) == 1);
    bye();
}

static void virtual_memory(void) {
    begin();
    attach();
    struct worker_figures figures;
    CHECK(answer(POST(memory_create, GV_RECORD_SYNC, 0, .handle = 7, .size = 4096)) == 0);
    CHECK(answer(POST(memory_create, GV_RECORD_SYNC, 0, .handle = 7, .size = 4096)) == 1); /* a number is used once */
    CHECK(answer(POST(memory_create, GV_RECORD_SYNC, 0, .handle = 8, .size = 1 << 30)) == 2);
    CHECK(strstr((char *)body, "used up"));
    worker_get_figures(worker, &figures);
    CHECK(figures.memory_used == 4096);
    CHECK(answer(POST(address_reserve, GV_RECORD_SYNC, 0, .size = 4096, .alignment = 512)) == 0);
    struct gv_reply_address_reserve reply;
    CHECK(gv_reply_address_reserve_decode(&reply, body, answer_size()) == 0 && reply.address == (1ull << 40 | 512));
    CHECK(answer(POST(address_reserve, GV_RECORD_SYNC, 0)) == 1);
    CHECK(answer(POST(memory_access, GV_RECORD_SYNC, 0, .address = 5, .size = 4096, .rights = 3)) == 1);
    /* A mapping that fails is told of with the access, once. */
    POST(memory_map, 0, 0, .handle = 7, .address = 5, .size = 8192);
    CHECK(answer(POST(memory_access, GV_RECORD_SYNC, 0, .address = 5, .size = 8192, .rights = 3)) == 2);
    CHECK(strstr((char *)body, "no room"));
    CHECK(answer(POST(memory_access, GV_RECORD_SYNC, 0, .address = 5, .size = 8192, .rights = 3)) == 1);
    POST(memory_map, 0, 0, .handle = 99, .address = 5, .size = 4096);
    CHECK(answer(POST(memory_access, GV_RECORD_SYNC, 0, .address = 5, .size = 4096, .rights = 3)) == 400);
    CHECK(failed_status(POST(memory_unmap, 0, 0, .address = 5, .size = 4096)) == 1);
    POST(memory_map, 0, 0, .handle = 7, .address = 5, .size = 4096);
    CHECK(answer(POST(memory_access, GV_RECORD_SYNC, 0, .address = 5, .size = 4096, .rights = 3)) == 0);
    CHECK(failed_status(POST(memory_destroy, 0, 0, .handle = 7)) == 1); /* and it is still there */
    POST(memory_unmap, 0, 0, .address = 5, .size = 4096);
    POST(memory_destroy, 0, 0, .handle = 7);
    CHECK(failed_status(POST(memory_destroy, 0, 0, .handle = 7)) == 400);
    POST(address_free, 0, 0, .address = reply.address, .size = 4096);
    CHECK(failed_status(POST(address_free, 0, 0, .address = 5, .size = 4096)) == 1);
    CHECK(answer(POST(memory_create, GV_RECORD_SYNC, 0, .handle = 9, .size = 4096)) == 0); /* ends with the session */
    worker_get_figures(worker, &figures);
    CHECK(figures.memory_used == 4096 && !fake.mapped);
    bye();
}

static void fixed_addresses(void) {
    begin();
    fake.fixed = 5 << 20;
    uint64_t windows[4] = {1ull << 44, 1ull << 40, 1ull << 45, 1ull << 40};
    CHECK(answer(POST(attach, GV_RECORD_SYNC, 0, .windows = windows, .windows_size = sizeof windows, .client_version = 1)) == 0);
    struct gv_reply_attach reply;
    CHECK(gv_reply_attach_decode(&reply, body, answer_size()) == 0);
    CHECK(reply.addresses == GV_ADDRESSES_FIXED && reply.window_base == 1ull << 45 && reply.window_size == 1ull << 40);
    CHECK(reply.initial == 4 << 20); /* as much of the usual advance as the device has */
    POST(context_create, 0, 1, .device = 0, .primary = 1);
    const uint64_t end = (1ull << 45) + (4 << 20);
    CHECK(answer(POST(memory_grow, GV_RECORD_SYNC, 1, .address = end, .size = 2 << 20)) == 2);
    CHECK_TEXT((char *)body, "used up");
    CHECK(answer(POST(memory_grow, GV_RECORD_SYNC, 1, .address = end, .size = 3 << 20, .needed = 2 << 20)) == 2);
    CHECK(fake.back_waits == 0); /* nobody has to give way for what is not needed, nor for one who does not wait */
    CHECK(answer(POST(memory_grow, GV_RECORD_SYNC, 1, .address = end, .size = 2 << 20, .needed = 1 << 20, .waits = 1)) == 0);
    struct gv_reply_memory_grow grown;
    CHECK(gv_reply_memory_grow_decode(&grown, body, answer_size()) == 0 && grown.size == 1 << 20);
    CHECK(fake.back_waits == 1);
    CHECK(answer(POST(memory_grow, GV_RECORD_SYNC, 1, .address = end, .size = 2 << 20, .needed = 2 << 20, .waits = 1)) == 2);
    CHECK(fake.back_waits == 2);
    struct worker_figures figures;
    worker_get_figures(worker, &figures);
    CHECK(figures.memory_used == 5 << 20);
    POST(memory_shrink, 0, 1, .address = 1ull << 45, .size = 2 << 20);
    CHECK(answer(POST(memory_info, GV_RECORD_SYNC, 1)) == 0);
    worker_get_figures(worker, &figures);
    CHECK(figures.memory_used == 3 << 20 && fake.backed == 3 << 20);
    bye();
}

const struct test_case memory_cases[] = {
    {"memory", memory},
    {"virtual_memory", virtual_memory},
    {"fixed_addresses", fixed_addresses},
    {0},
};
