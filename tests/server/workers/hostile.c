/* What a hostile worker tries. attempt() is 0 when it has succeeded, else the errno; the worker library below does what its client says. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "native/worker/worker.h"

static int closed(long fd) {
    if (fd < 0) return errno;
    close((int)fd);
    return 0;
}
static int done(long rc) { return rc < 0 ? errno : 0; }

static int read_file(const char *path) {
    char byte;
    int fd = open(path, O_RDONLY);
    if (fd < 0) return errno;
    int rc = read(fd, &byte, 1) == 1 ? 0 : EIO;
    close(fd);
    return rc;
}
static int write_file(const char *path) { return closed(open(path, O_WRONLY | O_CREAT, 0600)); }
static int list(const char *path) { return closed(open(path, O_RDONLY | O_DIRECTORY)); }
static int set_mode(const char *path) { return done(chmod(path, 0644)); }
static int set_times(const char *path) { return done(utimensat(AT_FDCWD, path, NULL, 0)); }
static int remove_file(const char *path) { return done(unlink(path)); }
static int hard_link(const char *path) { /* to a place where it may write, were it not for this */
    char to[4200];
    snprintf(to, sizeof to, "%s.link", path);
    return done(link(path, to));
}

static int tcp(const char *port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0) return errno;
    int rc = done(connect(fd, (struct sockaddr *)&to, sizeof to));
    close(fd);
    return rc;
}
static int udp(const char *port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    if (fd < 0) return errno;
    int rc = done(sendto(fd, "x", 1, 0, (struct sockaddr *)&to, sizeof to));
    close(fd);
    return rc;
}
static int listening(const char *unused) {
    (void)unused;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0) return errno;
    int rc = done(bind(fd, (struct sockaddr *)&at, sizeof at));
    if (!rc) rc = done(listen(fd, 1));
    close(fd);
    return rc;
}
static int unix_socket(const char *path) {
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    socklen_t size = (socklen_t)(sizeof to.sun_family + strlen(path) + 1);
    snprintf(to.sun_path, sizeof to.sun_path, "%s", path);
    if (path[0] == '@') to.sun_path[0] = 0, size--;
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (fd < 0) return errno;
    int rc = done(connect(fd, (struct sockaddr *)&to, size));
    close(fd);
    return rc;
}
/* A socket that it has is connected to somebody else. */
static int redirect(const char *fd_and_port) {
    struct sockaddr none = {.sa_family = AF_UNSPEC};
    int fd = atoi(fd_and_port), port = atoi(strchr(fd_and_port, ':') + 1);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (connect(fd, &none, sizeof none)) return errno;
    return done(connect(fd, (struct sockaddr *)&to, sizeof to));
}
/* The same without connect: TCP Fast Open. */
static int fast_open(const char *fd_and_port) {
    int fd = atoi(fd_and_port), port = atoi(strchr(fd_and_port, ':') + 1);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct msghdr m = {.msg_name = &to, .msg_namelen = sizeof to, .msg_iov = &(struct iovec){"x", 1}, .msg_iovlen = 1};
    return done(sendmsg(fd, &m, MSG_FASTOPEN | MSG_NOSIGNAL));
}

static int execute(const char *unused) {
    (void)unused;
    execve("/bin/sh", (char *[]){"sh", "-c", "exit 77", NULL}, (char *[]){NULL});
    return errno;
}
static int new_process(long pid) {
    if (pid < 0) return errno;
    if (!pid) _exit(0);
    waitpid((pid_t)pid, NULL, 0);
    return 0;
}
static int forks(const char *unused) { return (void)unused, new_process(fork()); }
static int bare_fork(const char *unused) { return (void)unused, new_process(syscall(SYS_fork)); }
static int clone3_fork(const char *unused) {
    (void)unused;
    uint64_t args[11] = {[4] = SIGCHLD};
    return new_process(syscall(SYS_clone3, args, sizeof args));
}

