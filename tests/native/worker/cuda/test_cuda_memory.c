/* The cuda backend's allocations and parking on a driver of the tests' own: test_cuda_memory DRIVER [case...]. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/mman.h>

#include "../../../../native/backend/memory_room.h"
#include "../../../../native/wire/memory_operation.h"
#include "../../../../native/worker/backend.h"
#include "../../check.h"
#include "fake_driver.h"

#define KIB (1ull << 10)
#define MIB (1ull << 20)

static const char *driver;
static const struct gv_backend_ops *ops = &gv_backend_cuda;
static struct gv_backend *backend;
static struct gv_context *context;
static char why[GV_ERR_SIZE];

/* ---- the table, with another session's row ---- */

enum { SLOT = 3, OTHER = 9 };
static int table_file;
static struct gv_memory_usage *table;
static bool without; /* virtual memory management */
static int asked;    /* times that room was asked for */
static uint64_t asked_bytes;

static void make_table(void) {
    table_file = memfd_create("table", 0);
    CHECK(table_file >= 0 && !ftruncate(table_file, sizeof *table));
    table = mmap(NULL, sizeof *table, PROT_READ | PROT_WRITE, MAP_SHARED, table_file, 0);
    CHECK(table != MAP_FAILED);
    table->magic = GV_MEMORY_USAGE_MAGIC;
    table->version = GV_MEMORY_USAGE_VERSION;
    table->total[1] = 64 * MIB;
    table->limit[SLOT] = table->limit[OTHER] = 64 * MIB;
}

/* Another session gives way. */
static bool make_room(void *arg, uint32_t device, uint64_t bytes) {
    (void)arg;
    CHECK(device == 1);
    asked++;
    asked_bytes = bytes;
    table->rows[OTHER].used[1] = 0;
    return true;
}

static void begin(uint64_t memory) {
    uint32_t devices[] = {1};
    struct gv_backend_config config = {.devices = devices, .n_devices = 1, .memory = memory, .driver = driver, .make_room = make_room};
    make_table();
    config.memory_usage_fd = table_file;
    config.memory_usage_slot = SLOT;
    fake_driver_break(0);
    fake_memory_empty();
    fake_virtual.none = without;
    fake_memory = (struct fake_memory){.free = 64 * MIB};
    asked = 0;
    CHECK(ops->open(&config, &backend, why) == 0);
    CHECK(ops->context_create(backend, 0, 0, 1, &context, why) == 0);
}

static void end(void) {
    ops->close(backend);
    munmap(table, sizeof *table);
    close(table_file);
}

static uint64_t shown(void) { return table->rows[SLOT].used[1]; }

static uint64_t allocate(uint64_t size) {
    uint64_t address = 0;
    CHECK(ops->memory_alloc(context, size, &address) == 0 && address);
    return address;
}

static void no_room_for(uint64_t size) {
    uint64_t address;
    CHECK(ops->memory_alloc(context, size, &address) == CUDA_ERROR_OUT_OF_MEMORY);
}

/* ---- allocations ---- */

static void to_the_byte(void) {
    begin(8 * MIB);
    uint64_t large = allocate(8 * MIB - 512 * KIB), small[1024];
    for (int i = 0; i < 1024; i++) small[i] = allocate(i % 2 ? 1 : 512); /* what the large one leaves of its last chunk */
    no_room_for(1);
    CHECK(shown() == 8 * MIB && fake_virtual.handles == 1);
    CHECK(ops->memory_free(context, small[7]) == 0 && allocate(512) == small[7]);
    no_room_for(1);
    CHECK(ops->memory_free(context, large) == 0);
    CHECK(allocate(7 * MIB) == large); /* its slab is still there, because of the small ones */
    CHECK(ops->memory_free(context, large) == 0);
    for (int i = 0; i < 1024; i++) CHECK(ops->memory_free(context, small[i]) == 0);
    CHECK(shown() == 0 && fake_virtual.handles == 0 && fake_virtual.mapped_bytes == 0);
    CHECK(ops->memory_free(context, large) == 1 && ops->memory_free(context, small[0]) == 1); /* twice */
    for (int i = 0; i < 4; i++) allocate(2 * MIB);
    no_room_for(512);
    end();
}

