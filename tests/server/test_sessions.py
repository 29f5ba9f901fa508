"""Attaching, and what becomes of sessions: with a real daemon and a stand-in worker."""

from __future__ import annotations

import ast
import fcntl
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from server.harness import HERE, PATIENCE, Connection, FakeServer, environment, has_ended, receive, wait_until

from gpuvirt.errors import GpuvirtError
from gpuvirt.server.workers.pool import STARTS
from gpuvirt.transport import handshake as hs
from gpuvirt.transport import shm, table
from gpuvirt.transport.control import request
from gpuvirt.transport.token import Token, parse_token


def config_of(sock: socket.socket) -> dict[str, Any]:
    sock.sendall(b"config")
    config: dict[str, Any] = ast.literal_eval(sock.recv(65536).decode())
    return config


def test_attach_over_tcp(server: FakeServer) -> None:
    sock, welcome, _ = server.attach(gpus=2, memory=2 << 20, program="prog", pid=77)
    with sock:
        assert (welcome.status, welcome.connections, welcome.text) == (hs.WELCOME_OK, 16, "")
        config = config_of(sock)
        assert config["devices"] == [0, 1] and config["memory"] == 2 << 20 and config["device_memory"] == 1 << 30
        assert config["session"] == welcome.session and config["transport"] == welcome.transport.name == "tcp"

        def listed() -> dict[str, Any]:
            (found,) = [s for s in server.ask("ps")["sessions"] if s["session"] == f"{welcome.session:016x}"]
            return dict(found)

        wait_until(lambda: "launches" in listed())  # "ps" does not wait long for a worker's figures
        said = listed()
        assert (said["program"], said["pid"], said["link"], said["devices"], said["launches"]) == ("prog", 77, "tcp", [0, 1], 3)
        os.kill(said["worker_pid"], 0)
    wait_until(lambda: server.ask("ps")["sessions"] == [])


def over_unix(server: FakeServer) -> Connection:
    with server.connect() as first:
        path = first.greeting.unix_path
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(100)
    sock.connect(path)
    return Connection(sock)


def test_attach_over_shm(server: FakeServer) -> None:
    with over_unix(server) as connection:
        welcome, _ = connection.shake(server.token, transports=("shm",))
        assert welcome.status == hs.WELCOME_OK and welcome.connections == 0 and welcome.descriptors == 1
        (fd,) = connection.fds
        rings = struct.unpack("<4Q", welcome.blob)
        assert os.fstat(fd).st_size == shm.memory_size(*rings)
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        assert seals & fcntl.F_SEAL_SHRINK and seals & fcntl.F_SEAL_GROW
        assert os.pread(fd, 4096, 0) == bytes(4096)
        os.close(fd)
        config = config_of(connection.sock)
        assert (config["transport"], config["descriptors"], config["blob"]) == ("shm", 1, welcome.blob)


def test_the_server_chooses(server: FakeServer) -> None:
    """The first that the client offers, the server has and the connection allows."""
    for connect, asked, expected in (
        (server.connect, ("pigeon", "shm", "tcp"), "tcp"),
        (lambda: over_unix(server), ("pigeon", "tcp", "shm"), "shm"),
    ):
        with connect() as connection:
            welcome, _ = connection.shake(server.token, transports=asked)
            assert welcome.status == hs.WELCOME_OK and welcome.transport == table.named(expected).offer  # type: ignore[union-attr]
            for fd in connection.fds:
                os.close(fd)


def test_bulk_channels(server: FakeServer) -> None:
    sock, welcome, key = server.attach()
    with sock:
        with server.connect() as channel:
            channel.say(key, hs.Hello(b"c" * 32, purpose=hs.HELLO_CHANNEL, session=welcome.session, channel=0))
            assert channel.welcome(key).status == hs.WELCOME_OK
            assert receive(channel.sock, 5) == b" 0  0"
        # Not with another key, not twice, not for a session that does not exist.
        for session, proof, expected in (
            (welcome.session, bytes(32), hs.WELCOME_DENIED),
            (welcome.session, key, hs.WELCOME_FAILED),
            (welcome.session + 1, key, hs.WELCOME_UNKNOWN),
        ):
            with server.connect() as other:
                other.say(proof, hs.Hello(b"c" * 32, purpose=hs.HELLO_CHANNEL, session=session, channel=0))
                assert other.welcome(proof).status == expected


