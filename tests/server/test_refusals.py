"""Clients that the server refuses, and the message that they get."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from server.harness import PATIENCE, FakeServer, environment, receive, wait_until

from gpuvirt import paths
from gpuvirt.errors import GpuvirtError
from gpuvirt.server import listener, sockets
from gpuvirt.transport import handshake as hs
from gpuvirt.transport import pool, table
from gpuvirt.transport.control import ControlError, request
from gpuvirt.transport.pool import PoolAddress, check_pool
from gpuvirt.transport.token import Token


def test_greeting(server: FakeServer) -> None:
    with server.connect() as connection, server.connect() as other:
        greeting = connection.greeting
        assert (greeting.version_min, greeting.version_max) == (2, 2)
        assert greeting.control_port == server.ready["control_port"]
        assert greeting.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        assert greeting.unix_path.endswith(f"/{server.port}.sock")
        assert greeting.flags == hs.GREETING_SOFTWARE
        assert greeting.nonce != other.greeting.nonce


def test_wrong_secret(server: FakeServer) -> None:
    wrong = dataclasses.replace(server.token, secret=bytes(32))
    sock, welcome, _ = server.attach(wrong)
    sock.close()
    assert welcome.status == hs.WELCOME_DENIED and "token" in welcome.text


def test_unknown_token(server: FakeServer) -> None:
    sock, welcome, _ = server.attach(Token(b"?" * 16, bytes(32), server.token.server_key))
    sock.close()
    assert welcome.status == hs.WELCOME_DENIED


def test_a_proof_is_good_for_one_connection(server: FakeServer) -> None:
    """What was overheard on one connection opens no other."""
    with server.connect() as first, server.connect() as second:
        hello = hs.Hello(b"n" * 32, purpose=hs.HELLO_CHECK, token_id=server.token.id)
        raw = first.transcript.prove_hello(hello, server.token.secret)
        first.sock.sendall(raw)
        assert first.welcome(server.token.secret).status == hs.WELCOME_OK
        second.sock.sendall(raw)
        assert second.welcome(server.token.secret).status == hs.WELCOME_DENIED


def test_every_byte_of_a_hello_is_under_the_proof(server: FakeServer) -> None:
    """Of unknown kind or malformed: closed; of another version: told so; otherwise denied. Never welcome."""
    hello = hs.Hello(b"n" * 32, token_id=server.token.id, gpus=1, program="p", transports=(table.TRANSPORTS[-1].offer,), key_exchange=b"k")
    for at in range(len(hello.pack())):
        with server.connect() as connection:
            raw = bytearray(connection.transcript.prove_hello(hello, server.token.secret))
            raw[at] ^= 1
            try:
                connection.sock.sendall(raw)
                connection.sock.shutdown(socket.SHUT_WR)  # a size that says more than there is: nothing more comes
                answer = connection.sock.recv(hs.MESSAGE_MAX)
            except OSError:  # it closed with bytes of ours unread: a size that says less than there is
                continue
            assert not answer or hs.Welcome.unpack(answer).status in (hs.WELCOME_VERSION, hs.WELCOME_DENIED), at


def test_every_byte_of_a_greeting_is_under_the_proof(server: FakeServer) -> None:
    """A client that saw another greeting is not let in, whatever was altered in it."""
    with server.connect() as connection:
        size = len(connection.greeting.pack())
    for at in range(hs.HEAD_SIZE, size, 5):
        with server.connect() as connection:
            raw = bytearray(connection.greeting.pack())
            raw[at] ^= 1
            connection.transcript = hs.Transcript(bytes(raw))
            connection.say(server.token.secret, hs.Hello(b"n" * 32, purpose=hs.HELLO_CHECK, token_id=server.token.id))
            assert connection.welcome(server.token.secret).status == hs.WELCOME_DENIED


@pytest.mark.parametrize(("version", "older"), [(1, "client"), (3, "server")])
def test_other_wire_version(server: FakeServer, version: int, older: str) -> None:
    raw = bytearray(hs.Hello(bytes(32)).pack())
    raw[8] = version
    with server.connect() as connection:
        connection.sock.sendall(raw)
        welcome = connection.welcome(b"")
    assert welcome.status == hs.WELCOME_VERSION
    assert welcome.text.startswith(f"the {older} is older") and f"speaks wire version {version} and this server 2" in welcome.text


def test_a_hello_of_wire_version_1(server: FakeServer) -> None:
    """512 bytes whose head says nothing of a size."""
    with server.connect() as connection:
        connection.sock.sendall(hs.MAGIC + bytes([1, 0, 1, 0]) + b"\xff" * 500)
        assert connection.welcome(b"").text.startswith("the client is older than the server")


def test_versions_as_a_client_sees_them() -> None:
    """A server of wire version 1 sends 320 bytes; one of version 3 something that begins like ours."""
    older, newer = "is older than this gpuvirt: it speaks wire version 1", "this gpuvirt is older than the server"
    for versions, text in ((b"\1\0\1\0", older), (b"\3\0\4\0", newer)):
        with socket.create_server(("127.0.0.1", 0)) as listening:
            pid = os.fork()
            if pid == 0:
                client, _ = listening.accept()
                client.sendall(hs.MAGIC + versions + bytes(308))
                os._exit(0)
            with pytest.raises(GpuvirtError, match=text):
                check_pool(PoolAddress("127.0.0.1", listening.getsockname()[1]))
            os.waitpid(pid, 0)


def test_more_gpus_than_there_are(server: FakeServer) -> None:
    sock, welcome, _ = server.attach(gpus=3)
    sock.close()
    assert welcome.status == hs.WELCOME_BUSY and welcome.text.startswith("3 GPUs were asked for and this pool has 2 GPUs")


def test_more_memory_than_there_is(server: FakeServer) -> None:
    sock, welcome, _ = server.attach(memory=2 << 30)
    sock.close()
    assert welcome.status == hs.WELCOME_BUSY and "2.0 GiB per GPU" in welcome.text


def test_shm_needs_the_unix_socket(server: FakeServer) -> None:
    sock, welcome, _ = server.attach(transports=("shm",))
    sock.close()
    assert welcome.status == hs.WELCOME_FAILED and "shm needs a connection over the server's unix socket" in welcome.text


def test_link_not_offered(own_server: Callable[..., FakeServer]) -> None:
    server = own_server(links=["tcp"])
    with server.connect() as connection:
        assert connection.greeting.unix_path == ""
    for transports in (("shm",), ("pigeon", "shm"), ()):
        sock, welcome, _ = server.attach(transports=transports)
        sock.close()
        assert welcome.status == hs.WELCOME_FAILED and "offers tcp" in welcome.text


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n", bytes(512), b"\xff" * 512, b"GPUVIRT\0" + b"\xff" * 504])
def test_garbage(server: FakeServer, garbage: bytes) -> None:
    with server.connect() as connection:
        rest = b""
        with contextlib.suppress(OSError):  # it may close with bytes of ours unread
            connection.sock.sendall(garbage)
            connection.sock.shutdown(socket.SHUT_WR)
            rest = connection.sock.recv(1024)
    assert rest == b"" or hs.Welcome.unpack(rest).status != hs.WELCOME_OK
    other, welcome, _ = server.attach()
    other.close()
    assert welcome.status == hs.WELCOME_OK


def test_slow_hello_is_cut_off(monkeypatch: pytest.MonkeyPatch, server: FakeServer) -> None:
    """The limit is 5 s; here the code that enforces it runs with a short one, in this process."""
    import asyncio

    monkeypatch.setattr(listener, "HELLO_LIMIT", 1.0)

    async def main() -> float:
        listening = sockets.listen_tcp("127.0.0.1", 0)
        greeting = hs.Greeting(b"n" * 32)
        serving = listener.Listener(None, None, greeting, table.TRANSPORTS)  # type: ignore[arg-type]
        port = listening.getsockname()[1]
        serving.serve(listening)
        began = time.monotonic()  # before anything that the server counts from
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await reader.readexactly(len(greeting.pack()))
        with contextlib.suppress(ConnectionError):  # it may have cut us off before we said anything
            writer.write(b"GPUVIRT\0")
            assert await reader.read() == b""
        took = time.monotonic() - began
        writer.close()
        await serving.close()
        return took

    assert 0.99 <= asyncio.run(main()) < 60


# ---- what the client's own check says -----------------------------------------------------------------------------------------


def test_check_says_yes(server: FakeServer) -> None:
    status = check_pool(PoolAddress("127.0.0.1", server.port), server.token.text())
    assert status.software and status.same_host
    assert status.links()[0] == ["shm", "tcp"]


def test_check_of_a_connection_that_is_cut(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the greeting and the hello: it is tried again."""
    real, greeted = pool.greet, []

    def greet(address: PoolAddress) -> pool.Greeted:
        greeted.append(real(address))
        if len(greeted) == 1:
            assert ctypes.CDLL(None).connect(greeted[0].sock.fileno(), bytes(16), 16) == 0  # AF_UNSPEC: a reset
        return greeted[-1]

    monkeypatch.setattr(pool, "greet", greet)
    assert check_pool(PoolAddress("127.0.0.1", server.port), server.token.text()).peer == "127.0.0.1"
    assert len(greeted) == 2


