"""A worker that takes more of the host's memory than its session may is ended, its client hears why, and nobody else notices."""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.harness import clean_environment, run_program, start_server
from server.harness import FakeServer, start_fake, wait_until
from server.held_session import Held

from gpuvirt.server.limits import cgroups, host_memory
from gpuvirt.server.workers.template import WORKER_COMMAND
from gpuvirt.transport import handshake as hs

MIB = 1 << 20
DEVICE, BESIDE = 64 * MIB, 320 * MIB  # what a session may take: on its GPU, beside it
MORE = 1024  # MiB that a hostile one takes


def place_for_cgroups() -> Path | str:
    """A cgroup below which this test may make one for a daemon, else why not."""
    mounted, inside = cgroups._mount(cgroups.MOUNTS), cgroups._own(cgroups.OWN)
    if mounted is None or inside is None:
        return "no cgroups of version 2 are mounted"
    own = mounted / inside.lstrip("/")
    for folder in (own, own.parent):
        with contextlib.suppress(OSError):
            if not (folder / "cgroup.type").exists() and "memory" in (folder / "cgroup.controllers").read_text().split():
                (folder / "cgroup.subtree_control").write_text("+memory")
            if "memory" in (folder / "cgroup.subtree_control").read_text().split() and os.access(folder / "cgroup.procs", os.W_OK):
                return folder
    return f"memory of cgroups below {own} is not this user's to give on; try: systemd-run --user --scope -p Delegate=yes"


@pytest.fixture
def delegated() -> Iterator[Path]:
    """A cgroup for a daemon alone."""
    found = place_for_cgroups()
    if isinstance(found, str):
        pytest.skip(found)
    folder = found / f"gpuvirt-test-{os.getpid()}"
    folder.mkdir()
    yield folder
    wait_until(lambda: cgroups._remove(folder))


@pytest.fixture
def served(hostile: Path, tmp_path: Path) -> Iterator[Callable[..., FakeServer]]:
    """Real daemons with workers that take what their clients tell them to."""
    servers: list[FakeServer] = []

    def start(cgroup: Path | None = None, **options: Any) -> FakeServer:
        command = ["env", f"GPUVIRT_LIB_DIR={hostile}", *WORKER_COMMAND]
        entrance = str(cgroup / "cgroup.procs") if cgroup else None
        sizes = {"gpu_memory": DEVICE, "host_memory_per_session": BESIDE} | options
        servers.append(start_fake(tmp_path / "server", worker=command, entrance=entrance, **sizes))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


def assert_ended_for_it(server: FakeServer, taker: Held, other: Held) -> None:
    wait_until(lambda: len(server.ask("ps")["sessions"]) == 1)
    assert other.tries("private memory", 16) == 0, "another session goes on"
    told = taker.resumes()
    assert told.status == hs.WELCOME_UNKNOWN and "more than its 384.0 MiB of host memory" in told.text, told.text
    assert "--host-memory-per-session" in told.text
    assert "no such session" in taker.resumes(bytes(32)).text, "only who has the session's key is told"
    third = Held(server)
    assert third.tries("private memory", 16) == 0


@pytest.mark.slow
@pytest.mark.parametrize("what", ["private memory", "tables"])
def test_a_worker_above_its_bound_is_ended_where_there_are_no_cgroups(served: Callable[..., FakeServer], what: str) -> None:
    if not isinstance(cgroups.find(), str):
        pytest.skip("the daemon would have cgroups here")
    server = served()
    other, taker = Held(server), Held(server)
    assert taker.tries(what, MORE if what == "private memory" else MORE * 512) in (0, None)
    assert taker.is_over()
    assert_ended_for_it(server, taker, other)
    assert "more than its 384.0 MiB of host memory" in server.stop()


@pytest.mark.slow
@pytest.mark.parametrize("box", ["auto", "off"])
def test_a_cgroup_bounds_all_that_a_worker_takes(delegated: Path, served: Callable[..., FakeServer], box: str) -> None:
    server = served(delegated, box=box)
    for what in ("private memory", "tables") if box == "auto" else ("shared memory", "memory file", "growing stack"):
        other, taker = Held(server), Held(server)
        workers = sorted(delegated.glob("gpuvirt-worker-*"))
        assert {(w / "memory.max").read_text().strip() for w in workers} >= {str(DEVICE + BESIDE)}, server.log.read_text()
        assert taker.tries(what, MORE if what != "tables" else MORE * 512) is None, what
        assert_ended_for_it(server, taker, other)
        other.sock.close()
        wait_until(lambda: not server.ask("ps")["sessions"])
    wait_until(lambda: len(list(delegated.glob("gpuvirt-worker-*"))) == 1)  # that of the worker that waits
    assert "each worker's memory is bounded by a cgroup" in server.stop()
    assert not list(delegated.glob("gpuvirt-*"))