/* Small allocations share slabs, and none of them overlaps another. */
static void small_ones(void) {
    begin(0);
    uint64_t all[300], before = fake_virtual.handles;
    for (unsigned i = 0; i < 300; i++) {
        all[i] = allocate(100 + 37 * i);
        memset((void *)(uintptr_t)all[i], (int)i, 100 + 37 * i);
    }
    CHECK(fake_virtual.handles - (int)before <= 2);
    for (unsigned i = 0; i < 300; i++)
        for (unsigned k = 0; k < 100 + 37 * i; k++) CHECK(((uint8_t *)(uintptr_t)all[i])[k] == (uint8_t)i);
    /* Beyond an allocation's end nothing is the session's, in a slab neither. */
    struct gv_shape row = {64, 1, 1, 64, 64, 64, 64};
    char host[64] = "";
    struct gv_stream *stream = ops->stream_legacy(context);
    CHECK(ops->copy_to_device(stream, all[299], host, &row) == 0 && ops->memory_free(context, all[299]) == 0);
    CHECK(ops->copy_to_device(stream, all[299], host, &row) == 1);
    for (int i = 0; i < 299; i++) CHECK(ops->memory_free(context, all[i]) == 0);
    CHECK(shown() == 0);
    end();
}

static void a_context_takes_its_allocations_along(void) {
    begin(0);
    struct gv_context *other;
    uint64_t a, mine = allocate(100);
    CHECK(ops->context_create(backend, 0, 0, 0, &other, why) == 0);
    CHECK(ops->memory_alloc(other, 4 * MIB, &a) == 0 && ops->memory_alloc(other, 512, &a) == 0);
    ops->context_destroy(other);
    CHECK(shown() == 2 * MIB && ops->memory_free(context, a) == 1 && ops->memory_free(context, mine) == 0 && shown() == 0);
    end();
}

static void room(void) {
    begin(0);
    table->rows[OTHER].used[1] = 60 * MIB;
    uint64_t a = allocate(4 * MIB), b = allocate(2 * MIB); /* the second after the other one has given way */
    CHECK(asked == 1 && asked_bytes == 2 * MIB && shown() == 6 * MIB);
    /* The driver has less than the table knows: as much more is asked for. */
    fake_memory.free = 1 * MIB;
    fake_virtual.fail = 2, fake_virtual.fails = FAKE_CREATE;
    uint64_t c = allocate(2 * MIB);
    CHECK(asked == 2 && asked_bytes == 2 * MIB + 57 * MIB);
    /* Room was made, and the driver has it a little later than was said. */
    fake_memory.later = 8 * MIB, fake_memory.asks = 6;
    fake_virtual.fail = 2, fake_virtual.fails = FAKE_CREATE;
    uint64_t d = allocate(2 * MIB);
    CHECK(asked == 3 && fake_memory.free == 9 * MIB);
    /* What no session may have is not asked for. */
    no_room_for(65 * MIB);
    CHECK(asked == 3);
    CHECK(ops->memory_free(context, a) == 0 && ops->memory_free(context, b) == 0 && ops->memory_free(context, c) == 0);
    CHECK(ops->memory_free(context, d) == 0);
    end();
}

static void what_nobody_has_counted(void) {
    begin(0);
    end();
    make_table();
    fake_memory = (struct fake_memory){.free = 50 * MIB};
    uint32_t device = 1;
    struct gv_backend_config config = {
        .devices = &device, .n_devices = 1, .driver = driver, .memory_usage_fd = table_file, .memory_usage_slot = SLOT};
    CHECK(ops->open(&config, &backend, why) == 0 && shown() == 0);
    CHECK(ops->context_create(backend, 0, 0, 1, &context, why) == 0);
    CHECK(shown() == 14 * MIB);
    uint64_t a = allocate(50 * MIB); /* and its own limit is what it was */
    no_room_for(1);
    CHECK(shown() == 64 * MIB && ops->memory_free(context, a) == 0);
    end();
}

/* ---- parking ---- */

static uint8_t pattern(uint64_t seed, uint64_t at) { return (uint8_t)((at * 2654435761u + seed) >> 13 | 1); }

static void paint(uint64_t address, uint64_t size, uint64_t seed) {
    for (uint64_t i = 0; i < size; i++) ((uint8_t *)(uintptr_t)address)[i] = pattern(seed, i);
}

