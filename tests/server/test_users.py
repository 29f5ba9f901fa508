"""Root's daemon gives each tenant's workers a user of their own: that alone keeps tenants from one another, and sessions work."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.harness import clean_environment, run_line
from server.harness import HERE, FakeServer, build_echo_worker, start_fake, wait_until

from gpuvirt.server.box.choice import FIRST_USER, HELPER_USER, USERS, _open_to_others
from gpuvirt.server.workers.template import WORKER_COMMAND
from gpuvirt.soft.host import precompile
from gpuvirt.transport.handshake import WELCOME_OK
from gpuvirt.transport.token import Token, parse_token

HELPERS = [{HELPER_USER}] * (2 if precompile.threads() else 1)  # of a worker: one that compiles hot kernels again, one for queued launches
IN_OPEN_FOLDERS = [sys.executable, str(HERE / "in_open_folders.py")]


def why_not() -> str:
    if os.geteuid():
        return "only root's daemon gives users"
    env = os.environ | {"PYTHONPATH": str(HERE.parent.parent)}
    done = subprocess.run([*IN_OPEN_FOLDERS, "true"], capture_output=True, text=True, check=False, env=env)
    return f"no mounts here: {done.stderr.strip().splitlines()[-1]}" if done.returncode else ""


@pytest.fixture(scope="module", autouse=True)
def possible() -> None:
    if why := why_not():
        pytest.skip(why)


@pytest.fixture(scope="module")
def hostile() -> Iterator[Path]:
    """The worker library that tries; where all users can read it, which pytest's own folders are not."""
    folder = Path(tempfile.mkdtemp(prefix="gpuvirt-users-"))
    folder.chmod(0o755)
    build_echo_worker(folder, "hostile.c")
    yield folder
    shutil.rmtree(folder)


def user_of(pid: int) -> set[int]:
    """Real, effective, saved user and that of files, and the groups."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {int(number) for line in lines if line.startswith(("Uid:", "Gid:", "Groups:")) for number in line.split()[1:]}


def attach(server: FakeServer, token: Token) -> socket.socket:
    """A session, also where a worker takes longer to start than a client waits."""
    for _ in range(20):
        sock, welcome, _ = server.attach(token)
        if welcome.status == WELCOME_OK:
            sock.settimeout(100)
            return sock
        sock.close()
    raise AssertionError(welcome.text)


def workers(server: FakeServer) -> list[int]:
    return [int(session["worker_pid"]) for session in server.ask("ps")["sessions"]]


def in_its_box(pid: int) -> bool:
    """Whether a worker has got that far: it is the session's user then."""
    return 0 not in user_of(pid)


def helpers(worker: int) -> list[set[int]]:
    """The users of its processes that compile."""
    return [user_of(int(pid)) for pid in Path(f"/proc/{worker}/task/{worker}/children").read_text().split()]


def attempts(server: FakeServer) -> tuple[list[set[int]], dict[str, int]]:
    """The users of two tenants' workers, and what the first one comes to at the second one, at the daemon and its files."""
    second = parse_token(server.ask("token_create", name="second")["token"])
    state, tenants = Path(server.env["GPUVIRT_STATE"]), Path(server.env["GPUVIRT_CACHE"]) / "tenants"
    with attach(server, server.token) as mine, attach(server, second) as other:
        for sock in (mine, other):
            sock.sendall(b"core|\n")
            assert sock.recv(20)
        daemon, (own, victim) = int(server.ready["pid"]), workers(server)
        users = [user_of(own), user_of(victim)]
        links = [os.readlink(f"/proc/{victim}/fd/{fd}") for fd in os.listdir(f"/proc/{victim}/fd")]
        folder = next(Path(link) for link in links if link.startswith(str(tenants)))
        wanted: list[tuple[str, object]] = [
            ("read", state / "tokens.json"), ("read", state / "server.key"), ("write", state / "tokens.json"), ("chmod", state / "server.key"),
            ("read", Path(server.env["XDG_RUNTIME_DIR"]) / "gpuvirt" / f"{server.port}.token"), ("read", tenants / "secret"), ("list", tenants),
            ("write", folder / "kernels" / "planted"), ("list", folder), ("read", f"/proc/{daemon}/environ"), ("read", f"/proc/{victim}/environ"),
            ("read", f"/proc/{victim}/maps"), ("list", f"/proc/{victim}/fd"), ("ptrace", daemon), ("ptrace", victim), ("pidfd_getfd", daemon),
            ("pidfd_getfd", victim), ("kill", daemon), ("kill", victim), ("tgkill", victim), ("pidfd signal", victim), ("prlimit", victim),
        ]  # fmt: skip
        found, answers = {}, mine.makefile("r")
        for name, argument in wanted:
            mine.sendall(f"{name}|{argument}\n".encode())
            found[f"{name} {argument}"] = int(answers.readline())
        return users, found