@pytest.mark.slow
def test_a_killed_daemons_cgroups_are_removed_at_the_next_start(delegated: Path, served: Callable[..., FakeServer]) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    empty, busy, foreign = (delegated / f"gpuvirt-worker-{name}" for name in (f"{gone.pid}-1", f"{gone.pid}-2", f"{os.getpid()}-1"))
    for folder in (empty, busy, foreign):
        folder.mkdir()
    with subprocess.Popen(["sleep", "600"]) as carries_on:
        (busy / "cgroup.procs").write_text(str(carries_on.pid))
        server = served(delegated)
        assert not empty.exists() and busy.exists() and foreign.exists(), "of another daemon that lives, or whose worker does"
        server.stop()
        carries_on.kill()
    wait_until(lambda: cgroups._remove(busy) and cgroups._remove(foreign))


# A kernel without loops whose compilation takes hundreds of MiB, beside a client whose kernel is small.
COMPILES = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
lines = "\\n".join(f"fma.rn.f32 %f{1 + i * 7 % 97}, %f{1 + i * 5 % 97}, %f{1 + i * 3 % 97}, %f{1 + i % 97};" for i in range(int(sys.argv[1])))
ptx = f'''.version 7.0
.target sm_50
.address_size 64
.visible .entry k(.param .u64 p) {{
.reg .f32 %f<100>; .reg .b64 %d<2>;
ld.param.u64 %d1, [p]; ld.global.f32 %f1, [%d1];
{lines}
st.global.f32 [%d1], %f1; ret;
}}'''
made, at = ctypes.c_void_p(), ctypes.c_uint64()
for name, *given in (("cuInit", 0), ("cuCtxCreate_v2", ctypes.byref(made), 0, 0), ("cuMemAlloc_v2", ctypes.byref(at), 4)):
    assert not getattr(cuda, name)(*given), name
module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
code = cuda.cuModuleLoadData(ctypes.byref(module), ptx.encode()) or cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"k")
parameters = (ctypes.c_void_p * 1)(ctypes.addressof(at))
code = code or cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, None, parameters, None) or cuda.cuCtxSynchronize()
print(code)
"""


@pytest.mark.slow
def test_a_compilation_that_explodes_ends_its_session_alone(tmp_path: Path) -> None:
    env = clean_environment(GPUVIRT_CACHE=str(tmp_path / "cache"))  # in which this kernel is not
    server = start_server(tmp_path, "--backend", "soft", "--gpu-memory", "16m", "--host-memory-per-session", "112m", env=env)
    try:
        large = run_program(server, [sys.executable, "-c", COMPILES, "80000"])
        assert large.stdout != "0\n", large.stdout + large.stderr
        assert "more than its 128.0 MiB of host memory" in large.stderr and "--host-memory-per-session" in large.stderr, large.stderr
        small = run_program(server, [sys.executable, "-c", COMPILES, "10"])
        assert small.stdout == "0\n", small.stdout + small.stderr
    finally:
        server.stop()


# ---- what the daemon finds out at its start, by copies of what the kernel shows ------------------------------------------------------------------


@pytest.fixture
def shown(tmp_path: Path) -> Callable[..., Any]:
    """`cgroups.find` on a machine as described."""

    def find(controllers: str = "cpu memory pids", inside: str = "/service", others: str = "", kind: str = "cgroup2", root: bool = False) -> Any:
        folder = tmp_path / "mounted" / inside.strip("/")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup.controllers").write_text(controllers)
        (folder / "cgroup.procs").write_text(f"{os.getpid()}\n{others}")
        (folder / "cgroup.subtree_control").write_text("")
        if not root:
            (folder / "cgroup.type").write_text("domain")
        (tmp_path / "mounts").write_text(f"1 2 0:3 / / rw - ext4 /dev/a rw\n25 22 0:23 / {tmp_path}/mounted rw shared:4 - {kind} none rw\n")
        (tmp_path / "own").write_text(f"4:memory:/other\n0::{inside}\n")
        return cgroups.find(tmp_path / "mounts", tmp_path / "own")

    return find


def test_where_cgroups_can_be_made(shown: Callable[..., Any], tmp_path: Path) -> None:
    assert shown() == cgroups.Place(tmp_path / "mounted" / "service", root=False)
    assert shown(inside="/", root=True, others="1\n") == cgroups.Place(tmp_path / "mounted", root=True)


@pytest.mark.parametrize(
    ("machine", "why"),
    [
        ({"kind": "cgroup"}, "no cgroups of version 2"),
        ({"controllers": "hugetlb"}, "no controller of memory"),
        ({"others": "1\n"}, "other processes .such as 1. are in the cgroup"),
        ({"inside": "/../above"}, "outside of what is mounted"),
    ],
)
def test_why_there_are_no_cgroups(shown: Callable[..., Any], machine: dict[str, str], why: str) -> None:
    found = shown(**machine)
    assert isinstance(found, str)
    assert re.search(why, found)


def test_what_a_process_has() -> None:
    before = host_memory.taken(os.getpid())
    with mmap.mmap(-1, 32 * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as kept:  # the heap may have as much that is free
        for page in range(0, len(kept), mmap.PAGESIZE):
            kept[page] = 1
        assert 24 * MIB < host_memory.taken(os.getpid()) - before < 64 * MIB
    assert host_memory.taken(2**22 - 1) == 0
