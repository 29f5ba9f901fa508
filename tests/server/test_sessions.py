"""Attaching, and what becomes of sessions: with a real daemon and a stand-in worker."""

from __future__ import annotations

import ast
import fcntl
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from server.harness import FakeServer, receive, shake, wait_until

from gpuvirt.transport import handshake as hs
from gpuvirt.transport import shm
from gpuvirt.transport.token import Token, parse_token


def config_of(sock: socket.socket) -> dict[str, Any]:
    sock.sendall(b"config")
    config: dict[str, Any] = ast.literal_eval(sock.recv(65536).decode())
    return config


def test_attach_over_tcp(server: FakeServer) -> None:
    sock, welcome, _ = server.attach(gpus=2, memory=1 << 20, program="prog", pid=77)
    with sock:
        assert (welcome.status, welcome.channels, welcome.text) == (hs.WELCOME_OK, 16, "")
        config = config_of(sock)
        assert config["devices"] == [0, 1] and config["memory"] == 1 << 20 and config["device_memory"] == 1 << 30
        assert config["session"] == welcome.session and config["link"] == hs.LINK_TCP
        (listed,) = [s for s in server.ask("ps")["sessions"] if s["session"] == f"{welcome.session:016x}"]
        assert (listed["program"], listed["pid"], listed["link"], listed["devices"], listed["launches"]) == ("prog", 77, "tcp", [0, 1], 3)
        os.kill(listed["worker_pid"], 0)
    wait_until(lambda: server.ask("ps")["sessions"] == [])


def test_attach_over_shm(server: FakeServer) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        tcp, greeting = server.connect()
        tcp.close()
        sock.connect(greeting.unix_path)
        greeting = hs.Greeting.unpack(receive(sock, hs.GREETING_SIZE))
        nonce = b"n" * 32
        sock.sendall(hs.Hello(nonce, token_id=server.token.id, link=hs.LINK_SHM).pack(server.token.secret, greeting.nonce))
        raw, fds, _, _ = socket.recv_fds(sock, hs.WELCOME_SIZE, 4)
        welcome = hs.Welcome.unpack(raw)
        assert welcome.status == hs.WELCOME_OK and welcome.channels == 0
        (fd,) = fds
        size = shm.memory_size(welcome.command_ring, welcome.reply_ring, welcome.bulk_out_ring, welcome.bulk_in_ring)
        assert os.fstat(fd).st_size == size
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        assert seals & fcntl.F_SEAL_SHRINK and seals & fcntl.F_SEAL_GROW
        assert os.pread(fd, 4096, 0) == bytes(4096)
        os.close(fd)
        assert config_of(sock)["command_ring"] == welcome.command_ring


def test_bulk_channels(server: FakeServer) -> None:
    sock, welcome, key = server.attach()
    with sock:
        channel, greeting = server.connect()
        nonce = b"c" * 32
        channel.sendall(hs.Hello(nonce, kind=hs.HELLO_CHANNEL, session=welcome.session, channel=0).pack(key, greeting.nonce))
        raw = receive(channel, hs.WELCOME_SIZE)
        assert hs.Welcome.unpack(raw).status == hs.WELCOME_OK and hs.welcome_proved(raw, key, nonce, greeting.nonce)
        assert receive(channel, 5) == b" 0  0"
        channel.close()
        # Not with another key, not twice, not for a session that does not exist.
        for session, proof, expected in (
            (welcome.session, bytes(32), hs.WELCOME_DENIED),
            (welcome.session, key, hs.WELCOME_FAILED),
            (welcome.session + 1, key, hs.WELCOME_UNKNOWN),
        ):
            other, greeting = server.connect()
            with other:
                other.sendall(hs.Hello(nonce, kind=hs.HELLO_CHANNEL, session=session, channel=0).pack(proof, greeting.nonce))
                assert hs.Welcome.unpack(receive(other, hs.WELCOME_SIZE)).status == expected


def further(server: FakeServer, key: bytes, **hello: Any) -> tuple[int, socket.socket]:
    """A further connection of a session: the status that it is welcomed with."""
    sock, greeting = server.connect()
    sock.sendall(hs.Hello(b"f" * 32, **hello).pack(key, greeting.nonce))
    return hs.Welcome.unpack(receive(sock, hs.WELCOME_SIZE)).status, sock


def test_a_session_is_taken_up_again(server: FakeServer) -> None:
    """Its main connection and its channels, each with a higher epoch than the last; nothing of an earlier attempt, nothing without the key."""
    sock, welcome, key = server.attach()
    assert welcome.grace_s == 60
    resume = {"kind": hs.HELLO_RESUME, "session": welcome.session}
    channel = {"kind": hs.HELLO_CHANNEL, "session": welcome.session, "channel": 3}
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
        status, other = further(server, key, kind=hs.HELLO_RESUME, session=welcome.session, epoch=1)
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
        sock, greeting = server.connect()
        with sock:
            assert shake(sock, greeting, token, kind=hs.HELLO_ENDED, launch=launch)[0].status == hs.WELCOME_OK
        wait_until(lambda left=left: sessions() == left)  # type: ignore[misc]
    sock, greeting = server.connect()
    with sock:
        wrong = Token(server.token.id, bytes(32), server.token.server_key)
        assert shake(sock, greeting, wrong, kind=hs.HELLO_ENDED, launch=theirs)[0].status == hs.WELCOME_DENIED
    assert sessions() == 2
    for sock in socks:
        sock.close()


