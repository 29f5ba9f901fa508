/* Watches pages by userfaultfd, where the kernel lets this process have it for its system calls as well: those wait like any other access, and signals have no part in it. Pages are shared memory, so a page that the
 * program may not touch is merely not in its page table (a minor fault), and one that it may only read is write-protected. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "objects/managed/pager.h"
#include "session/session.h"

#ifndef UFFDIO_CONTINUE_MODE_WP /* Linux 6.4 */
#define UFFDIO_CONTINUE_MODE_WP ((__u64)1 << 1)
#endif

static int descriptor = -1;
static uint64_t page;
static const struct page_watch *watching;

static void *serve(void *arg) {
    struct uffd_msg m;
    for (;;) {
        ssize_t n = read(descriptor, &m, sizeof m);
        if (n < 0 && errno != EINTR && errno != EAGAIN) return arg;
        if (n != (ssize_t)sizeof m || m.event != UFFD_EVENT_PAGEFAULT) continue;
        uint64_t address = m.arg.pagefault.address;
        /* A page that is no longer watched: let the thread try again, and fail. */
        if (!watching->touched(address, m.arg.pagefault.flags & (UFFD_PAGEFAULT_FLAG_WRITE | UFFD_PAGEFAULT_FLAG_WP)))
            ioctl(descriptor, UFFDIO_WAKE, &(struct uffdio_range){.start = address & ~(page - 1), .len = page});
    }
}

/* Whether the kernel can map a page write-protected at once: else a write could slip in between, and would never be sent. */
static bool maps_protected(void) {
    char *at = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return false;
    *at = 1;
    struct uffdio_register r = {.range = {.start = (uint64_t)(uintptr_t)at, .len = page},
                                .mode = UFFDIO_REGISTER_MODE_MINOR | UFFDIO_REGISTER_MODE_WP};
    struct uffdio_continue c = {.range = r.range, .mode = UFFDIO_CONTINUE_MODE_WP};
    bool works = !madvise(at, page, MADV_DONTNEED) && !ioctl(descriptor, UFFDIO_REGISTER, &r) && !ioctl(descriptor, UFFDIO_CONTINUE, &c);
    munmap(at, page);
    return works;
}

#define FEATURES (UFFD_FEATURE_MISSING_SHMEM | UFFD_FEATURE_MINOR_SHMEM | UFFD_FEATURE_WP_HUGETLBFS_SHMEM | UFFD_FEATURE_EXACT_ADDRESS)

static bool start(const struct page_watch *watch) {
    page = (uint64_t)sysconf(_SC_PAGESIZE);
    watching = watch;
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
    if (fd < 0) {
        int device = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
        if (device >= 0) {
            fd = ioctl(device, USERFAULTFD_IOC_NEW, O_CLOEXEC);
            close(device);
        }
    }
    if (fd < 0) return false;
    struct uffdio_api api = {.api = UFFD_API, .features = FEATURES};
    descriptor = fd;
    if (ioctl(fd, UFFDIO_API, &api) || (api.features & FEATURES) != FEATURES || !maps_protected() ||
        session_thread("gpuvirt-pages", serve, NULL, 0)) {
        close(fd);
        descriptor = -1;
        return false;
    }
    return true;
}

static int watch_pages(uint64_t base, uint64_t size) {
    struct uffdio_register r = {.range = {.start = base, .len = size},
                                .mode = UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_MINOR | UFFDIO_REGISTER_MODE_WP};
    return ioctl(descriptor, UFFDIO_REGISTER, &r) ? -1 : 0;
}

static int set_protection(uint64_t at, uint64_t size, bool on) {
    struct uffdio_writeprotect p = {.range = {.start = at, .len = size}, .mode = on ? UFFDIO_WRITEPROTECT_MODE_WP : 0};
    return ioctl(descriptor, UFFDIO_WRITEPROTECT, &p);
}

/* Puts pages into the program's page table that are not there. Those that are, are passed over. */
static int map(uint64_t at, uint64_t size, bool read_only) {
    for (uint64_t done = 0; done < size;) {
        struct uffdio_continue c = {.range = {.start = at + done, .len = size - done},
                                    .mode = UFFDIO_CONTINUE_MODE_DONTWAKE | (read_only ? UFFDIO_CONTINUE_MODE_WP : 0)};
        if (!ioctl(descriptor, UFFDIO_CONTINUE, &c)) return 0;
        if (c.mapped > 0)
            done += (uint64_t)c.mapped;
        else if (errno == EEXIST)
            done += page;
        else if (errno != EAGAIN)
            return -1;
    }
    return 0;
}

static int protect(uint64_t base, char *view, uint64_t size, enum page_access access) {
    if (access == PAGES_NONE) return madvise((void *)(uintptr_t)base, size, MADV_DONTNEED);
    for (uint64_t i = 0; i < size; i += page) { /* a page that was never written has no memory yet, and cannot be mapped */
        volatile char *c = view + i;
        (void)*c;
    }
    int rc = map(base, size, access == PAGES_READ);
    if (!rc) rc = set_protection(base, size, access == PAGES_READ);
    ioctl(descriptor, UFFDIO_WAKE, &(struct uffdio_range){.start = base, .len = size});
    return rc;
}

static void forget(uint64_t base, uint64_t size) { ioctl(descriptor, UFFDIO_UNREGISTER, &(struct uffdio_range){.start = base, .len = size}); }

const struct pager pager_userfault = {.name = "userfault", .start = start, .watch = watch_pages, .protect = protect, .forget = forget};