@pytest.mark.slow
@pytest.mark.parametrize("users", [True, False], ids=["users", "one_user"])
def test_tenants_cannot_reach_each_other_by_their_users_alone(hostile: Path, tmp_path: Path, users: bool) -> None:
    """As one user, because the libraries lie in a folder that is closed to others, all of it succeeds: the deliberate fault of this test."""
    libraries = hostile if users else shutil.copytree(hostile, tmp_path / "libraries")
    command = ["env", f"GPUVIRT_LIB_DIR={libraries}", sys.executable, str(HERE / "worker_of_a_user.py")]
    server = start_fake(tmp_path / "s", worker=command, gpu_memory=1 << 30, libraries=libraries, prefix=IN_OPEN_FOLDERS if users else [])
    try:
        (mine, other), found = attempts(server)
    finally:
        log = server.stop()
    if users:
        assert "no users" not in log
        assert len(mine) == len(other) == 1 and mine != other and all(FIRST_USER <= user < FIRST_USER + USERS for user in mine | other)
        stopped = {errno.EACCES, errno.EPERM}
        assert {name: errno.errorcode.get(code, code) for name, code in found.items() if code not in stopped} == {}
    else:
        assert "tenants get no users of their own, because other users cannot open" in log
        assert mine == other == {0}
        assert {name: errno.errorcode.get(code, code) for name, code in found.items() if code} == {}


@pytest.mark.slow
def test_a_session_works_as_another_user(tmp_path: Path) -> None:
    """From loading to results, twice: the second time from what the first one has kept."""
    server = start_fake(tmp_path / "s", worker=list(WORKER_COMMAND), gpu_memory=1 << 30, prefix=IN_OPEN_FOLDERS, box="required")
    env = clean_environment(**{name: value for name, value in server.env.items() if name.startswith(("GPUVIRT_", "XDG_"))})
    tenants = Path(server.env["GPUVIRT_CACHE"]) / "tenants"
    try:
        for _ in range(2):
            flag = tmp_path / "go on"
            flag.unlink(missing_ok=True)
            program = [sys.executable, str(HERE.parent / "e2e/programs/modules.py"), "users", "2", "global", "wait", str(flag)]
            with subprocess.Popen([*run_line(server.url), *program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as client:
                wait_until(lambda: bool(workers(server)) and in_its_box(workers(server)[0]))
                (worker,) = workers(server)
                user = user_of(worker)
                try:
                    wait_until(lambda of=worker: helpers(of) == HELPERS)  # which become that user in their own time
                finally:
                    flag.touch()
                out, err = client.communicate(timeout=100)
            assert (client.returncode, out) == (0, "running\nright\n"), err
            assert len(user) == 1 and FIRST_USER <= min(user) < FIRST_USER + USERS
            folder = next(entry for entry in tenants.iterdir() if entry.is_dir())
            assert {path.lstat().st_uid for path in (folder, *folder.rglob("*"))} == user
            assert list(folder.glob("kernels/*/*")) and list(folder.glob("images/*"))
            wait_until(lambda: not workers(server))
    finally:
        log = server.stop()
    assert "Traceback" not in log, log


def test_who_may_open_what() -> None:
    """A file need not be executable: /etc/ld.so.cache once kept every server from giving users."""
    folder = Path(tempfile.mkdtemp(prefix="gpuvirt-users-"))
    try:
        file = folder / "file"
        file.touch()
        for path, mode, expected in ((folder, 0o755, True), (folder, 0o751, False), (folder, 0o755, True), (file, 0o640, False)):
            path.chmod(mode)
            assert _open_to_others(path) is expected, (path, mode)
        file.chmod(0o644)
        assert _open_to_others(file)
    finally:
        shutil.rmtree(folder)
