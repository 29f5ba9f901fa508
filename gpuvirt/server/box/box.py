"""Puts this process into its box. A worker does so itself, when it knows its session and before the session's first byte is read: what runs before is
gpuvirt's own code, and what comes after is at the mercy of a stranger's."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from pathlib import Path

from gpuvirt.errors import GpuvirtError
from gpuvirt.server.box import bpf, calls, files, kernel, landlock

FILES = 4096  # descriptors
FILE_BYTES = 2 << 30  # of one file: an image, a compiled kernel, a parked session of software GPUs
STACKS = 64 << 30  # addresses: of thousands of threads and fibers, of whose stacks little is ever touched (native/backend/soft/engine)
PARTS = frozenset({"limits", "user", "capabilities", "new_privs", "dumpable", "files", "network", "scopes", "calls"})
THREADS = 16384  # of all sessions of a tenant, where it has a user of its own


@dataclass(frozen=True)
class Box:
    """What one worker may do.

    Attributes:
        backend: "soft" or "cuda".
        driver: cuda: the driver library.
        client: whether the driver is gpuvirt's own client library, which dials another server.
        user: the user and group that the process becomes, 0: it stays who it is.
        folder: a descriptor of the tenant's folder, -1: none.
        file_bytes: bytes that a file may have, 0: any.
        data: bytes of writable addresses of its own that the process may have (RLIMIT_DATA), 0: any.
        fixed_page: the address of a page that must not be moved, grown or doubled, 0: none.
        leave_out: `PARTS` that are not applied, and names of system calls that are allowed; for tests.
    """

    backend: str
    driver: Path | None = None
    client: bool = False
    user: int = 0
    folder: int = -1
    file_bytes: int = FILE_BYTES
    data: int = 0
    fixed_page: int = 0
    leave_out: frozenset[str] = frozenset()

    def close(self) -> None:
        """Applies what this kernel has. There is no way back.

        Raises:
            GpuvirtError: a part that the kernel has could not be applied, or the process has several threads; the process must not go on then.
        """
        if kernel.threads() != 1:
            raise GpuvirtError("the box cannot be closed: the worker has threads already")
        try:
            self._apply()
        except OSError as error:
            raise GpuvirtError(f"the box cannot be closed ({error}); to go without: gpuvirt serve --box off") from None

    def _apply(self) -> None:
        out = self.leave_out
        prepared = None if out or self.client else _prepared.pop((self.backend, self.fixed_page), None)
        rules, program = prepared or (self._rules(), self._program())
        if rules is not None:
            if self.folder >= 0:
                rules.allow(self.folder, landlock.KEEP)
            if self.driver is not None:
                files.allow_driver(rules, self.driver, os.getpid())
        if "limits" not in out:
            limit(self.user != 0, self.data, self.file_bytes)
        if self.user and "user" not in out:
            os.setgroups([])
            os.setresgid(self.user, self.user, self.user)
            os.setresuid(self.user, self.user, self.user)
        if kernel.known_machine() and "capabilities" not in out:
            kernel.drop_capabilities()
        if "new_privs" not in out:
            kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        kernel.prctl(kernel.PR_SET_DUMPABLE, int("dumpable" in out))
        if rules is not None:
            rules.restrict()
        if program is not None:
            bpf.install(program)

    def _rules(self) -> landlock.Ruleset | None:
        version, out = landlock.abi(), self.leave_out
        if not version:
            return None
        network = self.client or "network" in out
        rules = landlock.Ruleset(version, network, "scopes" not in out and not self.client, "files" not in out)
        files.allow_code(rules, os.getpid())
        if self.client:
            files.allow_client(rules)
        return rules

    def _program(self) -> bytes | None:
        if "calls" in self.leave_out or not bpf.available():
            return None
        return calls.program(os.getpid(), self.backend, self.client, self.leave_out - PARTS, self.fixed_page)


_prepared: dict[tuple[str, int], tuple[landlock.Ruleset | None, bytes | None]] = {}  # by backend and fixed page


def prepare(backend: str, fixed_page: int = 0) -> None:
    """Makes what every session's box has in common, before a session comes: most of the time that closing takes. Not across a fork."""
    plain = Box(backend, fixed_page=fixed_page)
    _prepared[backend, fixed_page] = plain._rules(), plain._program()


def helper(user: int, data: int) -> Box:
    """The box of a process that compiles for a worker: no files but code, no network; it may fork, and then has to call `no_more_processes`."""
    return Box("soft", user=user, data=data, leave_out=frozenset({"clone", "prctl"}))


def no_more_processes() -> None:
    """Takes the right to make processes and threads from this process and all that it starts."""
    if bpf.available():
        bpf.install(calls.nothing_new())


def limit(own_user: bool, data: int = 0, file_bytes: int = 0) -> None:
    """Sets the resource limits, soft and hard: no core files, few descriptors, no priorities; of addresses and of each file where it is not 0."""
    wanted = [(resource.RLIMIT_CORE, 0), (resource.RLIMIT_NOFILE, FILES), (resource.RLIMIT_MSGQUEUE, 0)]
    wanted += [(which, most) for which, most in ((resource.RLIMIT_DATA, data), (resource.RLIMIT_FSIZE, file_bytes)) if most]
    wanted += [(resource.RLIMIT_NICE, 0), (resource.RLIMIT_RTPRIO, 0)]
    if own_user:
        wanted.append((resource.RLIMIT_NPROC, THREADS))
    for which, most in wanted:
        _, hard = resource.getrlimit(which)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(which, (most, most))
