"""Which links a server seals: its answer to clients that want that, and to those that do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import c_build
import pytest
from server.harness import FakeServer, wait_until
from server.test_c_client import client, run  # noqa: F401
from server.test_sessions import config_of, over_unix

from gpuvirt.errors import GpuvirtError
from gpuvirt.server.attaching.sealing import NotSealed, Sealing, SealLibrary
from gpuvirt.transport import handshake as hs
from gpuvirt.transport.shm import SHM
from gpuvirt.transport.tcp import TCP

ROOT = Path(__file__).parent.parent.parent
OFFER = b"\2" + bytes([9] * 32)  # ChaCha20-Poly1305, a public key


@pytest.fixture
def sealed(own_server: Callable[..., FakeServer]) -> FakeServer:
    return own_server(plain=False)


def test_sealed(sealed: FakeServer) -> None:
    """The worker gets the secret that belongs to this session; the next one has another, also for the same offer."""
    seen = set()
    for _ in range(2):
        sock, welcome, key = sealed.attach(key_exchange=OFFER)
        with sock:
            assert welcome.status == hs.WELCOME_OK and welcome.key_exchange[0] == 2 and len(welcome.key_exchange) == 33
            config = config_of(sock)
            assert len(config["seal"]) == 33 and config["seal"][32] == 2
            (listed,) = [s for s in sealed.ask("ps")["sessions"] if s["session"] == f"{welcome.session:016x}"]
            assert (listed["link"], listed["cipher"]) == ("tcp", "ChaCha20-Poly1305")
            seen |= {config["seal"], welcome.key_exchange, key}
    assert len(seen) == 6
    log = sealed.stop()
    assert "over tcp (ChaCha20-Poly1305)" in log and not any(value.hex() in log or repr(value) in log for value in seen)


def test_the_key_of_the_first_connection_alone_opens_no_other(sealed: FakeServer) -> None:
    """What the token and the handshake's bytes give is not the session's key: the exchange is mixed in."""
    sock, welcome, key = sealed.attach(key_exchange=OFFER)
    with sock, sealed.connect() as channel:
        channel.say(key, hs.Hello(b"c" * 32, purpose=hs.HELLO_CHANNEL, session=welcome.session))
        assert channel.welcome(key).status == hs.WELCOME_DENIED


def test_plain_is_refused(sealed: FakeServer) -> None:
    sock, welcome, _ = sealed.attach()
    sock.close()
    assert welcome.status == hs.WELCOME_FAILED and not welcome.key_exchange
    assert "drop (plain) from --link, or start the server with `gpuvirt serve --plain`" in welcome.text
    assert sealed.ask("ps")["sessions"] == []


def test_plain_where_both_say_so(server: FakeServer) -> None:
    sock, welcome, _ = server.attach()
    with sock:
        assert welcome.status == hs.WELCOME_OK and not welcome.key_exchange
        assert config_of(sock)["seal"] == b""
        (listed,) = [s for s in server.ask("ps")["sessions"] if s["session"] == f"{welcome.session:016x}"]
        assert (listed["link"], listed["cipher"]) == ("tcp", None)
    wait_until(lambda: server.ask("ps")["sessions"] == [])


def test_shared_memory_is_not_sealed(sealed: FakeServer) -> None:
    with over_unix(sealed) as connection:
        welcome, _ = connection.shake(sealed.token, transports=("shm",), key_exchange=OFFER)
        assert welcome.status == hs.WELCOME_OK and not welcome.key_exchange
        assert config_of(connection.sock)["seal"] == b""


@pytest.mark.parametrize(
    ("offer", "text"),
    [
        (b"k", "the client's key exchange is of another kind; install the same gpuvirt on both"),
        (OFFER + b"\0", "of another kind"),
        (b"\7" + OFFER[1:], "the client wants a cipher that this server does not know"),
        (b"\1" + bytes(32), "the client's key is none"),
    ],
)
def test_offers_that_are_none(server: FakeServer, offer: bytes, text: str) -> None:
    sock, welcome, _ = server.attach(key_exchange=offer)
    sock.close()
    assert welcome.status == hs.WELCOME_FAILED and text in welcome.text
    assert server.ask("ps")["sessions"] == []


def test_a_stranger_gets_no_exchange(sealed: FakeServer) -> None:
    """It costs the daemon something, so the token is proved first."""
    with sealed.connect() as connection:
        connection.say(bytes(32), hs.Hello(b"n" * 32, token_id=sealed.token.id, key_exchange=b"k"))
        assert connection.welcome(bytes(32)).status == hs.WELCOME_DENIED


@pytest.mark.parametrize(("link", "plain", "code"), [("tcp", False, 0), ("tcp", True, 0), ("tcp(plain)", False, 1), ("tcp(plain)", True, 0)])
def test_the_c_client(own_server: Callable[..., FakeServer], client: Path, link: str, plain: bool, code: int) -> None:  # noqa: F811
    """Each combination of both ends' words: a link is plain if both say so, and not otherwise."""
    server = own_server(plain=plain)
    done = run(client, server.url, link, server.token)
    assert done.returncode == code, done.stdout
    if code:
        assert done.stdout.startswith(f"{hs.WELCOME_FAILED} ") and "drop (plain) from --link" in done.stdout
    else:
        assert ("is plain: whoever is on the way can read and change what passes" in done.stdout) == (link != "tcp")
    log = server.stop()
    assert ("clients that ask for a plain link get one" in log) == plain
    assert ("over tcp (" in log) == (code == 0) and ("over tcp (plain)" in log) == (code == 0 and link != "tcp")


