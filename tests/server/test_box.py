"""What a hostile worker tries in its box, and which parts of the box stop it: each of them alone, and none of them: then the attempt succeeds."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from server.harness import HERE, FakeServer, environment, start_fake

from gpuvirt.server.box import features
from gpuvirt.server.workers.template import WORKER_COMMAND
from gpuvirt.transport.handshake import WELCOME_OK
from gpuvirt.transport.token import Token, parse_token

pytestmark = pytest.mark.skipif(bool(features.missing()), reason="this kernel has no Landlock or no seccomp filters")

# What Landlock does to a process under any of its rules: it may not look into processes that are not.
PEEK = ("files", "network", "scopes", "capabilities")


@dataclass(frozen=True)
class Attempt:
    """stops: the parts of the box each of which stops it. rare: some kernels do not have it at all. soft: real drivers may need it."""

    name: str
    argument: str
    stops: tuple[str, ...]
    rare: bool = field(default=False, kw_only=True)
    soft: bool = field(default=False, kw_only=True)

    def __str__(self) -> str:
        return f"{self.name} {self.argument}".strip()


ATTEMPTS = [
    Attempt("read", "{tmp}/state/tokens.json", ("files",)),
    Attempt("read", "{tmp}/state/server.key", ("files",)),
    Attempt("list", "{tmp}/state", ("files",)),
    Attempt("write", "{tmp}/state/tokens.json", ("files",)),
    Attempt("unlink", "{tmp}/state/other", ("files",)),
    Attempt("write", "{tmp}/tenants/another/kernels/planted", ("files",)),
    Attempt("read", "{tmp}/tenants/another/kernels/entry", ("files",)),
    Attempt("write", "/dev/shm/{unique}", ("files",)),
    Attempt("link", "{tmp}/tenants/own/entry", ("link",)),
    Attempt("chmod", "{tmp}/state/tokens.json", ("chmod",)),
    Attempt("chown", "{tmp}/state/mine", ("chown", "capabilities")),
    Attempt("times", "{tmp}/state/tokens.json", ("utimensat",)),
    Attempt("inotify", "{tmp}/state", ("inotify_init1",)),
    Attempt("read", "/proc/{victim}/environ", ("files", "capabilities")),
    Attempt("read", "/proc/{victim}/cmdline", ("files",)),
    Attempt("list", "/proc/{victim}/fd", ("files",)),
    Attempt("read memory", "{victim}:{address}", ("process_vm_readv", *PEEK)),
    Attempt("write memory", "{victim}:{address}", ("process_vm_writev", *PEEK)),
    Attempt("ptrace", "{victim}", ("ptrace", *PEEK)),
    Attempt("pidfd_getfd", "{victim}", ("pidfd_getfd", *PEEK)),
    Attempt("kill", "{victim}", ("kill", "scopes")),
    Attempt("tgkill", "{victim}", ("tgkill", "scopes")),
    Attempt("tkill", "{victim}", ("tkill", "scopes")),
    Attempt("pidfd signal", "{victim}", ("pidfd_send_signal", "scopes")),
    Attempt("owner signal", "{victim}", ("fcntl",)),
    Attempt("prlimit", "{victim}", ("prlimit64",)),
    Attempt("tcp", "{port}", ("socket", "network")),
    Attempt("tcp", "{port}", ("connect", "network")),
    Attempt("udp", "{port}", ("socket",)),
    Attempt("listen", "", ("socket", "network")),
    Attempt("listen", "", ("bind", "network")),
    Attempt("unix", "@{unique}", ("socket", "scopes")),
    Attempt("unix", "{tmp}/socket", ("connect",)),
    Attempt("redirect", "CONNECTED:{port}", ("connect", "network")),
    Attempt("fast open", "FRESH:{port}", ("sendmsg",)),
    Attempt("exec", "", ("execve", "files")),
    Attempt("fork", "", ("clone",)),
    Attempt("bare fork", "", ("fork",)),
    Attempt("clone3", "", ("clone3",)),
    Attempt("dumpable", "", ("prctl",)),
    Attempt("mount", "{tmp}/mount", ("mount", "files", "capabilities")),
    Attempt("unshare", "", ("unshare", "capabilities")),
    Attempt("chroot", "{tmp}/state", ("chroot", "capabilities")),
    Attempt("descriptors", "5000", ("limits",)),
    Attempt("core", "", ("limits",)),
    Attempt("addresses", "16384", ("limits",), soft=True),
    Attempt("shared memory", "4", ("mmap",), soft=True),
    Attempt("growing stack", "4", ("mmap",), soft=True),
    Attempt("memory file", "4", ("memfd_create",), soft=True),
    Attempt("large file", "{tmp}/tenants/own/large", ("limits",), soft=True),
    Attempt("write", "/tmp/{unique}", ("files",)),
    Attempt("write", "/var/tmp/{unique}", ("files",)),
    Attempt("io_uring", "", ("io_uring_setup",), rare=True),
    Attempt("userfaultfd", "", ("userfaultfd",), rare=True),
    Attempt("bpf", "", ("bpf", "capabilities"), rare=True),
    Attempt("keyctl", "", ("keyctl",), rare=True),
    Attempt("perf", "", ("perf_event_open", "capabilities"), rare=True),
    Attempt("shmget", "", ("shmget",), rare=True),
]

# What it takes besides, before an attempt can get as far as the part that it tests.
BESIDES = {
    "tcp": ("socket", "connect"), "udp": ("socket", "sendto"), "listen": ("socket", "bind", "listen"), "unix": ("socket", "connect"),
    "inotify": ("inotify_init1", "inotify_add_watch"), "mount": ("umount2",),
}  # fmt: skip

VICTIM = """
import ctypes, time
room = ctypes.create_string_buffer(b"another session's secret")
print(ctypes.addressof(room), flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What there is to attack."""
    tmp = tmp_path_factory.mktemp("places")
    for folder in ("state", "mount", "tenants/own", "tenants/another/kernels"):
        (tmp / folder).mkdir(parents=True)
    for file in ("state/tokens.json", "state/server.key", "tenants/another/kernels/entry", "tenants/own/entry"):
        (tmp / file).write_text("secret")
        (tmp / file).chmod(0o600)
    victim = subprocess.Popen([sys.executable, "-S", "-c", VICTIM], stdout=subprocess.PIPE, text=True, env={"SECRET": "secret"})
    assert victim.stdout is not None
    unique = f"gpuvirt-test-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0), backlog=200) as server, socket.socket(socket.AF_UNIX) as path, socket.socket(socket.AF_UNIX) as name:
        path.bind(str(tmp / "socket"))
        path.listen(200)
        name.bind(f"\0{unique}")
        name.listen(200)
        address = victim.stdout.readline().strip()
        yield {"tmp": tmp, "victim": victim.pid, "address": address, "port": server.getsockname()[1], "unique": unique}
    victim.kill()
    victim.communicate()
    for folder in ("/dev/shm", "/tmp", "/var/tmp"):
        Path(folder, unique).unlink(missing_ok=True)


def refresh(places: dict[str, Any]) -> None:
    for name in ("other", "mine"):
        (places["tmp"] / "state" / name).unlink(missing_ok=True)
        (places["tmp"] / "state" / name).touch()
    (places["tmp"] / "tenants" / "own" / "entry.link").unlink(missing_ok=True)
    (places["tmp"] / "tenants" / "another" / "kernels" / "planted").unlink(missing_ok=True)


def ask(hostile: Path, folder: Path, **more: Any) -> list[int]:
    """What box_attempts.py says."""
    text = json.dumps({"library": str(hostile / "libgpuvirt_worker.so"), "folder": str(folder / "tenants" / "own"), **more})
    line = [sys.executable, str(HERE / "box_attempts.py")]
    done = subprocess.run(line, input=text, capture_output=True, text=True, timeout=500, env=environment(folder))
    assert done.returncode == 0, done.stderr
    found: list[int] = json.loads(done.stdout)
    return found


def come_to(hostile: Path, places: dict[str, Any], asked: list[tuple[list[str] | None, Attempt]], backend: str = "soft") -> list[int]:
    refresh(places)
    return ask(hostile, places["tmp"], attempts=[[backend, out, a.name, a.argument.format(**places)] for out, a in asked])


def test_nothing_succeeds_in_the_box(hostile: Path, places: dict[str, Any]) -> None:
    for backend in ("soft", "cuda"):
        attempts = [attempt for attempt in ATTEMPTS if backend == "soft" or not attempt.soft]
        found = come_to(hostile, places, [([], attempt) for attempt in attempts], backend)
        wrong = {str(a): code for a, code in zip(attempts, found, strict=True) if code in (0, 255) or code < 0}
        assert not wrong, backend


NAMES_A_THREAD = """
import errno, os, socket, sys, threading
from pathlib import Path
from gpuvirt.server.box.box import Box
Box("cuda", driver=Path("/nowhere/libcuda.so.1"), user=int(sys.argv[1]), leave_out=frozenset(sys.argv[2:])).close()
go = threading.Event()
thread = threading.Thread(target=go.wait)
thread.start()
name = Path(f"/proc/self/task/{thread.native_id}/comm")
try:
    name.write_text("cuda0001")
    print(name.read_text().strip())
except OSError as error:
    print(errno.errorcode[error.errno])
go.set()
shared = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
try:
    shared.connect("/tmp/nvidia-mps/control")
except OSError as error:
    print(errno.errorcode[error.errno])
"""


@pytest.mark.parametrize("user", [0, pytest.param(54321, marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users"))])
def test_what_a_real_driver_does_as_it_starts(user: int) -> None:
    """It names its threads, and asks for a daemon that shares GPUs; where it meets another error than that there is none, cuInit fails."""
    done = subprocess.run([sys.executable, "-c", NAMES_A_THREAD, str(user)], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["cuda0001", "ENOENT"]


def test_all_succeed_without_a_box(hostile: Path, places: dict[str, Any]) -> None:
    """The deliberate fault of the test above. Where it does not hold, the other proves nothing."""
    found = come_to(hostile, places, [(None, attempt) for attempt in ATTEMPTS])
    wrong = {str(a): errno.errorcode.get(code, code) for a, code in zip(ATTEMPTS, found, strict=True) if code and not a.rare}
    assert not wrong


@pytest.mark.slow
def test_each_part_is_enough_and_with_none_it_succeeds(hostile: Path, places: dict[str, Any]) -> None:
    plain = come_to(hostile, places, [(None, attempt) for attempt in ATTEMPTS])
    possible = [attempt for attempt, code in zip(ATTEMPTS, plain, strict=True) if not code]
    asked: list[tuple[list[str] | None, Attempt]] = []
    for attempt in possible:
        for kept in (*attempt.stops, None):
            out = {*attempt.stops, *BESIDES.get(attempt.name, ())} - {kept}
            asked.append((sorted(out), attempt))
    succeeds = [not set(attempt.stops) & (set(attempt.stops) - set(out or ())) for out, attempt in asked]
    wrong = []
    for (out, attempt), code, should in zip(asked, come_to(hostile, places, asked), succeeds, strict=True):
        refresh(places)
        if (code == 0) != should:
            wrong.append(f"{attempt} without {', '.join(out or ())}: {errno.errorcode.get(code, code)}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_other_processes_of_the_user_do_not_look_into_a_worker(hostile: Path, tmp_path: Path) -> None:
    """Its memory holds a session's data and keys. Those processes have no box: that the worker is not dumpable is all that stops them."""
    tried = ("read", "pidfd_getfd", "ptrace")
    stopped = ask(hostile, tmp_path, spy=[[[], name] for name in tried])
    assert all(code in (errno.EACCES, errno.EPERM) for code in stopped)
    assert ask(hostile, tmp_path, spy=[[["dumpable"], name] for name in tried]) == [0, 0, 0]


@pytest.fixture
def attacked(hostile: Path, tmp_path: Path) -> Iterator[Callable[[str], FakeServer]]:
    """A real daemon with real worker processes, which load the library that tries."""
    servers: list[FakeServer] = []

    def start(box: str) -> FakeServer:
        command = ["env", f"GPUVIRT_LIB_DIR={hostile}", *WORKER_COMMAND]
        servers.append(start_fake(tmp_path / box, worker=command, box=box, gpu_memory=1 << 30))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


def attach(server: FakeServer, token: Token | None = None) -> tuple[socket.socket, str]:
    """A session and its name, also where a worker takes longer to start than a client waits."""
    for _ in range(20):
        sock, welcome, _ = server.attach(token)
        if welcome.status == WELCOME_OK:
            return sock, f"{welcome.session:016x}"
        sock.close()
    raise AssertionError(welcome.text)


def tried_by_a_worker(server: FakeServer, boxed: bool) -> dict[str, int]:
    """What the worker of one session comes to: at the daemon, its files and another session's worker."""
    second = parse_token(server.ask("token_create", name="second")["token"])
    (mine, my_name), (other, other_name) = attach(server), attach(server, second)
    with mine, other:
        other.sendall(b"core|\n")
        assert other.recv(20)  # that worker is in its box
        pids = {session["session"]: int(session["worker_pid"]) for session in server.ask("ps")["sessions"]}
        daemon, own, victim = int(server.ready["pid"]), pids[my_name], pids[other_name]
        state, tenants = Path(server.env["GPUVIRT_STATE"]), Path(server.env["GPUVIRT_CACHE"]) / "tenants"
        runtime = Path(server.env["XDG_RUNTIME_DIR"]) / "gpuvirt"
        folder = tenant_folder(victim, tenants)
        assert folder != tenant_folder(own, tenants)
        wanted = [
            ("read", state / "tokens.json"), ("read", state / "server.key"), ("write", state / "tokens.json"), ("chmod", state / "server.key"),
            ("read", runtime / f"{server.port}.token"), ("read", tenants / "secret"), ("list", tenants),
            ("write", folder / "kernels" / "planted"), ("write", folder / "images" / "planted"), ("list", folder),
            ("read", f"/proc/{daemon}/environ"), ("read", f"/proc/{victim}/environ"), ("read", f"/proc/{victim}/maps"), ("ptrace", victim),
            ("pidfd_getfd", daemon), ("pidfd_getfd", victim), ("kill", daemon), ("kill", victim), ("pidfd signal", victim), ("prlimit", victim),
            ("tcp", server.port), ("tcp", server.ready["control_port"]), ("unix", runtime / f"{server.port}.sock"), ("udp", 9),
            ("listen", ""), ("fork", ""), ("bare fork", ""), ("clone3", ""), ("dumpable", ""), ("core", ""),
        ]  # fmt: skip
        wanted += [("remap row", ""), ("double row", ""), ("grow row", "")]
        if boxed:  # else that is the end of its connection
            wanted += [("redirect", f"FD:{server.port}"), ("open table", "")]
        found = {}
        answers = mine.makefile("r")
        for name, argument in wanted:
            mine.sendall(f"{name}|{argument}\n".encode())
            found[f"{name} {argument}"] = int(answers.readline())
        return found


def tenant_folder(pid: int, tenants: Path) -> Path:
    """The only one that a worker has open."""
    opened = {Path(os.readlink(f"/proc/{pid}/fd/{fd}")) for fd in os.listdir(f"/proc/{pid}/fd")}
    [folder] = {tenants / path.relative_to(tenants).parts[0] for path in opened if path.is_relative_to(tenants)}
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("box", ["required", "off"])
def test_a_hostile_session_in_a_real_worker(attacked: Callable[[str], FakeServer], box: str) -> None:
    """Without a box all of it succeeds: the deliberate fault of this test."""
    found = tried_by_a_worker(attacked(box), box != "off")
    if box == "off":
        assert {name: errno.errorcode.get(code, code) for name, code in found.items() if code} == {}
    else:
        assert [name for name, code in found.items() if not code] == []
