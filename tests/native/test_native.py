"""The wire and the transports, as C programs under the sanitizers; and C's handshake against Python's."""

from __future__ import annotations

import os
import re
import secrets
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import c_build
import pytest
from concurrent_runs import ConcurrentRuns

from gpuvirt.transport import handshake as hs
from gpuvirt.transport import shm

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "tests/native"
WIRE = sorted((ROOT / "native/wire").glob("*.c"))
LINK = [*WIRE, *sorted((ROOT / "native/transport").glob("*.c"))]
HELPERS = [HERE / "transport/pair.c", HERE / "transport/mini_server.c", HERE / "transport/cutter.c"]
ADDRESS, THREAD = "address", "thread"

Builder = Callable[..., Path]

pytestmark = pytest.mark.timeout(700)


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    """Compiles a program: build(name, sanitizer, sources, flags) gives its path."""
    folder = tmp_path_factory.mktemp("native")

    def make(name: str, sanitizer: str, sources: list[Path], flags: tuple[str, ...] = ()) -> Path:
        return c_build.program(folder / f"{name}.{sanitizer}", sources, variant=sanitizer, flags=flags)

    return make


def run(program: Path, *args: str, seconds: float = 600) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1", "ASAN_OPTIONS": "detect_leaks=1", "UBSAN_OPTIONS": "print_stacktrace=1"}
    return subprocess.run([str(program), *args], capture_output=True, text=True, timeout=seconds, env=env)


def passes(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    assert "cases passed" in done.stdout


# An unanswering server has the time that the test gives it, what may be under way is cut from 64 and 256 MiB to a few, an end waits for readers.
SMALLER = ("-include", str(HERE / "transport/open_ns.h"), "-DUNACKED_LIMIT=4194304u", "-DCOPIES_LIMIT=8388608ull", "-DDRAIN_MS=100000")
BROKEN = "-DTEST_PATIENCE_NS=5000000000LL"  # what is to be noticed may be that something never comes
# Whoever is not woken sleeps so long that it is seen.
LONG_SLEEPS = ("-DSHM_SLICE_NS=50000000000", "-DTCP_SLEEP_NS=50000000000")


def delay_cases() -> list[str]:
    return re.findall(r'\{"([a-z_]+)", [a-z_]+\}', (HERE / "transport/test_delay.c").read_text())


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, build: Builder) -> Iterator[ConcurrentRuns]:
    """The programs of the tests below."""

    def wire(name: str, sanitizer: str, flags: tuple[str, ...] = ()) -> Path:
        return build(name + "_plain" * bool(flags), sanitizer, [*WIRE, HERE / f"wire/{name}.c"], flags)

    def transport(name: str, sanitizer: str, flags: tuple[str, ...] = SMALLER, variant: str = "") -> Path:
        return build(name + variant, sanitizer, [*LINK, *HELPERS, HERE / f"transport/{name}.c"], flags)

    def noticed(program: Path, case: str) -> subprocess.CompletedProcess[str]:
        """On a busy machine a line that is too quick may take long enough all the same, so it has several tries."""
        for _ in range(20):
            done = run(program, case)
            if done.returncode:
                break
        return done

    jobs = {
        "test_wire": lambda p: run(wire(p["name"], p["sanitizer"])),
        "test_plain_sha256": lambda p: run(wire("test_sha256", ADDRESS, ("-DSHA256_PLAIN",))),
        "test_transport": lambda p: run(transport(**p, flags=SMALLER + LONG_SLEEPS * (p["name"] == "test_links"))),
        "test_delay_threads": lambda p: run(transport("test_delay", THREAD), *(case for case in delay_cases() if "child" not in case)),
        "test_a_broken_delay_is_noticed": lambda p: noticed(
            transport("test_delay", "undefined", (f"-DGV_BREAK_DELAY={p['fault']}", BROKEN), f"_{p['fault']}"), p["case"]
        ),
        "test_a_lost_byte_of_a_payload_is_noticed": lambda p: run(
            transport("test_bulk", "undefined", (*SMALLER, "-DGV_BREAK_BULK", BROKEN), "_broken"), "cut_1"
        ),
        "test_records_that_are_not_sent_again_are_noticed": lambda p: run(
            transport("test_resume", "undefined", (*SMALLER, "-DGV_BREAK_RESUME", BROKEN), f"_broken_{p['case']}"), p["case"]
        ),
    }
    with ConcurrentRuns(request, jobs) as started:
        yield started


@pytest.mark.parametrize("sanitizer", [ADDRESS, pytest.param(THREAD, marks=pytest.mark.wide)])
@pytest.mark.parametrize("name", ["test_sha256", "test_meta", "test_ring", "test_lz4"])
def test_wire(runs: ConcurrentRuns, request: pytest.FixtureRequest, name: str, sanitizer: str) -> None:
    passes(runs.result(request))


def test_plain_sha256(runs: ConcurrentRuns, request: pytest.FixtureRequest) -> None:
    """As on processors without instructions for it."""
    passes(runs.result(request))