def without_library(folder: Path) -> Path:
    sources = [ROOT / "native/worker/key_exchange.c", *ROOT.glob("native/transport/seal/*.c"), *ROOT.glob("native/wire/*.c")]
    return c_build.library(folder / "libgpuvirt_worker.so", sources, flags=['-DCRYPTO_LIBRARIES="libnone.so.3"'])


def test_without_a_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The remedy is told at the start and to the client; plain links and shared memory go on."""
    without_library(tmp_path)
    monkeypatch.setenv("GPUVIRT_LIB_DIR", str(tmp_path))
    sealing = Sealing(plain=True)
    with pytest.raises(GpuvirtError, match=r"install OpenSSL 3 \(libssl3\), or agree on tcp\(plain\)"):
        sealing.check()
    with pytest.raises(NotSealed, match=r"cannot be sealed on the server: no library to seal the link with .*install OpenSSL 3"):
        sealing.exchange(TCP, OFFER)
    assert sealing.exchange(TCP, b"") is None and sealing.exchange(SHM, OFFER) is None
    monkeypatch.setenv("GPUVIRT_LIB_DIR", str(tmp_path / "none"))
    with pytest.raises(NotSealed, match=r"libgpuvirt_worker\.so is not in"):
        Sealing().exchange(TCP, OFFER)
    other = tmp_path / "other.so"
    other.write_text("no library")
    with pytest.raises(GpuvirtError, match="cannot be loaded"):
        SealLibrary(other)
    with pytest.raises(GpuvirtError, match="is of another version; build it anew"):
        SealLibrary(c_build.library(tmp_path / "old.so", [ROOT / "native/wire/lz4.c"]))


def test_the_daemon_says_what_is_missing(own_server: Callable[..., FakeServer], tmp_path: Path) -> None:
    server = own_server(plain=False, libraries=without_library(tmp_path).parent)
    sock, welcome, _ = server.attach(key_exchange=OFFER)
    sock.close()
    assert welcome.status == hs.WELCOME_FAILED and "install OpenSSL 3 (libssl3)" in welcome.text
    assert "links over tcp cannot be sealed, and clients that want that are refused: no library" in server.stop()


def test_both_ciphers_are_there() -> None:
    version = SealLibrary().version()
    assert version.startswith(("AES-256-GCM by ", "ChaCha20-Poly1305 by "))