static void painted(uint64_t address, uint64_t size, uint64_t seed) {
    for (uint64_t i = 0; i < size; i++) CHECK(((uint8_t *)(uintptr_t)address)[i] == pattern(seed, i));
}

static struct {
    uint64_t large, small[3], twice, read_only;
    struct gv_physical *mapped, *unmapped, *read;
    int file;
} kept;

static void have_all_kinds(void) {
    kept.large = allocate(9 * MIB);
    for (int i = 0; i < 3; i++) kept.small[i] = allocate(1000);
    CHECK(ops->address_reserve(backend, 16 * MIB, 0, &kept.twice) == 0);
    CHECK(ops->physical_create(context, 4 * MIB, &kept.mapped) == 0 && ops->physical_create(context, 2 * MIB, &kept.unmapped) == 0 &&
          ops->physical_create(context, 2 * MIB, &kept.read) == 0);
    CHECK(ops->memory_map(kept.mapped, kept.twice, 4 * MIB) == 0 && ops->memory_map(kept.mapped, kept.twice + 4 * MIB, 4 * MIB) == 0);
    CHECK(ops->memory_access(backend, kept.twice, 8 * MIB, 0, 3) == 0);
    kept.read_only = kept.twice + 8 * MIB;
    CHECK(ops->memory_map(kept.read, kept.read_only, 2 * MIB) == 0 && ops->memory_access(backend, kept.read_only, 2 * MIB, 0, 3) == 0);
    uint64_t other = kept.twice + 12 * MIB;
    CHECK(ops->memory_map(kept.unmapped, other, 2 * MIB) == 0 && ops->memory_access(backend, other, 2 * MIB, 0, 3) == 0);
    paint(other, 2 * MIB, 5);
    CHECK(ops->memory_unmap(backend, other, 2 * MIB) == 0);
    paint(kept.read_only, 2 * MIB, 6);
    CHECK(ops->memory_access(backend, kept.read_only, 2 * MIB, 0, 1) == 0);
    paint(kept.large, MIB, 1); /* in front of zeros */
    memset((void *)(uintptr_t)(kept.large + MIB), 0, 7 * MIB);
    paint(kept.large + 8 * MIB, MIB, 2);
    for (unsigned i = 0; i < 3; i++) paint(kept.small[i], 1000, 10 + i);
    paint(kept.twice, 4 * MIB, 4);
    kept.file = memfd_create("parked", 0);
    CHECK(kept.file >= 0);
}

static void all_is_there(void) {
    painted(kept.large, MIB, 1);
    for (uint64_t i = MIB; i < 8 * MIB; i++) CHECK(((uint8_t *)(uintptr_t)kept.large)[i] == 0);
    painted(kept.large + 8 * MIB, MIB, 2);
    for (unsigned i = 0; i < 3; i++) painted(kept.small[i], 1000, 10 + i);
    painted(kept.twice, 4 * MIB, 4);
    painted(kept.twice + 4 * MIB, 4 * MIB, 4);
    painted(kept.read_only, 2 * MIB, 6);
    uint64_t other = kept.twice + 12 * MIB;
    CHECK(ops->memory_map(kept.unmapped, other, 2 * MIB) == 0 && ops->memory_access(backend, other, 2 * MIB, 0, 3) == 0);
    painted(other, 2 * MIB, 5);
    CHECK(ops->memory_unmap(backend, other, 2 * MIB) == 0);
}

static void nothing_is_left(void) {
    CHECK(ops->memory_free(context, kept.large) == 0);
    for (unsigned i = 0; i < 3; i++) CHECK(ops->memory_free(context, kept.small[i]) == 0);
    CHECK(ops->memory_unmap(backend, kept.twice, 8 * MIB) == 0 && ops->memory_unmap(backend, kept.read_only, 2 * MIB) == 0);
    CHECK(ops->physical_destroy(kept.mapped) == 0 && ops->physical_destroy(kept.unmapped) == 0 && ops->physical_destroy(kept.read) == 0);
    CHECK(shown() == 0 && fake_virtual.handles == 0 && fake_virtual.mapped_bytes == 0);
    close(kept.file);
    end();
}