def further(server: FakeServer, key: bytes, **hello: Any) -> tuple[int, socket.socket]:
    """A further connection of a session: the status that it is welcomed with."""
    connection = server.connect()
    connection.say(key, hs.Hello(b"f" * 32, **hello))
    return connection.welcome(key).status, connection.sock


def test_a_session_is_taken_up_again(server: FakeServer) -> None:
    """Its main connection and its channels, each with a higher epoch than the last; nothing of an earlier attempt, nothing without the key."""
    sock, welcome, key = server.attach()
    assert welcome.grace_s == 60
    resume = {"purpose": hs.HELLO_RESUME, "session": welcome.session}
    channel = {"purpose": hs.HELLO_CHANNEL, "session": welcome.session, "channel": 3}
    with sock:
        assert config_of(sock)["grace"] == 60
        for how, epoch, expected, said in (
            (resume, 0, hs.WELCOME_FAILED, b""),
            (resume, 1, hs.WELCOME_OK, b"-1  1"),
            (resume, 1, hs.WELCOME_FAILED, b""),
            (resume, 7, hs.WELCOME_OK, b"-1  7"),
            (resume, 6, hs.WELCOME_FAILED, b""),
            (channel, 0, hs.WELCOME_OK, b" 3  0"),
            (channel, 0, hs.WELCOME_FAILED, b""),
            (channel, 2, hs.WELCOME_OK, b" 3  2"),
            (channel | {"channel": 16}, 0, hs.WELCOME_FAILED, b""),
            (resume | {"session": welcome.session ^ 1}, 8, hs.WELCOME_UNKNOWN, b""),
        ):
            status, other = further(server, key, epoch=epoch, **how)
            with other:
                assert status == expected, (how, epoch)
                assert not said or receive(other, 5) == said
        status, other = further(server, server.token.secret, epoch=9, **resume)
        other.close()
        assert status == hs.WELCOME_DENIED
    wait_until(lambda: server.ask("ps")["sessions"] == [])
    assert further(server, key, epoch=9, **resume)[0] == hs.WELCOME_UNKNOWN


def test_no_grace_no_return(own_server: Callable[..., FakeServer]) -> None:
    server = own_server(grace=0)
    sock, welcome, key = server.attach()
    with sock:
        assert welcome.grace_s == 0 and config_of(sock)["grace"] == 0
        status, other = further(server, key, purpose=hs.HELLO_RESUME, session=welcome.session, epoch=1)
        other.close()
        assert status == hs.WELCOME_FAILED


def test_a_launcher_reports(own_server: Callable[..., FakeServer]) -> None:
    """Only what belongs to that launch, and only to that token."""
    server = own_server(gpus=4)
    other_token = parse_token(server.ask("token_create", name="other")["token"])
    mine, theirs, none = b"m" * 16, b"t" * 16, bytes(16)
    socks = [server.attach(launch=mine)[0], server.attach(launch=theirs)[0], server.attach()[0], server.attach(other_token, launch=mine)[0]]

    def sessions() -> int:
        return len(server.ask("ps")["sessions"])

    assert sessions() == 4
    for launch, token, left in ((none, server.token, 4), (theirs, other_token, 4), (mine, server.token, 3), (mine, other_token, 2)):
        with server.connect() as connection:
            assert connection.shake(token, purpose=hs.HELLO_ENDED, launch=launch)[0].status == hs.WELCOME_OK
        wait_until(lambda left=left: sessions() == left)  # type: ignore[misc]
    with server.connect() as connection:
        wrong = Token(server.token.id, bytes(32), server.token.server_key)
        assert connection.shake(wrong, purpose=hs.HELLO_ENDED, launch=theirs)[0].status == hs.WELCOME_DENIED
    assert sessions() == 2
    for sock in socks:
        sock.close()


def test_a_program_that_was_replaced(own_server: Callable[..., FakeServer]) -> None:
    """exec: the sessions of the program before end when the same process comes anew; neither another process's, nor another token's, nor its own."""
    server = own_server()
    other_token = parse_token(server.ask("token_create", name="other")["token"])
    first = {"process": b"p" * 16, "exec_id": b"1" * 16}
    former = server.attach(**first)[0]
    kept = [
        server.attach(process=b"q" * 16, exec_id=b"1" * 16)[0],
        server.attach(other_token, **first)[0],
        server.attach()[0],
        server.attach(process=b"p" * 16, exec_id=b"2" * 16)[0],
        server.attach(process=b"p" * 16, exec_id=b"2" * 16)[0],  # two sessions of one program
    ]
    assert len(server.ask("ps")["sessions"]) == len(kept)
    wait_until(lambda: server.ask("devices")["devices"][0]["memory_used"] == 1000 * len(kept))
    former.settimeout(100)
    assert former.recv(1) == b""
    for sock in kept:
        sock.sendall(b"still there?")
        assert sock.recv(100) == b"still there?"
        sock.close()
    former.close()