def test_a_launch_that_ended_before_its_session_began(own_server: Callable[..., FakeServer]) -> None:
    """A program that is killed while it attaches: the report of its end finds no session, and what comes then must not wait for it."""
    server = own_server(gpus=2)
    other_token = parse_token(server.ask("token_create", name="other")["token"])
    sock, greeting = server.connect()
    with sock:
        assert shake(sock, greeting, server.token, kind=hs.HELLO_ENDED, launch=b"m" * 16)[0].status == hs.WELCOME_OK
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


def test_attach_takes_a_prestarted_worker(server: FakeServer) -> None:
    """One that was there before anybody came, each time: nobody waits for a process to start."""
    gone: set[int] = set()
    for _ in range(5):
        wait_until(lambda: bool(children(server.process.pid) - gone))  # the next worker starts in the background
        before = children(server.process.pid)
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
    for sock, greeting in made:
        sock.sendall(hs.Hello(b"n" * 32, token_id=server.token.id).pack(server.token.secret, greeting.nonce))
    for sock, _ in made:
        with sock:
            assert hs.Welcome.unpack(receive(sock, hs.WELCOME_SIZE)).status == hs.WELCOME_OK
    wait_until(lambda: server.ask("ps")["sessions"] == [])


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


def test_worker_that_cannot_start(start: Callable[..., FakeServer], tmp_path: Path) -> None:
    """The daemon does not even begin to serve, and says what its worker said."""
    try:
        server = start(tmp_path, worker_options=["--die"])
    except RuntimeError as error:
        assert "this worker was told to fail" in str(error)
    else:
        server.stop()
        raise AssertionError("the server started")


def test_worker_binary_missing_later(own_server: Callable[..., FakeServer], tmp_path: Path) -> None:
    """Workers that stop starting while the server runs: a refusal that says so, and no hang."""
    import sys

    script = tmp_path / "worker.py"
    script.write_text((Path(__file__).parent / "fake_worker.py").read_text())
    server = own_server(worker=[sys.executable, str(script)])
    script.write_text("import sys; sys.exit('gone')")
    sock, welcome, _ = server.attach()  # the prestarted one
    assert welcome.status == hs.WELCOME_OK
    time.sleep(0.5)
    other, welcome, _ = server.attach()
    assert welcome.status == hs.WELCOME_FAILED and "worker did not start" in welcome.text
    assert len(server.ask("ps")["sessions"]) == 1
    sock.close()
    other.close()


def test_a_session_outlives_its_daemon(own_server: Callable[..., FakeServer]) -> None:
    """A daemon that is killed does not cut the sessions under way; its idle worker ends."""
    server = own_server()
    sock, _, _ = server.attach()
    (session,) = server.ask("ps")["sessions"]
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
    wait_until(lambda: len(children.read_text().split()) == 2)
    (idle,) = {int(pid) for pid in children.read_text().split()} - {session["worker_pid"]}
    server.process.kill()
    server.process.wait()  # not communicate: the surviving worker has its stderr
    sock.sendall(b"still there?")
    assert sock.recv(100) == b"still there?"
    wait_until(lambda: not Path(f"/proc/{idle}").exists() or "Z" in Path(f"/proc/{idle}/stat").read_text().split()[2])
    sock.close()


def test_stop_ends_everything(own_server: Callable[..., FakeServer]) -> None:
    server = own_server()
    sock, _, _ = server.attach()
    (session,) = server.ask("ps")["sessions"]
    folder = Path(server.env["XDG_RUNTIME_DIR"]) / "gpuvirt"
    assert {f.name for f in folder.iterdir()} == {f"{server.port}.sock", f"{server.port}.token"}
    server.stop()
    assert server.process.returncode == 0
    assert sock.recv(1) == b""
    assert not Path(f"/proc/{session['worker_pid']}").exists()
    assert list(folder.iterdir()) == []


def test_ends_with_its_parent(start: Callable[..., FakeServer], tmp_path: Path) -> None:
    """A private pool ends when the pipe of its launcher closes."""
    import json
    import subprocess
    import sys

    from server.harness import HERE, environment

    reading, writing = os.pipe()
    ready = tmp_path / "ready.json"
    line = [sys.executable, str(HERE / "fake_server.py"), json.dumps({"ready_file": str(ready), "parent_fd": reading})]
    process = subprocess.Popen(line, pass_fds=[reading], stderr=subprocess.DEVNULL, env=environment(tmp_path))
    os.close(reading)
    wait_until(ready.exists)
    assert process.poll() is None
    os.close(writing)
    assert process.wait(100) == 0


def test_unproved_connections_do_not_pile_up(own_server: Callable[..., FakeServer]) -> None:
    """Hundreds of connections that say nothing do not keep anybody else from attaching."""
    server = own_server()
    silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(300)]
    sock, welcome, _ = server.attach()
    assert welcome.status == hs.WELCOME_OK
    for one in [sock, *silent]:
        one.close()