static void parked_and_back(void) {
    begin(0);
    have_all_kinds();
    uint64_t used = shown();
    int handles = fake_virtual.handles;
    size_t mapped = fake_virtual.mapped_bytes;
    CHECK(used == (10 + 2 + 4 + 2 + 2) * MIB && ops->at_rest(backend));
    for (int round = 0; round < 3; round++) {
        CHECK(ops->park(backend, kept.file, why) == 0);
        CHECK(shown() == 0 && fake_virtual.handles == 0 && fake_virtual.mapped_bytes == 0);
        CHECK(lseek(kept.file, 0, SEEK_END) < (off_t)(14 * MIB)); /* of 20 MiB 7 are zeros */
        table->rows[OTHER].used[1] = 60 * MIB;
        CHECK(ops->unpark(backend, kept.file, why) == CUDA_ERROR_OUT_OF_MEMORY && shown() == 0);
        table->rows[OTHER].used[1] = 0;
        CHECK(ops->unpark(backend, kept.file, why) == 0);
        CHECK(shown() == used && fake_virtual.handles == handles && fake_virtual.mapped_bytes == mapped);
        all_is_there();
    }
    nothing_is_left();
}

/* Whatever the driver refuses while it is parked: everything is as it was, or at least nothing is lost. */
static void parking_that_fails(void) {
    begin(0);
    have_all_kinds();
    uint64_t used = shown();
    enum fake_call calls[] = {FAKE_COPY, FAKE_RESERVE, FAKE_MAP, FAKE_ACCESS};
    for (unsigned i = 0; i < 4; i++) {
        fake_virtual.fail = 999, fake_virtual.fails = calls[i], fake_virtual.after = 0;
        bool parked = ops->park(backend, kept.file, why) == 0; /* a reservation may not be needed */
        CHECK(parked == (calls[i] == FAKE_RESERVE));
        fake_virtual.fail = 0;
        if (parked) {
            CHECK(ops->unpark(backend, kept.file, why) == 0);
        } else {
            CHECK_TEXT(why, "could not be written to a file");
            CHECK_TEXT(why, "999");
        }
        CHECK(shown() == used);
        all_is_there();
    }
    /* What it does not take back it keeps. */
    for (int which = 0; which < 6; which++) {
        fake_virtual.fail = 999, fake_virtual.fails = which % 2 ? FAKE_RELEASE : FAKE_UNMAP, fake_virtual.after = 2 + which / 2;
        CHECK(ops->park(backend, kept.file, why) == 0 && !fake_virtual.fail);
        CHECK(fake_virtual.handles == 1 && shown() == fake_virtual.bytes && shown());
        CHECK(ops->unpark(backend, kept.file, why) == 0 && shown() == used);
        all_is_there();
    }
    int full = open("/dev/full", O_RDWR);
    CHECK(full >= 0 && ops->park(backend, full, why) != 0);
    CHECK_TEXT(why, "No space left");
    close(full);
    fake_driver_break(700);
    CHECK(ops->park(backend, kept.file, why) == 700);
    CHECK_TEXT(why, "its context is lost (error 700)");
    fake_driver_break(0);
    all_is_there();
    nothing_is_left();
}

static void coming_back_that_fails(void) {
    begin(0);
    have_all_kinds();
    uint64_t used = shown();
    CHECK(ops->park(backend, kept.file, why) == 0);
    enum fake_call calls[] = {FAKE_CREATE, FAKE_CREATE, FAKE_MAP, FAKE_MAP, FAKE_ACCESS};
    for (int i = 0; i < 5; i++) { /* somebody else was faster: it is parked as before */
        fake_virtual.fail = 2, fake_virtual.fails = calls[i], fake_virtual.after = i % 2 ? 3 : 0;
        CHECK(ops->unpark(backend, kept.file, why) == 2 && !fake_virtual.fail);
        CHECK(shown() == 0 && fake_virtual.handles == 0 && fake_virtual.mapped_bytes == 0);
    }
    CHECK(ops->unpark(backend, kept.file, why) == 0 && shown() == used);
    all_is_there();
    /* A damaged file loses the session, and says so. */
    for (int where = 0; where < 3; where++) {
        CHECK(ops->park(backend, kept.file, why) == 0);
        off_t size = lseek(kept.file, 0, SEEK_END);
        uint64_t word = 0, at[] = {0, 100000, (uint64_t)size - 8};
        CHECK(pread(kept.file, &word, 8, (off_t)at[where]) == 8);
        uint64_t wrong = word ^ 0xff00000000ull;
        CHECK(pwrite(kept.file, &wrong, 8, (off_t)at[where]) == 8);
        int status = ops->unpark(backend, kept.file, why);
        CHECK(status != 0 && status != 2);
        CHECK_TEXT(why, "could not be read back");
        CHECK(pwrite(kept.file, &word, 8, (off_t)at[where]) == 8); /* the test goes on with it all the same: its memory is made */
        paint(kept.large, MIB, 1);
        memset((void *)(uintptr_t)(kept.large + MIB), 0, 7 * MIB);
        paint(kept.large + 8 * MIB, MIB, 2);
    }
    end();
}