def test_a_launch_that_ended_before_its_session_began(own_server: Callable[..., FakeServer]) -> None:
    """A program that is killed while it attaches: the report of its end finds no session, and what comes then must not wait for it."""
    server = own_server(gpus=2)
    other_token = parse_token(server.ask("token_create", name="other")["token"])
    with server.connect() as connection:
        assert connection.shake(server.token, purpose=hs.HELLO_ENDED, launch=b"m" * 16)[0].status == hs.WELCOME_OK
    theirs, _, _ = server.attach(other_token, launch=b"m" * 16)
    mine, welcome, _ = server.attach(launch=b"m" * 16)
    with mine, theirs:
        assert welcome.status == hs.WELCOME_OK
        mine.settimeout(100)
        assert mine.recv(1) == b""
        theirs.sendall(b"still there?")
        assert theirs.recv(100) == b"still there?"


def children(pid: int) -> set[int]:
    return {int(child) for task in Path(f"/proc/{pid}/task").glob("*/children") for child in task.read_text().split()}


def template_of(server: FakeServer) -> int:
    """The process that forks the server's workers."""
    (template,) = [pid for pid in children(server.process.pid) if b"fake_worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return template


def test_attach_takes_a_prestarted_worker(server: FakeServer) -> None:
    """One that was there before anybody came, each time: nobody waits for a process to start."""
    gone: set[int] = set()
    template = template_of(server)
    for _ in range(5):
        wait_until(lambda: bool(children(template) - gone))  # the next worker starts in the background
        before = children(template)
        sock, welcome, _ = server.attach()
        assert welcome.status == hs.WELCOME_OK
        (session,) = server.ask("ps")["sessions"]
        assert session["worker_pid"] in before
        gone.add(session["worker_pid"])
        sock.close()
        wait_until(lambda: server.ask("ps")["sessions"] == [])


def test_many_attach_at_once(server: FakeServer) -> None:
    """More than there are prestarted workers."""
    made = [server.connect() for _ in range(4)]
    for connection in made:
        connection.say(server.token.secret, hs.Hello(b"n" * 32, token_id=server.token.id, transports=(table.TRANSPORTS[-1].offer,)))
    for connection in made:
        with connection:
            assert connection.welcome(server.token.secret).status == hs.WELCOME_OK
    wait_until(lambda: server.ask("ps")["sessions"] == [])


def test_memory_of_a_session(own_server: Callable[..., FakeServer]) -> None:
    """Whatever a client asks for, its session gets what the server and its token allow, and it is told which of the two it asked too much of."""
    server = own_server(memory_per_session=512 << 20)
    small = parse_token(server.ask("token_create", name="small", memory=64 << 20)["token"])
    of_small, of_others = [(0, 64), (32, 32)], [(0, 512), (3, 2), (1, 2)]  # MiB: whole units of 2, one at least
    for token, asked, got in [(small, *each) for each in of_small] + [(server.token, *each) for each in of_others]:
        sock, welcome, _ = server.attach(token, memory=asked << 20)
        with sock:
            assert welcome.status == hs.WELCOME_OK
            assert config_of(sock)["memory"] == got << 20
    too_much = ((small, 66 << 20, "with this token may have 64.0 MiB"), (server.token, 514 << 20, "on this server may have 512.0 MiB"))
    for token, asked, text in too_much:
        for purpose in (hs.HELLO_SESSION, hs.HELLO_CHECK):
            sock, welcome, _ = server.attach(token, memory=asked, purpose=purpose)
            sock.close()
            assert welcome.status == hs.WELCOME_BUSY and text in welcome.text and "--memory" in welcome.text
    for wrong in (-1, 1 << 63, "much", True):
        with pytest.raises(GpuvirtError, match="number of bytes"):
            server.ask("token_create", name="wrong", memory=wrong)


def test_sessions_of_a_token(own_server: Callable[..., FakeServer]) -> None:
    """One token does not get all of the server's slots; it is told the limit, and what to do."""
    server = own_server(sessions_per_token=2)
    other_token = parse_token(server.ask("token_create", name="other")["token"])
    made = [server.attach() for _ in range(3)]
    assert [welcome.status for _, welcome, _ in made] == [hs.WELCOME_OK, hs.WELCOME_OK, hs.WELCOME_BUSY]
    assert made[2][1].text.startswith("this token has 2 sessions on this server") and "--sessions-per-token" in made[2][1].text
    made.append(server.attach(other_token))
    assert made[3][1].status == hs.WELCOME_OK
    made[0][0].close()
    wait_until(lambda: len(server.ask("ps")["sessions"]) == 2)
    made.append(server.attach())
    assert made[4][1].status == hs.WELCOME_OK
    for sock, _, _ in made:
        sock.close()


@pytest.mark.slow
def test_starts_are_bounded(own_server: Callable[..., FakeServer], tmp_path: Path) -> None:
    """However many clients come at once, few workers are starting at the same time, and all clients get one."""
    starts = tmp_path / "starts"
    server = own_server(worker_options=["--starts", str(starts)])
    made = [server.connect() for _ in range(8)]
    for connection in made:
        connection.say(server.token.secret, hs.Hello(b"n" * 32, token_id=server.token.id, transports=(table.TRANSPORTS[-1].offer,)))
    for connection in made:
        assert connection.welcome(server.token.secret).status == hs.WELCOME_OK
    starting = most = 0
    for sign in starts.read_text():
        starting += 1 if sign == "+" else -1
        most = max(most, starting)
    assert starts.read_text().count("+") >= 8 and most <= STARTS
    for connection in made:
        connection.close()


@pytest.mark.slow
def test_whose_sessions_one_sees(own_server: Callable[..., FakeServer]) -> None:
    """A token's own in full; of others' neither program nor user. An admin's token sees all."""
    server = own_server(gpus=2)
    mine, theirs = (parse_token(server.ask("token_create", name=name)["token"]) for name in ("mine", "theirs"))
    socks = [server.attach(token, program=f"program of {name}", user=name)[0] for token, name in ((mine, "me"), (theirs, "them"))]

    def seen(token: Token) -> list[tuple[Any, ...]]:
        sessions = request("127.0.0.1", int(server.ready["control_port"]), token, "ps", limit=PATIENCE)["sessions"]
        return [(s["program"], s["user"], s["host"] is None, s["pid"] is None, s["peer"] is None, s["devices"]) for s in sessions]

    own, other = ("program of me", "me", False, False, False), ("program of them", "them", False, False, False)
    hidden = (None, None, True, True, True)
    assert seen(mine) == [(*own, [0]), (*hidden, [1])]
    assert seen(theirs) == [(*hidden, [0]), (*other, [1])]
    assert seen(server.token) == [(*own, [0]), (*other, [1])]
    env = server.env | {"GPUVIRT_TOKEN": mine.text(), "COLUMNS": "300"}
    shown = subprocess.run([sys.executable, "-m", "gpuvirt", "ps", "--pool", server.url], capture_output=True, text=True, timeout=100, env=env).stdout
    assert "program of me" in shown and "them" not in shown
    for sock in socks:
        sock.close()


def test_client_gone_frees_its_memory(own_server: Callable[..., FakeServer]) -> None:
    server = own_server()
    sock, _, _ = server.attach()
    wait_until(lambda: server.ask("devices")["devices"][0]["memory_used"] == 1000)
    (session,) = server.ask("ps")["sessions"]
    sock.close()
    wait_until(lambda: server.ask("devices")["devices"][0]["memory_used"] == 0)
    wait_until(lambda: not Path(f"/proc/{session['worker_pid']}").exists())
    assert "client lost" in server.stop()


def test_worker_killed_frees_its_memory_and_tells_the_client(own_server: Callable[..., FakeServer]) -> None:
    server = own_server()
    sock, _, _ = server.attach()
    wait_until(lambda: server.ask("devices")["devices"][0]["memory_used"] == 1000)
    (session,) = server.ask("ps")["sessions"]
    os.kill(session["worker_pid"], signal.SIGKILL)
    sock.settimeout(100)
    assert sock.recv(1) == b""
    wait_until(lambda: server.ask("devices")["devices"][0]["memory_used"] == 0)
    assert server.ask("devices")["devices"][0]["sessions"] == 0
    # The server goes on.
    other, welcome, _ = server.attach()
    other.close()
    assert welcome.status == hs.WELCOME_OK
    assert "killed by SIGKILL" in server.stop()


def test_worker_crash(own_server: Callable[..., FakeServer]) -> None:
    server = own_server()
    sock, _, _ = server.attach()
    sock.sendall(b"crash")
    assert sock.recv(1) == b""
    wait_until(lambda: server.ask("ps")["sessions"] == [])
    assert "killed by SIGABRT" in server.stop()


@pytest.mark.parametrize("what", ["ended", "no message", "no map", "chatter", "no op"])
def test_worker_that_talks_nonsense(own_server: Callable[..., FakeServer], what: str) -> None:
    """Its session's slot and memory are free afterwards, the log is printable, and the server ends when it is told to."""
    server = own_server()
    sock, _, _ = server.attach()
    wait_until(lambda: server.ask("devices")["devices"][0]["memory_used"] == 1000)
    sock.sendall(what.encode())
    wait_until(lambda: server.ask("ps")["sessions"] == [], 20)
    assert server.ask("devices")["devices"][0]["memory_used"] == 0
    sock.close()
    log = server.stop()
    assert server.process.returncode == 0
    said = {"ended": "ended: \\x1b[2Jowned", "chatter": "it said what nobody had asked for", "no op": "it said what nobody had asked for"}
    assert said.get(what, "what it said was no message") in log


def test_worker_that_cannot_start(start: Callable[..., FakeServer], tmp_path: Path) -> None:
    """The daemon does not even begin to serve, and says what its worker said."""
    try:
        server = start(tmp_path, worker_options=["--die"])
    except RuntimeError as error:
        assert "this worker was told to fail" in str(error)
    else:
        server.stop()
        raise AssertionError("the server started")


def test_workers_that_stop_starting(own_server: Callable[..., FakeServer], tmp_path: Path) -> None:
    """While the server runs: a refusal that says so, and no hang; and when they start again, sessions."""
    broken = tmp_path / "broken"
    server = own_server(worker_options=["--fail-if", str(broken)])
    broken.touch()
    sock, welcome, _ = server.attach()  # the prestarted one
    assert welcome.status == hs.WELCOME_OK
    time.sleep(0.5)
    other, welcome, _ = server.attach()
    assert welcome.status == hs.WELCOME_FAILED and "a worker did not start: ended by itself with exit code 3" in welcome.text
    assert len(server.ask("ps")["sessions"]) == 1
    broken.unlink()
    third, welcome, _ = server.attach()
    assert welcome.status == hs.WELCOME_OK
    for each in (sock, other, third):
        each.close()


def test_what_forks_workers_is_started_anew(own_server: Callable[..., FakeServer]) -> None:
    """Workers that it has forked go on, those that have a session and the one that waits for one."""
    server = own_server()
    first, _, _ = server.attach()
    template = template_of(server)
    wait_until(lambda: len(children(template)) == 2)
    os.kill(template, signal.SIGKILL)
    socks = [first]
    for _ in range(3):
        sock, welcome, _ = server.attach()
        assert welcome.status == hs.WELCOME_OK, welcome.text
        socks.append(sock)
    assert template_of(server) != template
    for sock in socks:
        sock.sendall(b"still there?")
        assert sock.recv(100) == b"still there?"
    first.sendall(b"crash")
    assert first.recv(100) == b""
    wait_until(lambda: len(server.ask("ps")["sessions"]) == 3)
    for sock in socks:
        sock.close()
    assert re.search("session .* ended: ended$", server.stop(), re.M)  # nobody knows how


def test_a_session_outlives_its_daemon(own_server: Callable[..., FakeServer]) -> None:
    """A daemon that is killed does not cut the sessions under way; its idle worker ends."""
    server = own_server()
    sock, _, _ = server.attach()
    (session,) = server.ask("ps")["sessions"]

    template = template_of(server)
    wait_until(lambda: len(children(template)) == 2)
    (idle,) = children(template) - {session["worker_pid"]}
    server.process.kill()
    server.process.wait()  # not communicate: the surviving worker has its stderr
    sock.sendall(b"still there?")
    assert sock.recv(100) == b"still there?"
    wait_until(lambda: not Path(f"/proc/{template}").exists())
    wait_until(lambda: has_ended(idle))
    sock.close()


def test_stop_ends_everything(own_server: Callable[..., FakeServer]) -> None:
    server = own_server()
    sock, _, _ = server.attach()
    (session,) = server.ask("ps")["sessions"]
    folder = Path(server.env["XDG_RUNTIME_DIR"]) / "gpuvirt"
    files = {f"{server.port}.sock", f"{server.port}.token", f"control.{server.process.pid}"}
    assert {f.name for f in folder.iterdir()} - {f"fdstore-127.0.0.1-{server.port}.sock"} == files  # the last one's path may be too long for here
    server.stop()
    assert server.process.returncode == 0
    assert sock.recv(1) == b""
    assert not Path(f"/proc/{session['worker_pid']}").exists()
    wait_until(lambda: list(folder.iterdir()) == [])  # the descriptor store ends a moment later


@pytest.mark.slow
def test_one_port_on_two_addresses(start: Callable[..., FakeServer], tmp_path: Path) -> None:
    """The second server harms nothing of the first's: not when it starts, not when it ends."""
    first = start(tmp_path / "first")
    folder = Path(first.env["XDG_RUNTIME_DIR"]) / "gpuvirt"
    sock, token = folder / f"{first.port}.sock", folder / f"{first.port}.token"
    before = token.read_text(), sock.stat().st_ino
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "run").symlink_to(tmp_path / "first" / "run")  # the same user's folders, a state of its own
    line = [sys.executable, str(HERE / "fake_server.py")]
    ready = tmp_path / "ready"
    options = {"ready_file": str(ready), "host": "127.0.0.2", "port": first.port}
    second = subprocess.Popen(
        [*line, json.dumps(options)], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment(tmp_path / "second")
    )
    wait_until(lambda: ready.exists() or second.poll() is not None)
    assert (token.read_text(), sock.stat().st_ino) == before
    with Connection(socket.create_connection(("127.0.0.2", first.port))) as connection:
        own = Path(connection.greeting.unix_path)
    assert own.exists() and not own.samefile(sock)
    second.terminate()
    assert f"already another server's on port {first.port}" in second.communicate(timeout=100)[1]
    assert (token.read_text(), sock.stat().st_ino) == before
    attached, welcome, _ = first.attach()
    attached.close()
    assert welcome.status == hs.WELCOME_OK
    first.stop()
    wait_until(lambda: list(folder.iterdir()) == [])


