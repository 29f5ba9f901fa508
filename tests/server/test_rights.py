"""What tokens allow, at a real daemon with stand-in workers: shares and quotas, and that nothing goes on with one that is over."""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from server.harness import EACH_POOL, FakeServer, start_fake, wait_until
from server.test_flood import drain
from server.test_lease_sessions import WHO, ask_as
from server.test_queue import all_over, queued, waits

from gpuvirt.server.tokens import TokenStore
from gpuvirt.transport import handshake as hs
from gpuvirt.transport.control import ControlError
from gpuvirt.transport.token import Token, parse_token

GIB = 1 << 30


@pytest.fixture(scope="module", params=EACH_POOL)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeServer]:
    server = start_fake(tmp_path_factory.mktemp("rights"), gpus=2, gpu_memory=GIB, head=request.param)
    yield server
    server.stop()


def make(server: FakeServer, **rights: Any) -> tuple[Token, str]:
    name = secrets.token_hex(8)
    return parse_token(server.ask("token_create", name=name, **rights)["token"]), name


def told(server: FakeServer, session: int, key: bytes) -> hs.Welcome:
    """What the client of a session that has ended is told when it asks, as its library does."""
    with server.connect() as again:
        again.say(key, hs.Hello(b"f" * 32, purpose=hs.HELLO_RESUME, session=session, epoch=1))
        return again.welcome(key)


def ends(sock: socket.socket) -> None:
    sock.settimeout(100)
    assert sock.recv(1) == b""
    sock.close()


@pytest.mark.parametrize("shared", [False, True])
def test_a_quota(server: FakeServer, shared: bool) -> None:
    """Also of a user that has two tokens; who wants more than it waits, though the GPUs are free, and who wants more at once is refused."""
    first, _ = make(server, gpus=1, **({"user": "ada"} if shared else {}))
    second = make(server, user="ada")[0] if shared else first
    one, welcome, _ = server.attach(first, gpus=1)
    assert welcome.status == hs.WELCOME_OK
    two, state = waits(server, second)
    assert state.place == 1 and "has 1 of the 1 GPU that it may have" in state.text
    other, welcome, _ = server.attach(gpus=1)
    assert welcome.status == hs.WELCOME_OK, "others have theirs"
    refused = server.attach(second, gpus=2)[1]
    assert refused.status == hs.WELCOME_BUSY and "this token may have 1 at a time" in refused.text
    one.close()
    assert two.welcome(second.secret).status == hs.WELCOME_OK
    two.close()
    other.close()
    for entry in server.ask("token_list")["tokens"]:
        if entry["user"] == "ada":
            server.ask("token_revoke", which=entry["id"])
    all_over(server)


@pytest.mark.parametrize(("placement", "reserves", "together"), [("pack", 0, True), ("spread", 250, False), ("", 0, False), ("", 250, True)])
def test_a_placement(server: FakeServer, placement: str, reserves: int, together: bool) -> None:
    """The second lease of a token is where the first one is, or where nobody is."""
    token, _ = make(server, **({"placement": placement} if placement else {}))
    ids = [secrets.token_bytes(hs.LEASE_SIZE) for _ in range(2)]
    opened = [ask_as(server, token, "lease_open", lease=id, gpus=1, compute=reserves, holder=WHO)["devices"] for id in ids]
    assert (opened[0] == opened[1]) is together
    for id in ids:
        ask_as(server, token, "lease_release", lease=id)
    all_over(server)


def test_a_weight(server: FakeServer) -> None:
    """Who has used as much as another and has the greater weight goes first, though it came later."""
    heavy, light = make(server, weight=100)[0], make(server)[0]
    having = [server.attach(token, gpus=1, memory=GIB)[0] for token in (heavy, light)]
    one, state = waits(server, light, memory=GIB, program="light")
    assert (state.place, state.queued) == (1, 1)
    two, state = waits(server, heavy, memory=GIB, program="heavy")
    assert (state.place, state.queued) == (1, 2)
    assert [lease["program"] for lease in queued(server)] == ["heavy", "light"]
    for connection in (one, two, *having):
        connection.close()
    all_over(server)


@pytest.mark.parametrize("by_file", [False, True])
def test_revoking_ends_what_there_is(server: FakeServer, by_file: bool) -> None:
    """Sessions, named leases, and who waits; each is told why, and others' go on."""
    token, name = make(server)
    other, welcome, _ = server.attach(gpus=1, memory=GIB)
    one, running, key = server.attach(token, gpus=1, memory=GIB)
    assert running.status == welcome.status == hs.WELCOME_OK
    two, _ = waits(server, token, memory=GIB)
    if by_file:
        TokenStore(Path(server.env["GPUVIRT_STATE"])).revoke(name)
    else:
        server.ask("token_revoke", which=name)
    refused = two.welcome(token.secret)
    assert refused.status == hs.WELCOME_BUSY and refused.text == "the token has been revoked; ask the server's owner for another"
    ends(one)
    wait_until(lambda: len(server.ask("ps")["sessions"]) == 1)
    answer = told(server, running.session, key)
    assert answer.status == hs.WELCOME_UNKNOWN and answer.text == refused.text
    assert server.attach(token)[1].status == hs.WELCOME_DENIED
    with pytest.raises(ControlError):
        ask_as(server, token, "devices", limit=5)  # it may get no answer at all
    assert [lease["sessions"] for lease in server.ask("ps")["leases"]] == [[f"{welcome.session:016x}"]]
    other.close()
    two.close()
    all_over(server)