static int signals(const char *pid) { return done(kill(atoi(pid), SIGURG)); }
static int signals_thread(const char *pid) { return done(syscall(SYS_tgkill, atoi(pid), atoi(pid), SIGURG)); }
static int signals_all(const char *pid) { return done(syscall(SYS_tkill, atoi(pid), SIGURG)); }
static int signals_pidfd(const char *pid) {
    int fd = (int)syscall(SYS_pidfd_open, atoi(pid), 0);
    if (fd < 0) return errno;
    int rc = done(syscall(SYS_pidfd_send_signal, fd, SIGURG, NULL, 0));
    close(fd);
    return rc;
}
/* The kernel sends the signal, on behalf of who has made the other its owner. */
static int signals_owner(const char *pid) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends)) return errno;
    int rc = done(fcntl(ends[0], F_SETOWN, atoi(pid)));
    close(ends[0]);
    close(ends[1]);
    return rc;
}

static int reads_memory(const char *pid_and_address) {
    char here;
    pid_t pid = atoi(pid_and_address);
    void *there = (void *)strtoull(strchr(pid_and_address, ':') + 1, NULL, 0);
    return done(process_vm_readv(pid, &(struct iovec){&here, 1}, 1, &(struct iovec){there, 1}, 1, 0));
}
static int writes_memory(const char *pid_and_address) {
    char here = 'w';
    pid_t pid = atoi(pid_and_address);
    void *there = (void *)strtoull(strchr(pid_and_address, ':') + 1, NULL, 0);
    return done(process_vm_writev(pid, &(struct iovec){&here, 1}, 1, &(struct iovec){there, 1}, 1, 0));
}
static int traces(const char *pid) {
    if (ptrace(PTRACE_SEIZE, atoi(pid), 0, 0)) return errno;
    ptrace(PTRACE_INTERRUPT, atoi(pid), 0, 0);
    waitpid(atoi(pid), NULL, __WALL);
    ptrace(PTRACE_DETACH, atoi(pid), 0, 0);
    return 0;
}
static int takes_descriptor(const char *pid) {
    int fd = (int)syscall(SYS_pidfd_open, atoi(pid), 0);
    if (fd < 0) return errno;
    int rc = closed(syscall(SYS_pidfd_getfd, fd, 0, 0));
    close(fd);
    return rc;
}
static int limits(const char *pid) {
    struct rlimit found;
    return done(prlimit(atoi(pid), RLIMIT_CORE, NULL, &found) ?: prlimit(atoi(pid), RLIMIT_CORE, &found, NULL));
}
static int dumpable(const char *unused) { return (void)unused, prctl(PR_SET_DUMPABLE, 1) ? errno : prctl(PR_GET_DUMPABLE) == 1 ? 0 : EPERM; }

