"""Which system calls a worker may make: what it needs, named one by one; all others fail.

Landlock has the files, and does not know all that can be done to them (modes, owners, times), to processes and to memory. Where the kernel has no
Landlock, this is what remains.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping

from gpuvirt.server.box.bpf import ALLOW, Case, Condition, assemble, fails
from gpuvirt.server.box.numbers import NUMBER

_INT = 0xFFFFFFFF
_WORD = 0xFFFFFFFFFFFFFFFF


def _names(text: str) -> list[str]:
    return text.split()


_MEMORY = _names("""
    brk mmap mprotect munmap mremap madvise msync mincore mlock mlock2 munlock membarrier memfd_create mbind get_mempolicy set_mempolicy
    set_mempolicy_home_node pkey_mprotect pkey_alloc pkey_free mseal
""")
_THREADS = _names("""
    exit exit_group futex futex_waitv futex_wake futex_wait futex_requeue set_robust_list get_robust_list set_tid_address rseq gettid getpid
    getppid sched_yield sched_getaffinity sched_getparam sched_getscheduler sched_getattr sched_get_priority_max sched_get_priority_min
    getpriority getcpu arch_prctl wait4 waitid
""")
_SIGNALS = _names("""
    rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigtimedwait rt_sigsuspend sigaltstack pause restart_syscall
""")
_TIME = _names("""
    nanosleep clock_nanosleep clock_gettime clock_getres gettimeofday time times getitimer setitimer alarm timer_create timer_settime
    timer_gettime timer_getoverrun timer_delete timerfd_create timerfd_settime timerfd_gettime
""")
_EVENTS = _names("""
    poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2 eventfd eventfd2 pipe pipe2 signalfd
    signalfd4
""")
_DESCRIPTORS = _names("""
    read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 lseek close close_range dup dup2 dup3 flock fsync fdatasync
    ftruncate fallocate fadvise64 readahead sync_file_range getdents getdents64 fstat fstatfs sendfile copy_file_range pidfd_open
""")
_PATHS = _names("""
    open openat openat2 access faccessat faccessat2 stat lstat newfstatat statx statfs readlink readlinkat getcwd mkdir mkdirat rmdir unlink
    unlinkat rename renameat renameat2 umask
""")
_SOCKETS = _names("""
    recvfrom recvmsg recvmmsg shutdown getsockname getpeername setsockopt getsockopt socketpair
""")  # of the connections that it was given
_FACTS = _names("""
    uname sysinfo getrusage getuid geteuid getgid getegid getgroups getresuid getresgid getpgrp getpgid getsid getrandom capget getrlimit
    setrlimit
""")
NEEDED = (*_MEMORY, *_THREADS, *_SIGNALS, *_TIME, *_EVENTS, *_DESCRIPTORS, *_PATHS, *_SOCKETS, *_FACTS)

# What a hostile worker tries: these fail with EPERM. All that is named nowhere here fails as if the kernel did not have it, so that libraries take
# their older ways (clone3, whose flags a filter cannot see).
FORBIDDEN = _names("""
    execve execveat fork vfork ptrace process_vm_readv process_vm_writev process_madvise process_mrelease kcmp pidfd_getfd pidfd_send_signal
    tkill rt_sigqueueinfo socket connect bind listen accept accept4 mount umount2 pivot_root chroot move_mount open_tree fsopen fsconfig
    fsmount fspick mount_setattr setns unshare bpf keyctl add_key request_key io_uring_setup io_uring_enter io_uring_register userfaultfd
    perf_event_open init_module finit_module delete_module kexec_load kexec_file_load reboot syslog acct swapon swapoff quotactl quotactl_fd
    settimeofday clock_settime adjtimex clock_adjtime sethostname setdomainname iopl ioperm modify_ldt personality remap_file_pages
    name_to_handle_at open_by_handle_at fanotify_init fanotify_mark inotify_init inotify_init1 inotify_add_watch chmod fchmod fchmodat
    fchmodat2 chown fchown lchown fchownat setxattr lsetxattr fsetxattr setxattrat removexattr lremovexattr fremovexattr utime utimes
    futimesat truncate creat link linkat symlink symlinkat mknod mknodat chdir fchdir shmget shmat shmctl shmdt semget semop semctl
    semtimedop msgget msgsnd msgrcv msgctl mq_open mq_unlink setuid setgid setreuid setregid setresuid setresgid setgroups setfsuid setfsgid
    capset setsid setpgid setpriority ioprio_set sched_setscheduler sched_setparam sched_setattr migrate_pages move_pages vmsplice splice
    tee memfd_secret seccomp landlock_create_ruleset landlock_add_rule landlock_restrict_self