def test_revoking_ends_named_leases(server: FakeServer) -> None:
    token, name = make(server)
    ids = [secrets.token_bytes(hs.LEASE_SIZE) for _ in range(2)]
    for id in ids:
        ask_as(server, token, "lease_open", lease=id, gpus=1, holder=WHO)
    sock, welcome, key = server.attach(token, lease=ids[0])
    server.ask("token_revoke", which=name)
    ends(sock)
    assert "revoked" in told(server, welcome.session, key).text, "while its worker ends"
    all_over(server)
    assert "revoked" in told(server, welcome.session, key).text


@pytest.mark.slow
def test_an_expired_token(server: FakeServer) -> None:
    """What it has ends when it does; then it is refused, and why is told to its holder only."""
    for lifetime in (2.5, 5, 10, 20, 40):  # a busy machine may take longer to attach than a token lasts
        token, name = make(server, lifetime=lifetime)
        sock, welcome, key = server.attach(token, gpus=1)
        with contextlib.suppress(ControlError):
            if welcome.status == hs.WELCOME_OK and ask_as(server, token, "devices"):
                break
        sock.close()
    else:
        pytest.fail("a token could not be used before it expired")
    ends(sock)
    all_over(server)
    assert "this token has expired, at 2" in told(server, welcome.session, key).text
    for purpose in (hs.HELLO_SESSION, hs.HELLO_CHECK, hs.HELLO_ENDED):
        refused = server.attach(token, purpose=purpose)[1]
        assert refused.status == hs.WELCOME_DENIED and "this token has expired, at 2" in refused.text
    stranger = Token(token.id, bytes(32), token.server_key)
    assert server.attach(stranger)[1].text == "the token was not accepted"
    with pytest.raises(ControlError, match=r"this token has expired, at 2.*ask the server's owner"):
        ask_as(server, token, "devices")
    assert next(entry["expires"] for entry in server.ask("token_list")["tokens"] if entry["name"] == name) < time.time()
    server.ask("token_revoke", which=name)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"weight": 0}, "weight is a number from 0.001 to 1000"),
        ({"weight": float("nan")}, "weight is a number"),
        ({"weight": "1"}, "weight is a number"),
        ({"gpus": -1}, "GPUs are a number"),
        ({"gpus": True}, "GPUs are a number"),
        ({"priority": 101}, "priority is a number from -100 to 100"),
        ({"memory": 1 << 63}, "memory is a number of bytes"),
        ({"user": "a\nb"}, "at most 64 printable characters"),
        ({"user": ["a"]}, "at most 64 printable characters"),
        ({"lifetime": 0}, "valid for a number of seconds"),
        ({"lifetime": float("inf")}, "valid for a number of seconds"),
    ],
)
def test_wrong_rights(server: FakeServer, wrong: dict[str, Any], text: str) -> None:
    before = server.ask("token_list")
    with pytest.raises(ControlError, match=text):
        server.ask("token_create", name="wrong", **wrong)
    assert server.ask("token_list") == before


@pytest.mark.slow
def test_a_damaged_file_ends_nothing(tmp_path: Path) -> None:
    """Nor does one that is gone: what runs goes on, and the log says why new connections are refused."""
    server = start_fake(tmp_path, gpus=1, gpu_memory=GIB)
    sock, welcome, _ = server.attach(gpus=1)
    file = Path(server.env["GPUVIRT_STATE"]) / "tokens.json"
    good = file.read_text()
    lines: list[str] = []
    reading = drain(server, lines)

    def put(text: str) -> None:
        """At once: no look of the server meets half of it."""
        (tmp_path / "new").write_text(text)
        (tmp_path / "new").replace(file)

    for damage, said in ((lambda: put("{"), "cannot be read"), (file.unlink, "is gone; what runs goes on")):
        damage()
        wait_until(lambda said=said: any(said in line for line in lines))  # type: ignore[misc]
        time.sleep(2)  # the server looks once a second, and is to say it once
    put(json.dumps(json.loads(good)))
    assert [s["session"] for s in server.ask("ps")["sessions"]] == [f"{welcome.session:016x}"]
    server.process.terminate()
    server.process.wait(100)
    reading.join(100)
    sock.close()
    log = "".join(lines)
    assert log.count("cannot be read") == 1 and log.count("is gone; what runs goes on") == 1 and "Traceback" not in log
