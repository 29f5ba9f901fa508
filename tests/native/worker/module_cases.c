/* Modules, launches and the linker. */
#include "../../../native/wire/module_meta.h"
#include "scripted_client.h"

static void links(void) {
    begin();
    attach();
    static uint64_t payload[80000];
    struct gv_link_option option = {.option = 7, .value = 2};
    struct gv_link_part parts[] = {{.type = 1, .n_options = 1, .name = "first", .options = &option, .data = "abc", .size = 3},
                                   {.type = 2, .name = "second", .data = "defghijkl", .size = 9}};
    uint64_t first = gv_link_part_size(&parts[0]), size = first + gv_link_part_size(&parts[1]);
    gv_link_part_put(payload, &parts[0]);
    gv_link_part_put((char *)payload + first, &parts[1]);
    struct gv_reply_link reply;
    CHECK(answer(POST(link, GV_RECORD_SYNC, 1, .n_inputs = 2, .options = &option, .options_size = sizeof option, .inputs = payload,
                      .inputs_size = (uint32_t)size)) == 0);
    CHECK(gv_reply_link_decode(&reply, body, answer_size()) == 0);
    CHECK(reply.result == 0 && reply.image_size == 12 && !memcmp(reply.image, "abcdefghijkl", 12));
    CHECK_TEXT(reply.info, "2 inputs, 1 options, the first with 1");
    /* What is wrong comes with its log, and nothing else is disturbed. */
    parts[1] = (struct gv_link_part){.type = 4, .name = "bad", .data = "x", .size = 1};
    size = first + gv_link_part_size(&parts[1]);
    gv_link_part_put((char *)payload + first, &parts[1]);
    CHECK(answer(POST(link, GV_RECORD_SYNC, 1, .n_inputs = 2, .inputs = payload, .inputs_size = (uint32_t)size)) == 0);
    CHECK(gv_reply_link_decode(&reply, body, answer_size()) == 0 && reply.result == 200 && reply.image_size == 0);
    CHECK_TEXT(reply.error, "'bad' of type 4 is bad");
    CHECK(answer(POST(link, GV_RECORD_SYNC, 9, .n_inputs = 2, .inputs = payload, .inputs_size = (uint32_t)size)) == 201);
    /* Large inputs and a large image go the bulk way. */
    parts[0] = (struct gv_link_part){.type = 1, .name = "large", .data = calloc(1, 300000), .size = 300000};
    uint64_t seq = POST(link, GV_RECORD_SYNC, 1, .n_inputs = 1, .bulk = ++bulk_sent);
    CHECK(sizeof payload >= gv_link_part_size(&parts[0]));
    gv_link_part_put(payload, &parts[0]);
    CHECK(gv_bulk_send(client, 0, payload, gv_link_part_size(&parts[0])));
    CHECK(answer(seq) == 0);
    CHECK(gv_reply_link_decode(&reply, body, answer_size()) == 0);
    CHECK(reply.image_tag >> 63 && reply.image_size == 0 && reply.image_bulk_size == 300000);
    struct gv_bulk_header header;
    CHECK(gv_bulk_recv_header(client, &header) == 0 && header.tag == reply.image_tag && header.size == 300000);
    CHECK(gv_bulk_recv(client, NULL, header.size) == 0);
    free((void *)parts[0].data);
    bye();
}

static void modules(void) {
    begin();
    attach();
    CHECK(answer(POST(module_load, GV_RECORD_SYNC, 1, .module = 30, .image = "evil", .image_size = 4)) == 200);
    CHECK_TEXT((char *)body, "no image");
    CHECK(answer(POST(module_load, GV_RECORD_SYNC, 1, .module = 30, .image = "good", .image_size = 4)) == 0);
    struct gv_reply_module_load reply;
    CHECK(gv_reply_module_load_decode(&reply, body, answer_size()) == 0);
    CHECK(reply.meta_tag == 0 && gv_meta_check(reply.meta, reply.meta_size) == 0);
    /* A large image and large metadata both go the bulk way. */
    fake.meta_padding = 1 << 20;
    static uint8_t image[300000];
    memset(image, 5, sizeof image);
    memcpy(image, "good", 4);
    uint64_t seq = POST(module_load, GV_RECORD_SYNC, 1, .module = 31, .bulk = ++bulk_sent);
    CHECK(gv_bulk_send(client, 0, image, sizeof image));
    CHECK(answer(seq) == 0);
    CHECK(gv_reply_module_load_decode(&reply, body, answer_size()) == 0);
    CHECK(reply.meta_tag >> 63 && reply.meta_size == 0);
    CHECK(fake.image_sum == 5 * (sizeof image - 4) + 'g' + 'o' + 'o' + 'd');
    struct gv_bulk_header header;
    CHECK(gv_bulk_recv_header(client, &header) == 0 && header.tag == reply.meta_tag && header.size == reply.meta_bulk_size);
    CHECK(gv_bulk_recv(client, NULL, header.size) == 0);
    CHECK(answer(POST(module_global, GV_RECORD_SYNC, 1, .module = 30, .name = "known")) == 0);
    CHECK(answer(POST(module_global, GV_RECORD_SYNC, 1, .module = 30, .name = "unknown")) == 500);
    uint64_t right = 42, wrong = 43;
    for (int i = 0; i < 5; i++)
        POST(launch, 0, 1, .stream = 100, .module = 30, .grid = {1, 1, 1}, .block = {1, 1, 1}, .params = &right, .params_size = 8);
    CHECK(failed_status(POST(launch, 0, 1, .stream = 100, .module = 30, .params = &wrong, .params_size = 8)) == 1);
    CHECK(failed_status(POST(launch, 0, 1, .stream = 100, .module = 30, .kernel = 1, .params = &right, .params_size = 8)) == 400);
    CHECK(failed_status(POST(launch, 0, 1, .stream = 100, .module = 99, .params = &right, .params_size = 8)) == 400);
    POST(fence, GV_RECORD_MARK, 1, .stream = 100);
    CHECK(completed().status == 0);
    CHECK(atomic_load(&fake.ran) == 5);
    POST(module_unload, 0, 1, .module = 30);
    CHECK(failed_status(POST(module_unload, 0, 1, .module = 30)) == 400);
    CHECK(answer(POST(bye, GV_RECORD_SYNC, 0)) == 0);
    struct gv_reply_bye goodbye_;
    CHECK(gv_reply_bye_decode(&goodbye_, body, answer_size()) == 0 && goodbye_.launches == 5);
    end(0);
}

const struct test_case module_cases[] = {
    {"links", links},
    {"modules", modules},
    {0},
};