static void without_virtual_memory(void) {
    without = true;
    begin(8 * MIB);
    uint64_t a = allocate(6 * MIB);
    CHECK(a < 1ull << 40 && shown() == 6 * MIB);
    no_room_for(4 * MIB);
    CHECK(ops->park(backend, table_file, why) == 801);
    CHECK_TEXT(why, "no virtual memory management");
    CHECK(ops->memory_free(context, a) == 0 && shown() == 0);
    end();
    without = false;
}

static void at_rest(void) {
    begin(0);
    struct gv_stream *stream;
    struct gv_event *event;
    CHECK(ops->stream_create(context, 1, 0, &stream) == 0 && ops->event_create(context, 0, &event) == 0 && ops->at_rest(backend));
    fake_driver_hold(true);
    CHECK(ops->event_record(event, stream) == 0 && !ops->at_rest(backend));
    fake_driver_hold(false);
    for (int i = 0; i < 100000 && !ops->at_rest(backend); i++) usleep(1000);
    CHECK(ops->at_rest(backend));
    ops->stream_destroy(stream);
    CHECK(ops->at_rest(backend));
    end();
}

/* Of any stream, the legacy one's too, while the wait has not passed. */
static void awaits_value(void) {
    begin(0);
    struct gv_stream *stream;
    const struct gv_memory_operation wait = {GV_WAIT_VALUE_32, 0, FAKE_GLOBAL, 1}, write = {GV_WRITE_VALUE_32, 0, FAKE_GLOBAL, 1};
    CHECK(ops->stream_create(context, 1, 0, &stream) == 0 && !ops->awaits_value(backend));
    struct gv_stream *both[] = {stream, ops->stream_legacy(context)};
    for (int i = 0; i < 2; i++) {
        fake_driver_hold(true);
        CHECK(ops->memory_operations(both[i], &write, sizeof write) == 0 && !ops->awaits_value(backend));
        CHECK(ops->memory_operations(both[i], &wait, sizeof wait) == 0 && ops->awaits_value(backend) && !ops->at_rest(backend));
        fake_driver_hold(false);
        for (int k = 0; k < 100000 && ops->awaits_value(backend); k++) usleep(1000);
        CHECK(!ops->awaits_value(backend));
    }
    ops->stream_destroy(stream);
    CHECK(!ops->awaits_value(backend));
    end();
}

/* ---- the window ---- */

#define BASE 0x7e9000000000ull /* where sanitizers have none of their own */