def test_ends_with_its_parent(start: Callable[..., FakeServer], tmp_path: Path) -> None:
    """A private pool ends when the pipe of its launcher closes."""
    reading, writing = os.pipe()
    ready = tmp_path / "ready.json"
    line = [sys.executable, str(HERE / "fake_server.py"), json.dumps({"ready_file": str(ready), "parent_fd": reading})]
    process = subprocess.Popen(line, pass_fds=[reading], stderr=subprocess.DEVNULL, env=environment(tmp_path))
    os.close(reading)
    wait_until(ready.exists)
    assert process.poll() is None
    os.close(writing)
    assert process.wait(100) == 0


@pytest.mark.slow
def test_unproved_connections_do_not_pile_up(own_server: Callable[..., FakeServer]) -> None:
    """Hundreds of connections that say nothing do not keep anybody else from attaching."""
    server = own_server()
    silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(300)]
    sock, welcome, _ = server.attach()
    assert welcome.status == hs.WELCOME_OK
    for one in [sock, *silent]:
        one.close()


@pytest.mark.slow
def test_a_worker_that_is_slow_to_start(own_server: Callable[..., FakeServer], tmp_path: Path) -> None:
    """The client is told that it waits, and waits; one that goes away meanwhile takes no worker."""
    hold = tmp_path / "hold"
    server = own_server(worker_options=["--hold", str(hold)])
    hold.touch()
    first, gone, connection = server.attach()[0], server.connect(), server.connect()
    for waiting in (gone, connection):
        waiting.say(server.token.secret, hs.Hello(b"n" * 32, token_id=server.token.id, transports=(table.TRANSPORTS[-1].offer,)))
    assert hs.State.unpack(gone.message()).state == hs.STATE_WAITING
    gone.close()
    raw = connection.message()
    connection.transcript.add(raw)
    assert hs.State.unpack(raw).state == hs.STATE_WAITING
    hold.unlink()
    assert connection.welcome(server.token.secret).status == hs.WELCOME_OK
    wait_until(lambda: len(server.ask("ps")["sessions"]) == 2)
    for sock in (first, connection):
        sock.close()