""")

_CLONE_THREAD = 0x00010000
_CLONE_OTHERS = 0x7E022000  # new namespaces, CLONE_PTRACE
_SHARED_ANONYMOUS = 0x21  # MAP_ANONYMOUS with the bit that MAP_SHARED and MAP_SHARED_VALIDATE have in common
_GROWSDOWN = 0x0100
_MSG_FASTOPEN = 0x20000000  # which connects a socket
# Duplicates, flags, locks, sizes of pipes, seals. Not F_SETOWN, by which the kernel sends signals.
_FCNTL = (0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030, 1031, 1032, 1033, 1034)
# FIONREAD, FIONBIO, close-on-exec, what isatty asks, bytes that are not sent yet.
_IOCTL = (0x541B, 0x5421, 0x5450, 0x5451, 0x5401, 0x5411, 0x5413, 0x894B, 0x802C542A, 0xC0181B01)
# Typing into a terminal (TIOCSTI, TIOCLINUX) and taking it, signals (FIOSETOWN, SIOCSPGRP).
_IOCTL_NEVER = (0x5412, 0x541C, 0x541D, 0x5423, 0x540E, 0x8901, 0x8902)
# Names, timer slack, names of mappings, questions. Not PR_SET_DUMPABLE, not PR_SET_PTRACER.
_PRCTL = (3, 15, 16, 21, 29, 30, 39, 0x53564D41)
_AF_UNIX = 1

_YES, _NO, _ABSENT = Case(ALLOW), Case(fails(errno.EPERM)), Case(fails(errno.ENOSYS))


def _if_any(index: int, values: Iterable[int], mask: int = _INT) -> list[Case]:
    """Allowed if an argument is one of these."""
    return [*(Case(ALLOW, (Condition(index, mask, value),)) for value in values), _NO]


def rules(pid: int, backend: str, network: bool = False, leave_out: frozenset[str] = frozenset(), fixed_page: int = 0) -> Mapping[int, list[Case]]:
    """The cases of each call.

    Args:
        pid: of the worker, which may send signals to itself.
        backend: "soft" or "cuda", whose driver speaks to devices and has a socket of its own for debuggers.
        network: whether it may connect to others.
        leave_out: names of calls that stay as they are; for tests.
        fixed_page: the address of a page that must not be moved, grown or doubled, 0: none.
    """
    own = {
        "clone": [Case(ALLOW, (Condition(0, _CLONE_THREAD | _CLONE_OTHERS, _CLONE_THREAD),)), _NO],
        "kill": _if_any(0, [pid]),
        "tgkill": _if_any(0, [pid]),
        "rt_tgsigqueueinfo": _if_any(0, [pid]),
        "prlimit64": _if_any(0, [0, pid]),
        "sched_setaffinity": _if_any(0, [0]),
        "utimensat": _if_any(1, [0], _WORD),  # of an open file, not of a path
        "prctl": _if_any(0, _PRCTL),
        "fcntl": _if_any(1, _FCNTL),
        "ioctl": _if_any(1, _IOCTL),
        "sendto": [Case(ALLOW, (Condition(3, _MSG_FASTOPEN, 0), Condition(4, _WORD, 0))), _NO],
        "sendmsg": [Case(ALLOW, (Condition(2, _MSG_FASTOPEN, 0),)), _NO],
        "sendmmsg": [Case(ALLOW, (Condition(3, _MSG_FASTOPEN, 0),)), _NO],
    }
    if fixed_page:
        own["mremap"] = [Case(_NO.verdict, (Condition(0, _WORD & ~0xFFF, fixed_page),)), _YES]
    if backend == "soft":
        # Memory that RLIMIT_DATA does not count: shared, in a memory file, of a stack that grows. What has to be shared lies in one file of a sealed
        # size, made before the box is closed.
        own["mmap"] = [
            Case(_NO.verdict, (Condition(3, _SHARED_ANONYMOUS, _SHARED_ANONYMOUS),)),
            Case(_NO.verdict, (Condition(3, _GROWSDOWN, _GROWSDOWN),)),
            _YES,
        ]
        own["memfd_create"] = [_NO]
    if backend == "cuda":
        own["ioctl"] = [*(Case(_NO.verdict, (Condition(1, _INT, request),)) for request in _IOCTL_NEVER), _YES]
        own["socket"] = _if_any(0, [_AF_UNIX])
        own |= {name: [_YES] for name in ("bind", "listen", "accept", "accept4")}
        # The driver asks for a daemon that shares GPUs (MPS), and goes on alone only where there is none: any other error ends cuInit.
        own["connect"] = [Case(fails(errno.ENOENT))]
    if network:
        own |= {name: [_YES] for name in ("socket", "connect", "sendto", "sendmsg", "sendmmsg")}
    named = {name: [_YES] for name in NEEDED} | {name: [_NO] for name in FORBIDDEN} | own
    if unknown := leave_out - NUMBER.keys():
        raise ValueError(f"there is no system call {min(unknown)}")
    return {NUMBER[name]: cases for name, cases in named.items()} | {NUMBER[name]: [_YES] for name in leave_out}


def nothing_new() -> bytes:
    """A filter that denies processes and threads, and nothing else."""
    return assemble({NUMBER[name]: [_NO] for name in ("clone", "fork", "vfork", "clone3")}, ALLOW)


def program(pid: int, backend: str, network: bool = False, leave_out: frozenset[str] = frozenset(), fixed_page: int = 0) -> bytes:
    """The filter for `bpf.install`; arguments as for `rules`."""
    return assemble(rules(pid, backend, network, leave_out, fixed_page), _ABSENT.verdict)