/* Memory comes and goes behind the client's addresses, in any pieces; handles of the driver's only as wholes. */
static void window(void) {
    begin(48 * MIB);
    struct gv_device_info info;
    CHECK(ops->device_info(backend, 0, &info) == 0 && !info.attributes[CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED]);
    CHECK(ops->reserve_window(backend, BASE, 64ull << 30) == 0);
    CHECK(ops->device_info(backend, 0, &info) == 0 && info.attributes[CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED]);
    CHECK(ops->memory_back(context, BASE, 40 * MIB, true) == 0);
    CHECK(shown() == 40 * MIB && fake_virtual.handles == 2); /* of at most 32 MiB */
    memset((void *)(uintptr_t)BASE, 7, 40 * MIB);
    CHECK(ops->memory_back(context, BASE + 38 * MIB, 4 * MIB, true) == 1); /* a part is there already */
    CHECK(ops->memory_unback(context, BASE + 4 * MIB, 30 * MIB) == 0);     /* the end of one handle, and some of the next */
    CHECK(shown() == 40 * MIB);
    CHECK(ops->memory_unback(context, BASE + 4 * MIB, 2 * MIB) == 1); /* twice */
    CHECK(ops->memory_back(context, BASE + 4 * MIB, 30 * MIB, true) == 0);
    CHECK(shown() == 40 * MIB && fake_virtual.handles == 2 && *(char *)(uintptr_t)(BASE + 39 * MIB) == 7);
    CHECK(ops->memory_unback(context, BASE, 32 * MIB) == 0); /* the first handle */
    CHECK(shown() == 8 * MIB && fake_virtual.handles == 1 && fake_virtual.mapped_bytes == 8 * MIB);
    /* Around what is there, and no more than there is: what was made for it goes again. */
    CHECK(ops->memory_back(context, BASE, 32 * MIB, false) == 0 && ops->memory_unback(context, BASE, 16 * MIB) == 0);
    CHECK(ops->memory_back(context, BASE + 40 * MIB, 32 * MIB, false) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(shown() == 40 * MIB && fake_virtual.mapped_bytes == 40 * MIB);
    fake_virtual.fail = CUDA_ERROR_UNKNOWN, fake_virtual.fails = FAKE_ACCESS;
    CHECK(ops->memory_back(context, BASE + 40 * MIB, 2 * MIB, false) == CUDA_ERROR_UNKNOWN);
    CHECK(shown() == 40 * MIB && fake_virtual.mapped_bytes == 40 * MIB);
    /* It is parked like any other memory. */
    int file = memfd_create("parked", 0);
    memset((void *)(uintptr_t)(BASE + 32 * MIB), 9, 8 * MIB);
    CHECK(ops->park(backend, file, why) == 0 && fake_virtual.handles == 0);
    CHECK(ops->unpark(backend, file, why) == 0 && *(char *)(uintptr_t)(BASE + 33 * MIB) == 9);
    close(file);
    CHECK(ops->memory_unback(context, BASE + 16 * MIB, 24 * MIB) == 0);
    CHECK(shown() == 0 && fake_virtual.handles == 0 && fake_virtual.mapped_bytes == 0);
    end();
    begin(0);
    CHECK(ops->reserve_window(backend, BASE + MIB, 64ull << 30) == 1 && fake_virtual.freed); /* taken */
    end();
    without = true;
    begin(0);
    CHECK(ops->reserve_window(backend, BASE, 64ull << 30) == CUDA_ERROR_NOT_SUPPORTED);
    end();
    without = false;
}

/* Memory of a session that has ended counts for whoever still has it, from its next command on and until it gives it back. */
static void inherited(void) {
    begin(48 * MIB);
    struct gv_shared s, other;
    struct gv_physical *p;
    CHECK(ops->memory_export(context, allocate(4 * MIB), 4 * MIB, &s) == 0 && s.n_pieces == 1);
    other = s;
    other.fd[0] = dup(s.fd[0]);
    uint64_t own = shown();
    CHECK(own == 4 * MIB && ops->physical_import(context, &other, 7, &p) == 0 && shown() == own);
    ops->exporter_gone(backend, 9); /* another one */
    ops->command_begin(backend), ops->command_end(backend);
    CHECK(shown() == own);
    ops->exporter_gone(backend, 7);
    for (int i = 0; i < 2; i++) ops->command_begin(backend), ops->command_end(backend); /* once */
    CHECK(shown() == own + 4 * MIB);
    CHECK(ops->physical_destroy(p) == 0 && shown() == own);
    ops->export_end(backend, &s);
    end();
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {{"to_the_byte", to_the_byte},
                                             {"small_ones", small_ones},
                                             {"a_context_takes_its_allocations_along", a_context_takes_its_allocations_along},
                                             {"room", room},
                                             {"what_nobody_has_counted", what_nobody_has_counted},
                                             {"parked_and_back", parked_and_back},
                                             {"parking_that_fails", parking_that_fails},
                                             {"coming_back_that_fails", coming_back_that_fails},
                                             {"without_virtual_memory", without_virtual_memory},
                                             {"at_rest", at_rest},
                                             {"awaits_value", awaits_value},
                                             {"window", window},
                                             {"inherited", inherited}};
    if (argc < 2) return 2;
    driver = argv[1];
    return run_cases(cases, sizeof cases / sizeof *cases, argc - 1, argv + 1, 240);
}