TRANSPORT = [
    ("test_links", ADDRESS),
    pytest.param("test_links", THREAD, marks=pytest.mark.wide),
    ("test_connect", ADDRESS),
    pytest.param("test_connect", THREAD, marks=pytest.mark.wide),
    ("test_malformed", ADDRESS),
    ("test_delay", ADDRESS),
    ("test_bulk", ADDRESS),
    pytest.param("test_bulk", THREAD, marks=pytest.mark.wide),
    ("test_resume", ADDRESS),
    ("test_resume", THREAD),
    ("test_death", ADDRESS),  # forks with threads about, which the thread sanitizer does not do
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "sanitizer"), TRANSPORT)
def test_transport(runs: ConcurrentRuns, request: pytest.FixtureRequest, name: str, sanitizer: str) -> None:
    passes(runs.result(request))


@pytest.mark.wide
def test_delay_threads(runs: ConcurrentRuns, request: pytest.FixtureRequest) -> None:
    """Without the cases that fork with threads about."""
    count = sum("child" not in case for case in delay_cases())
    assert count > 15
    done = runs.result(request)
    assert f"{count} cases passed" in done.stdout, done.stderr[-6000:]


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "case"), [(1, "a_round_trip_is_never_early"), (2, "a_rate_paces"), (3, "a_stalled_reader_stops_the_sender")])
def test_a_broken_delay_is_noticed(runs: ConcurrentRuns, request: pytest.FixtureRequest, fault: int, case: str) -> None:
    """A line that lets go too early, does not pace or has no bounds (GV_BREAK_DELAY) is what the cases would find."""
    assert runs.result(request).returncode == 1


@pytest.mark.slow
def test_a_lost_byte_of_a_payload_is_noticed(runs: ConcurrentRuns, request: pytest.FixtureRequest) -> None:
    """A channel that comes back one byte too late in the stream (GV_BREAK_BULK) is what the cases would find."""
    assert runs.result(request).returncode == 1


@pytest.mark.slow
@pytest.mark.parametrize("case", ["records_cut", "cut_while_coming_back"])
def test_records_that_are_not_sent_again_are_noticed(runs: ConcurrentRuns, request: pytest.FixtureRequest, case: str) -> None:
    """A link that goes on after a cut without what was on its way (GV_BREAK_RESUME) is what the cases would find."""
    assert runs.result(request).returncode == 1


# ---- C against Python --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def proof_tool(build: Builder) -> Callable[[bytes], bytes]:
    program = build("proof_tool", ADDRESS, [*WIRE, HERE / "wire/proof_tool.c"])

    def ask(question: bytes) -> bytes:
        return subprocess.run([str(program)], input=question, capture_output=True, check=True, timeout=30).stdout

    return ask


def test_hello_proofs_agree(proof_tool: Callable[[bytes], bytes]) -> None:
    key, server = secrets.token_bytes(32), secrets.token_bytes(32)
    token = bytes(range(16))
    hello = hs.Hello(secrets.token_bytes(32), session=7, token_id=token, pid=3, gpus=2, memory=9, epoch=1, flags=1, program="p", user="u", host="h")
    raw = hello.pack(key, server)
    assert proof_tool(b"v" + key + server + raw) == b"1"
    assert proof_tool(b"v" + server + key + raw) == b"0"
    assert proof_tool(b"v" + key + server + raw[:100] + bytes([raw[100] ^ 1]) + raw[101:]) == b"0"
    made = proof_tool(b"h" + key + server + bytes(10) + raw[10:-32] + bytes(32))
    assert made == raw and hs.hello_proved(made, key, server)


def test_welcome_proofs_agree(proof_tool: Callable[[bytes], bytes]) -> None:
    key, client, server = (secrets.token_bytes(32) for _ in range(3))
    welcome = hs.Welcome(session=5, channels=1, command_ring=1, reply_ring=2, bulk_out_ring=3, bulk_in_ring=4, grace_s=6, text="t")
    raw = welcome.pack(key, client, server)
    assert proof_tool(b"x" + key + client + server + raw) == b"1"
    assert proof_tool(b"x" + key + server + client + raw) == b"0"
    assert proof_tool(b"w" + key + client + server + bytes(10) + raw[10:-32] + bytes(32)) == raw


def test_session_keys_agree(proof_tool: Callable[[bytes], bytes]) -> None:
    secret, server, client = (secrets.token_bytes(32) for _ in range(3))
    session = secrets.randbits(63)
    assert proof_tool(b"k" + secret + server + client + struct.pack("<Q", session)) == hs.session_key(secret, server, client, session)


def test_greetings_agree(proof_tool: Callable[[bytes], bytes]) -> None:
    greeting = hs.Greeting(bytes(32), boot_id="b" * 60, unix_path="/run/x", server_name="name")
    assert proof_tool(b"g" + greeting.pack()) == b"0" + b"b" * 39 + b"\0/run/x\0name\0"
    assert proof_tool(b"g" + hs.Greeting(bytes(32), version_min=2, version_max=4).pack())[:1] == b"2"
    assert proof_tool(b"g" + b"x" * hs.GREETING_SIZE)[:1] == b"1"


def test_layout_agrees(build: Builder) -> None:
    """The daemon makes the shared memory, the library maps it: one formula, written twice."""
    source = build("layout", ADDRESS, [*LINK, HERE / "transport/layout_tool.c"])
    done = run(source, *map(str, (shm.COMMAND_RING, shm.REPLY_RING, shm.BULK_RING, shm.BULK_RING)))
    assert int(done.stdout) == shm.memory_size(shm.COMMAND_RING, shm.REPLY_RING, shm.BULK_RING, shm.BULK_RING)
    rings = shm.Rings.create()
    assert os.fstat(rings.fd).st_size == int(done.stdout)
    os.close(rings.fd)