static int mounts(const char *path) {
    int rc = done(mount("none", path, "tmpfs", 0, NULL));
    if (!rc) rc = done(umount2(path, MNT_DETACH));
    return rc;
}
static int namespaces(const char *unused) { return (void)unused, done(unshare(CLONE_NEWNS)); }
static int rings(const char *unused) {
    (void)unused;
    char params[120] = {0};
    return closed(syscall(SYS_io_uring_setup, 2, params));
}
static int faults(const char *unused) { return (void)unused, closed(syscall(SYS_userfaultfd, O_CLOEXEC | 1)); }
static int programs(const char *unused) {
    (void)unused;
    union bpf_attr map = {.map_type = BPF_MAP_TYPE_ARRAY, .key_size = 4, .value_size = 4, .max_entries = 1};
    return closed(syscall(SYS_bpf, BPF_MAP_CREATE, &map, sizeof map));
}
static int keys(const char *unused) { return (void)unused, done(syscall(SYS_keyctl, 0, -5, 1)); }
static int counters(const char *unused) {
    (void)unused;
    struct {
        uint32_t type, size;
        uint64_t rest[15];
    } cpu_clock = {.type = 1, .size = 128};
    return closed(syscall(SYS_perf_event_open, &cpu_clock, 0, -1, -1, 0));
}
static int segments(const char *unused) { return (void)unused, done(syscall(SYS_shmget, 0x67766974, 4096, 01600)); }
static int watches(const char *path) {
    int fd = (int)syscall(SYS_inotify_init1, 0);
    if (fd < 0) return errno;
    int rc = done(syscall(SYS_inotify_add_watch, fd, path, 2));
    close(fd);
    return rc;
}
static int descriptors(const char *count) {
    int last = 0, n = atoi(count), rc = 0;
    for (int i = 0; i < n && !rc; i++) rc = (last = fcntl(0, F_DUPFD_CLOEXEC, last + 1)) < 0 ? errno : 0;
    syscall(SYS_close_range, 100, ~0u, 0);
    return rc;
}
static int core_files(const char *unused) {
    (void)unused;
    struct rlimit found;
    return getrlimit(RLIMIT_CORE, &found) ? errno : found.rlim_max ? 0 : EPERM;
}
/* Memory of the host, in the ways that there are; "MiB" of it, which stay. */
static int keeps(char *at, const char *mib, size_t step, int write) {
    if (at == MAP_FAILED) return errno;
    madvise(at, strtoull(mib, NULL, 0) << 20, MADV_NOHUGEPAGE);
    for (size_t i = 0; i < strtoull(mib, NULL, 0) << 20; i += step)
        if (write)
            at[i] = 1;
        else
            (void)*(volatile char *)(at + i);
    return 0;
}
static int takes(const char *mib, int rights, int flags, int fd, size_t step) {
    return keeps(mmap(NULL, strtoull(mib, NULL, 0) << 20, rights, flags | MAP_NORESERVE, fd, 0), mib, step, rights & PROT_WRITE);
}
static int takes_private(const char *mib) { return takes(mib, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 4096); }
static int takes_shared(const char *mib) { return takes(mib, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 4096); }
static int takes_stack(const char *mib) { return takes(mib, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN, -1, 4096); }
/* Of what is only read the kernel keeps tables, 1/512 of the addresses. */
static int takes_tables(const char *mib) { return takes(mib, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 2 << 20); }
static int takes_file(const char *mib) {
    int fd = memfd_create("hostile", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)(strtoull(mib, NULL, 0) << 20))) return errno;
    return takes(mib, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 4096);
}
static int takes_addresses(const char *mib) {
    void *at = mmap(NULL, strtoull(mib, NULL, 0) << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return at == MAP_FAILED ? errno : done(munmap(at, strtoull(mib, NULL, 0) << 20));
}
static int large_file(const char *path) {
    signal(SIGXFSZ, SIG_IGN);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    if (fd < 0) return errno;
    int rc = done(ftruncate(fd, 3ll << 30));
    if (!rc) rc = done(ftruncate(fd, 0));
    close(fd);
    return rc;
}
/* "MIB PATH": a file of so much. */
/* Its tenant's folder, which it may have no path to, as it is another user. */
static int tenant_folder = -1;
struct module_cache *worker_open_cache(const char *images) {
    char path[4096];
    snprintf(path, sizeof path, "%s/..", images);
    if (tenant_folder >= 0) close(tenant_folder); /* of a tenant that was expected and has not come */
    tenant_folder = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    return NULL;
}

static int fills(const char *mib_and_path) {
    char *path, block[4096];
    size_t left = strtoull(mib_and_path, &path, 0) << 20;
    int fd = openat(tenant_folder, path + 1, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0) return errno;
    memset(block, 1, sizeof block);
    while (left && write(fd, block, sizeof block) == sizeof block) left -= sizeof block;
    return closed(fd) || (left ? ENOSPC : 0);
}
static int makes_folder(const char *path) { return done(mkdirat(tenant_folder, path, 0700)); }

static int owner(const char *path) { return done(chown(path, 1, 1)); }
static int chroots(const char *path) { return done(chroot(path)); }

/* The session's row of the table of memory usage is one page of a file that has all sessions'. */
static void *own_row;
static int grown(void *map) { return map == MAP_FAILED ? errno : 0; }
static int grows_row(const char *unused) { return (void)unused, grown(mremap(own_row, 4096, 8192, MREMAP_MAYMOVE)); }
static int doubles_row(const char *unused) { return (void)unused, grown(mremap(own_row, 0, 8192, MREMAP_MAYMOVE)); }
static int remaps_row(const char *unused) { return (void)unused, done(syscall(SYS_remap_file_pages, own_row, 4096, 0, 0, 0)); }
static int opens_table(const char *unused) {
    (void)unused;
    for (int fd = 3; fd < 200; fd++) {
        char path[64], name[200] = "";
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        if (readlink(path, name, sizeof name - 1) > 0 && strstr(name, "memory-usage")) return closed(open(path, O_RDWR));
    }
    return ENOENT;
}

static const struct {
    const char *name;
    int (*try)(const char *argument);
} attempts[] = {
    {"read", read_file},
    {"write", write_file},
    {"list", list},
    {"chmod", set_mode},
    {"times", set_times},
    {"unlink", remove_file},
    {"link", hard_link},
    {"chown", owner},
    {"tcp", tcp},
    {"udp", udp},
    {"listen", listening},
    {"unix", unix_socket},
    {"redirect", redirect},
    {"fast open", fast_open},
    {"exec", execute},
    {"fork", forks},
    {"bare fork", bare_fork},
    {"clone3", clone3_fork},
    {"kill", signals},
    {"tgkill", signals_thread},
    {"tkill", signals_all},
    {"pidfd signal", signals_pidfd},
    {"owner signal", signals_owner},
    {"read memory", reads_memory},
    {"write memory", writes_memory},
    {"ptrace", traces},
    {"pidfd_getfd", takes_descriptor},
    {"prlimit", limits},
    {"dumpable", dumpable},
    {"mount", mounts},
    {"unshare", namespaces},
    {"io_uring", rings},
    {"userfaultfd", faults},
    {"bpf", programs},
    {"keyctl", keys},
    {"perf", counters},
    {"shmget", segments},
    {"inotify", watches},
    {"descriptors", descriptors},
    {"core", core_files},
    {"private memory", takes_private},
    {"shared memory", takes_shared},
    {"growing stack", takes_stack},
    {"tables", takes_tables},
    {"memory file", takes_file},
    {"addresses", takes_addresses},
    {"large file", large_file},
    {"fill", fills},
    {"folder", makes_folder},
    {"chroot", chroots},
    {"remap row", remaps_row},
    {"double row", doubles_row},
    {"open table", opens_table},
    {"grow row", grows_row},
};

int attempt(const char *name, const char *argument) {
    for (size_t i = 0; i < sizeof attempts / sizeof *attempts; i++)
        if (!strcmp(attempts[i].name, name)) return attempts[i].try(argument);
    return ENOTSUP;
}

/* ---- the worker library: the client sends "NAME|ARGUMENT\n", and hears the errno ---- */

struct worker {
    int fd;
};

struct worker *worker_open(const struct worker_config *c, char *err) {
    (void)err;
    struct worker *w = calloc(1, sizeof *w);
    w->fd = c->fd;
    own_row = c->memory_row;
    return w;
}
int worker_add_channel(struct worker *w, int32_t channel, int32_t fd) { return (void)w, (void)channel, (void)fd, 1; }
int worker_resume(struct worker *w, int32_t channel, int32_t fd, uint32_t epoch) { return (void)w, (void)channel, (void)fd, (void)epoch, 1; }
void worker_client_gone(struct worker *w) { (void)w; }
void worker_notice(struct worker *w, const char *text) { (void)w, (void)text; }
void worker_get_figures(struct worker *w, struct worker_figures *f) { (void)w, memset(f, 0, sizeof *f); }
void worker_close(struct worker *w) { free(w); }
int worker_run(struct worker *w, char *err) {
    char line[5000], answer[20], *argument;
    FILE *in = fdopen(dup(w->fd), "r");
    err[0] = 0;
    while (fgets(line, sizeof line, in)) {
        line[strcspn(line, "\n")] = 0;
        if (!(argument = strchr(line, '|'))) return 2;
        *argument++ = 0;
        char with_fd[5000];
        if (!strncmp(argument, "FD:", 3)) snprintf(with_fd, sizeof with_fd, "%d%s", w->fd, argument + 2), argument = with_fd;
        int n = snprintf(answer, sizeof answer, "%d\n", attempt(line, argument));
        if (write(w->fd, answer, (size_t)n) != n) return 1;
    }
    return 0;
}