def test_check_wrong_token(server: FakeServer) -> None:
    wrong = dataclasses.replace(server.token, secret=bytes(32))
    with pytest.raises(GpuvirtError, match=rf"tcp://127.0.0.1:{server.port} refused: the token was not accepted"):
        check_pool(PoolAddress("127.0.0.1", server.port), wrong.text())


def test_check_no_token(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUVIRT_TOKEN", raising=False)
    monkeypatch.setattr(paths, "runtime_dirs", list)
    with pytest.raises(GpuvirtError, match="asks for a token; set GPUVIRT_TOKEN"):
        check_pool(PoolAddress("127.0.0.1", server.port))


def test_check_finds_the_token_left_for_the_user(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUVIRT_TOKEN", raising=False)
    monkeypatch.setattr(paths, "runtime_dirs", lambda: [Path(server.env["XDG_RUNTIME_DIR"]) / "gpuvirt"])
    assert check_pool(PoolAddress("127.0.0.1", server.port)).token == server.token


ROOT_ONLY = pytest.param("owner", marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to others"))
NOBODY = 65534


@pytest.mark.parametrize("spoil", ["mode", "link", ROOT_ONLY])
def test_a_token_file_that_others_could_have_made_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: str) -> None:
    monkeypatch.setattr(paths, "runtime_dirs", lambda: [tmp_path])
    file = tmp_path / "7070.token"
    paths.write_private(file, "text\n")
    assert paths.find_local_token(7070) == "text"
    if spoil == "mode":
        file.chmod(0o640)
    elif spoil == "owner":
        os.chown(file, NOBODY, NOBODY)
    else:
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    assert paths.find_local_token(7070) is None


@pytest.mark.parametrize("spoil", ["link", "file", ROOT_ONLY])
def test_a_folder_that_others_could_have_made_is_not_used(tmp_path: Path, spoil: str) -> None:
    """/tmp/gpuvirt-UID is a name that any user of the host can take first."""
    folder = tmp_path / "gpuvirt-1000"
    (tmp_path / "elsewhere").mkdir()
    if spoil == "link":
        folder.symlink_to(tmp_path / "elsewhere")
    elif spoil == "file":
        folder.touch()
    else:
        folder.mkdir()
        os.chown(folder, NOBODY, NOBODY)
    with pytest.raises(GpuvirtError, match="gpuvirt-1000"):
        paths.private_dir(folder)
    mine = tmp_path / "mine"
    mine.mkdir(mode=0o777)
    assert not paths.private_dir(mine).stat().st_mode & 0o077


def test_check_something_else_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        pid = os.fork()
        if pid == 0:
            client, _ = listening.accept()
            client.sendall(b"220 smtp.example.org ESMTP\r\n" * 20)
            os._exit(0)
        with pytest.raises(GpuvirtError, match="is not a gpuvirt server"):
            check_pool(PoolAddress("127.0.0.1", port))
        os.waitpid(pid, 0)


def test_an_impostor_is_found_out(server: FakeServer) -> None:
    """Something that welcomes everybody without holding the secret."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        pid = os.fork()
        if pid == 0:
            client, _ = listening.accept()
            greeting = hs.Greeting(b"n" * 32).pack()
            client.sendall(greeting)
            head = receive(client, hs.HEAD_SIZE)
            hello = head + receive(client, hs.message_size(head) - hs.HEAD_SIZE)
            transcript = hs.Transcript(greeting)
            transcript.add(hello)
            client.sendall(transcript.prove_welcome(hs.Welcome(), bytes(32)))
            os._exit(0)
        with pytest.raises(GpuvirtError, match="does not hold the token's secret"):
            check_pool(PoolAddress("127.0.0.1", port), server.token.text())
        os.waitpid(pid, 0)


# ---- the control channel ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["secret", "server_key"])
def test_control_needs_a_token(server: FakeServer, what: str) -> None:
    """Neither does the server answer whoever has none, nor is a server believed that is not the token's."""
    wrong = dataclasses.replace(server.token, **{what: bytes(range(32))})
    with pytest.raises(ControlError, match="does not answer"):
        request("127.0.0.1", int(server.ready["control_port"]), wrong, "info", limit=0.5)
    assert server.ask("info")["wire_version"] == 2


def test_control_unknown_request(server: FakeServer) -> None:
    with pytest.raises(ControlError, match="does not know the request 'dance'"):
        server.ask("dance")


def test_tokens_over_the_control_channel(server: FakeServer) -> None:
    from gpuvirt.transport.token import parse_token

    made = parse_token(server.ask("token_create", name="alice")["token"])
    sock, welcome, _ = server.attach(made)
    assert welcome.status == hs.WELCOME_OK
    assert [t["name"] for t in server.ask("token_list")["tokens"]] == ["default", "alice"]
    assert "secret" not in str(server.ask("token_list"))
    port = int(server.ready["control_port"])
    assert len(request("127.0.0.1", port, made, "devices", limit=PATIENCE)["devices"]) == 2
    for op, arguments in (("token_list", {}), ("token_create", {"name": "mallory"}), ("token_revoke", {"which": "default"})):
        with pytest.raises(ControlError, match="may use GPUs but not manage tokens"):
            request("127.0.0.1", port, made, op, limit=PATIENCE, **arguments)
    assert server.ask("token_revoke", which="alice")["revoked"]["name"] == "alice"
    # The session under way is ended, a new one is not to be had.
    sock.settimeout(60)
    assert sock.recv(10) == b""
    sock.close()
    other, welcome, _ = server.attach(made)
    other.close()
    assert welcome.status == hs.WELCOME_DENIED


# ---- starting ---------------------------------------------------------------------------------------------------------------------


def serve(tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-P", "-m", "gpuvirt", "serve", *options]
    return subprocess.run(line, capture_output=True, text=True, timeout=100, env=environment(tmp_path), check=False)


def test_port_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = serve(tmp_path, "--backend", "soft", "--listen", f"127.0.0.1:{port}")
    assert done.returncode == 125 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and f"port {port} is taken" in done.stderr and "--listen" in done.stderr


def test_not_our_address(tmp_path: Path) -> None:
    done = serve(tmp_path, "--backend", "soft", "--listen", "192.0.2.1:0")
    assert done.returncode == 125 and done.stderr.count("\n") == 1 and "192.0.2.1" in done.stderr


def test_driver_that_is_none(tmp_path: Path) -> None:
    file = tmp_path / "libcuda.so.1"
    file.write_text("no library")
    done = serve(tmp_path, "--backend", "cuda", "--driver", str(file), "--listen", "127.0.0.1:0")
    assert done.returncode == 125 and done.stderr.count("\n") == 1 and str(file) in done.stderr


def test_log_is_on_stderr(own_server: Callable[..., FakeServer]) -> None:
    server = own_server()
    server.process.terminate()
    out, err = server.process.communicate(timeout=100)
    assert out == "" and all(line.startswith("gpuvirt serve: ") for line in err.splitlines())
    assert "gpuvirt serve: serving 1 software GPU of" in err and server.url in err
    wait_until(lambda: server.process.returncode == 0)
