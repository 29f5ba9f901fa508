"""The wire and the transports, as C programs under the sanitizers; and C's handshake against Python's."""

from __future__ import annotations

import dataclasses
import os
import re
import secrets
import signal
import struct
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import c_build
import pytest
from concurrent_runs import ENVIRONMENT, ConcurrentRuns
from softverbs import build as softverbs

from gpuvirt.transport import handshake as hs
from gpuvirt.transport import shm, table

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "tests/native"
WIRE = sorted((ROOT / "native/wire").glob("*.c"))
SEAL = [*WIRE, *sorted((ROOT / "native/transport/seal").glob("*.c"))]
LINK = [*WIRE, *sorted((ROOT / "native/transport").rglob("*.c"))]
HELPERS = [HERE / f"transport/{name}.c" for name in ("pair", "mini_server", "cutter", "sealed_peer", "hostile_relay")]
SEALS, PLAIN = "-DGV_TCP_SEALS=true", "-DGV_TCP_SEALS=false"
ADDRESS, THREAD = "address", "thread"
# Transports of the tests' own: a file, and a row behind those of the table.
TOY_ROW, SEALED_ROW = "-DGV_MORE_TRANSPORT=gv_pipes_transport", "-DGV_MORE_TRANSPORT=gv_sealed_transport"
ROWS = {TOY_ROW: HERE / "transport/pipes.c", SEALED_ROW: HERE / "transport/sealed_row.c"}

Builder = Callable[..., Path]

pytestmark = pytest.mark.timeout(700)


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    """Compiles a program: build(name, sanitizer, sources, flags) gives its path."""
    folder = tmp_path_factory.mktemp("native")

    def make(name: str, sanitizer: str, sources: list[Path], flags: tuple[str, ...] = (), libraries: tuple[str, ...] = ()) -> Path:
        return c_build.program(folder / f"{name}.{sanitizer}", sources, variant=sanitizer, flags=flags, libraries=libraries)

    return make


def run(program: Path, *args: str, seconds: float = 600, more: Mapping[str, str] = MappingProxyType({})) -> subprocess.CompletedProcess[str]:
    env = {**ENVIRONMENT, "TSAN_OPTIONS": "halt_on_error=1", "ASAN_OPTIONS": "detect_leaks=1", "UBSAN_OPTIONS": "print_stacktrace=1", **more}
    return subprocess.run([str(program), *args], capture_output=True, text=True, timeout=seconds, env=env)


def passes(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    assert "cases passed" in done.stdout


# An unanswering server has the time that the test gives it, what may be under way is cut from 64 and 256 MiB to a few, an end waits for readers.
# By macros and not by -include, so that files that use none of it are compiled once for all tests.
SMALLER = (
    *(c_build.calls("OPEN_NS", "long long", "test_open_limit"), "-DUNACKED_LIMIT=4194304u", "-DCOPIES_LIMIT=8388608ull"),
    *("-DDRAIN_MS=100000", "-DVERBS_HELLO_NS=50000000000ll"),
)
BROKEN = "-DTEST_PATIENCE_NS=5000000000LL"  # what is to be noticed may be that something never comes
# Whoever is not woken sleeps so long that it is seen.
LONG_SLEEPS = ("-DSHM_SLICE_NS=50000000000", "-DTCP_SLEEP_NS=50000000000")


ON_DEVICES = ("test_links", "test_resume", "test_redial", "test_rails", "test_lent", "test_device_memory", "test_hostile_verbs")
MORE = {"test_links": (*LONG_SLEEPS, TOY_ROW)}
# Both kinds of tcp: the table's is plain here, the row of the tests' own is sealed.
SEALED_TOO = ("test_bulk", "test_resume", "test_redial", "test_delay", "test_delay_links", "test_sealed", "test_sealed_bulk")
MORE |= dict.fromkeys(SEALED_TOO, (SEALED_ROW, PLAIN))


def transport_source(name: str) -> Path:
    (source,) = (HERE / "transport").rglob(f"{name}.c")
    return source


def delay_cases(name: str) -> list[str]:
    """Those that the thread sanitizer runs: it has no forks with threads about."""
    cases = re.findall(r'\{"([a-z_]+)", [a-z_]+\}', transport_source(name).read_text())
    return [case for case in cases if "child" not in case]


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, build: Builder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConcurrentRuns]:
    """The programs of the tests below."""

    def wire(name: str, sanitizer: str, flags: tuple[str, ...] = ()) -> Path:
        return build(name + "_plain" * bool(flags), sanitizer, [*WIRE, HERE / f"wire/{name}.c"], flags)

    def transport(name: str, sanitizer: str, flags: tuple[str, ...] = SMALLER, variant: str = "") -> Path:
        more = [ROWS[flag] for flag in flags if flag in ROWS]
        return build(name + variant, sanitizer, [*LINK, *HELPERS, *more, transport_source(name)], flags)

    def devices(sanitizer: str) -> dict[str, str]:
        """Four RDMA devices of the software libibverbs, on a fabric of their own."""
        folder = tmp_path_factory.mktemp("fabric")
        return {
            "GPUVIRT_IBVERBS": str(softverbs.library(folder, sanitizer)),
            "SOFTVERBS_FABRIC": str(folder / "fabric"),
            "SOFTVERBS_DEVICES": "4",
        }

    def on_devices(name: str, sanitizer: str) -> dict[str, str]:
        return devices(sanitizer) if name in ON_DEVICES else {}

    def noticed(program: Path, case: str) -> subprocess.CompletedProcess[str]:
        """On a busy machine a line that is too quick may take long enough all the same, so it has several tries."""
        for _ in range(20):
            done = run(program, case)
            if done.returncode:
                break
        return done

    def seal(name: str, sanitizer: str, flags: tuple[str, ...] = (), libraries: tuple[str, ...] = ()) -> Path:
        return build(name + "_broken" * bool(flags), sanitizer, [*SEAL, HERE / f"transport/{name}.c"], flags, libraries)

    jobs = {
        "test_seal": lambda p: run(seal("test_seal", p["sanitizer"]), *(["threads"] if p["sanitizer"] == THREAD else [])),
        "test_sealing_without_a_library": lambda p: run(
            transport("test_no_crypto", ADDRESS, (*SMALLER, *p["flags"], SEALS), f"_{abs(hash(p['flags']))}")
        ),
        "test_key_exchange": lambda p: run(transport("test_key_exchange", p["sanitizer"], (*SMALLER, SEALS))),
        "test_the_programs_own_crypto_is_not_called": lambda p: run(seal("test_own_crypto", "plain", (), ("-rdynamic",))),
        "test_calls_of_the_programs_own_crypto_are_noticed": lambda p: run(
            seal("test_own_crypto", "plain", ("-DGV_BREAK_DEEPBIND",), ("-rdynamic",))
        ),
        "test_wire": lambda p: run(wire(p["name"], p["sanitizer"])),
        "test_plain_sha256": lambda p: run(wire("test_sha256", ADDRESS, ("-DSHA256_PLAIN",))),
        "test_transport": lambda p: run(transport(**p, flags=SMALLER + MORE.get(p["name"], ())), more=on_devices(**p)),
        "test_many_cuts": lambda p: run(
            transport("test_resume", p["sanitizer"], (*SMALLER, *MORE["test_resume"], "-DMANY_CUTS=300"), "_many"),
            "verbs_many_cuts",
            more=devices(p["sanitizer"]),
        ),
        "test_delay_threads": lambda p: run(transport(p["name"], THREAD, SMALLER + MORE[p["name"]]), *delay_cases(p["name"])),
        "test_a_broken_delay_is_noticed": lambda p: noticed(
            transport("test_delay", "undefined", (f"-DGV_BREAK_DELAY={p['fault']}", BROKEN), f"_{p['fault']}"), p["case"]
        ),
        "test_a_lost_byte_of_a_payload_is_noticed": lambda p: run(
            transport("test_bulk", "undefined", (*SMALLER, PLAIN, "-DGV_BREAK_BULK", BROKEN), "_broken"), "cut_1"
        ),
        "test_memory_read_after_death_is_noticed": lambda p: noticed(
            transport("test_bulk", "undefined", (*SMALLER, SEALED_ROW, PLAIN, "-DGV_BREAK_BORROWED", BROKEN), "_borrowed"),
            "nothing_is_read_after_death",
        ),
        "test_a_fault_of_sealing_is_noticed": lambda p: run(
            transport("test_sealed", "undefined", (*SMALLER, SEALED_ROW, f"-DGV_BREAK_{p['fault']}", BROKEN), f"_{p['fault']}"), p["case"]
        ),
        "test_payloads_sealed_wrongly_are_noticed": lambda p: run(
            transport("test_sealed_bulk", "undefined", (*SMALLER, SEALED_ROW, f"-DGV_BREAK_{p['fault']}", BROKEN), f"_{p['fault']}"), p["case"]
        ),
        "test_records_that_are_not_sent_again_are_noticed": lambda p: run(
            transport("test_resume", "undefined", (*SMALLER, PLAIN, "-DGV_BREAK_RESUME", BROKEN), f"_broken_{p['case']}"),
            p["case"],
            more=devices("undefined"),
        ),
    }
    with ConcurrentRuns(request, jobs) as started:
        yield started


WIRE_TESTS = ["test_handshake", "test_sha256", "test_meta", "test_ring", "test_lz4", "test_image_stream"]
WITH_THREADS = ["test_ring", "test_image_stream"]


@pytest.mark.parametrize(
    ("name", "sanitizer"),
    [*((name, ADDRESS) for name in WIRE_TESTS), *(pytest.param(name, THREAD, marks=pytest.mark.wide) for name in WITH_THREADS)],
)
def test_wire(runs: ConcurrentRuns, request: pytest.FixtureRequest, name: str, sanitizer: str) -> None:
    passes(runs.result(request))


def test_plain_sha256(runs: ConcurrentRuns, request: pytest.FixtureRequest) -> None:
    """As on processors without instructions for it."""
    passes(runs.result(request))


@pytest.mark.parametrize("sanitizer", [ADDRESS, THREAD])
def test_seal(runs: ConcurrentRuns, request: pytest.FixtureRequest, sanitizer: str) -> None:
    passes(runs.result(request))


@pytest.mark.parametrize("sanitizer", [ADDRESS, pytest.param(THREAD, marks=pytest.mark.wide)])
@pytest.mark.slow
def test_key_exchange(runs: ConcurrentRuns, request: pytest.FixtureRequest, sanitizer: str) -> None:
    passes(runs.result(request))


def without_library(name: str, said: str) -> tuple[str, ...]:
    return (f'-DCRYPTO_LIBRARIES="{name}"', f'-DMISSING="{said}"')


@pytest.mark.slow
@pytest.mark.parametrize("flags", [without_library("libnone.so.3", "libnone.so.3"), without_library("libm.so.6", "it has no EVP_CIPHER_CTX_new")])
def test_sealing_without_a_library(runs: ConcurrentRuns, request: pytest.FixtureRequest, flags: tuple[str, ...]) -> None:
    """An error that says what to do, each time: a library that is not there, and one that is something else."""
    passes(runs.result(request))


def test_the_programs_own_crypto_is_not_called(runs: ConcurrentRuns, request: pytest.FixtureRequest) -> None:
    """A program that exports functions of libcrypto's names, as one with a BoringSSL inside does."""
    passes(runs.result(request))


def test_calls_of_the_programs_own_crypto_are_noticed(runs: ConcurrentRuns, request: pytest.FixtureRequest) -> None:
    """What is loaded without RTLD_DEEPBIND (GV_BREAK_DEEPBIND) calls the program's."""
    done = runs.result(request)
    assert done.returncode == 1
    assert "the program's" in done.stderr


TRANSPORT = [
    ("test_links", ADDRESS),
    pytest.param("test_links", THREAD, marks=pytest.mark.wide),
    ("test_connect", ADDRESS),
    pytest.param("test_connect", THREAD, marks=pytest.mark.wide),
    ("test_malformed", ADDRESS),
    ("test_delay", ADDRESS),
    ("test_delay_links", ADDRESS),
    ("test_bulk", ADDRESS),
    pytest.param("test_bulk", THREAD, marks=pytest.mark.wide),
    ("test_resume", ADDRESS),
    pytest.param("test_resume", THREAD, marks=pytest.mark.wide),
    ("test_rails", ADDRESS),
    ("test_lent", ADDRESS),
    ("test_device_memory", ADDRESS),
    ("test_hostile_verbs", ADDRESS),
    pytest.param("test_rails", THREAD, marks=pytest.mark.wide),
    pytest.param("test_lent", THREAD, marks=pytest.mark.wide),
    pytest.param("test_device_memory", THREAD, marks=pytest.mark.wide),
    ("test_redial", ADDRESS),
    pytest.param("test_redial", THREAD, marks=pytest.mark.wide),
    ("test_sealed", ADDRESS),
    pytest.param("test_sealed", THREAD, marks=pytest.mark.wide),
    ("test_sealed_bulk", ADDRESS),
    pytest.param("test_sealed_bulk", THREAD, marks=pytest.mark.wide),
    ("test_silence", "plain"),
    ("test_death", ADDRESS),  # forks with threads about, which the thread sanitizer does not do
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "sanitizer"), TRANSPORT)
def test_transport(runs: ConcurrentRuns, request: pytest.FixtureRequest, name: str, sanitizer: str) -> None:
    done = runs.result(request)
    passes(done)
    if "skipped: " in done.stdout:
        pytest.skip(done.stdout)


@pytest.mark.wide
@pytest.mark.parametrize("sanitizer", [ADDRESS, THREAD])
def test_many_cuts(runs: ConcurrentRuns, request: pytest.FixtureRequest, sanitizer: str) -> None:
    """Three hundred of a verbs link, whose queues are made anew each time."""
    passes(runs.result(request))


@pytest.mark.wide
def test_silence_before_linux_6_15(build: Builder) -> None:
    """A kernel that does not know TCP_RTO_MAX_MS asks a closed window ever less often; a stop of 30 s is between two questions."""
    flags = (*SMALLER, "-DTCP_RTO_MAX_MS=9999", "-DSTOPPED_S=30")
    passes(run(build("test_silence_old", "plain", [*LINK, *HELPERS, HERE / "transport/test_silence.c"], flags)))


@pytest.mark.wide
@pytest.mark.parametrize(("name", "least"), [("test_delay", 14), ("test_delay_links", 5)])
def test_delay_threads(runs: ConcurrentRuns, request: pytest.FixtureRequest, name: str, least: int) -> None:
    count = len(delay_cases(name))
    assert count >= least
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
def test_memory_read_after_death_is_noticed(runs: ConcurrentRuns, request: pytest.FixtureRequest) -> None:
    """A call that returns while the sending thread still seals from its caller's memory (GV_BREAK_BORROWED) is what the case would find."""
    done = runs.result(request)
    assert done.returncode == -signal.SIGSEGV, done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "case"), [("SEAL", "altered"), ("BULK_COUNT", "altered"), ("BULK_NONCE", "no_nonce_twice")])
def test_payloads_sealed_wrongly_are_noticed(runs: ConcurrentRuns, request: pytest.FixtureRequest, fault: str, case: str) -> None:
    """A seal that believes whatever comes, bytes that count before their tag was right, a key without the epoch, so that nonces come again."""
    done = runs.result(request)
    assert done.returncode == 1 and "not true" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("case", ["records_cut", "cut_while_coming_back", "verbs_cut"])
def test_records_that_are_not_sent_again_are_noticed(runs: ConcurrentRuns, request: pytest.FixtureRequest, case: str) -> None:
    """A link that goes on after a cut without what was on its way (GV_BREAK_RESUME) is what the cases would find."""
    assert runs.result(request).returncode == 1


SEALING_FAULTS = [
    ("SEAL", "every_bit"),
    ("SEAL", "altered"),
    ("NONCE", "no_nonce_twice"),
    ("REPEATED", "a_frame_comes_again"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "case"), SEALING_FAULTS)
def test_a_fault_of_sealing_is_noticed(runs: ConcurrentRuns, request: pytest.FixtureRequest, fault: str, case: str) -> None:
    """Tags that are not looked at, a nonce that does not advance, records that are handed out again: the cases would find each."""
    assert runs.result(request).returncode == 1


@pytest.mark.wide
def test_rates_of_payloads(build: Builder) -> None:
    """The program that measures plain and sealed payloads, which compares them, too, ends with a figure for each way and number of channels."""
    done = run(build("bulk_rates", "plain", [*LINK, *HELPERS, HERE / "transport/bulk_rates.c"], SMALLER), "1")
    assert done.returncode == 0 and done.stdout.count("of what the cipher alone allows") == 4, done.stderr


# ---- C against Python --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def handshake_tool(build: Builder) -> Callable[[bytes], bytes]:
    program = build("handshake_tool", ADDRESS, [*WIRE, HERE / "wire/handshake_tool.c"])

    def ask(question: bytes) -> bytes:
        return subprocess.run([str(program)], input=question, capture_output=True, check=True, timeout=30).stdout

    return ask


def sized(raw: bytes) -> bytes:
    return struct.pack("<I", len(raw)) + raw


OFFERS = (hs.Offer("shm", 3), hs.Offer("tcp", 4))
GREETING = hs.Greeting(bytes(range(32)), control_port=7071, flags=1, boot_id="b" * 36, unix_path="/run/x", server_name="näme", key_exchange=b"k")
HELLO = hs.Hello(
    bytes(range(1, 33)), purpose=4, channel=2, session=2**63 + 7, token_id=bytes(range(16)), pid=3, gpus=2, memory=2**40, epoch=1, flags=1,
    compute=250, program="p", user="u", host="h", launch=bytes(range(16)), key_exchange=b"x" * 1184, transports=OFFERS,
    process=bytes(range(2, 18)), exec_id=bytes(range(3, 19)), lease=bytes(range(4, 20)),
)  # fmt: skip
STATE = hs.State(hs.STATE_PARKED, 2, 9, "soon")
WELCOME = hs.Welcome(6, 2**63 + 5, hs.Offer("shm", 3), 1, 16, bytes(range(32)), 60, "why", "tcp://[::1]:7070", b"y" * 32)


def test_messages_agree(handshake_tool: Callable[[bytes], bytes]) -> None:
    """The library reads each of Python's messages and writes the same bytes; also the empty ones."""
    messages = (
        (b"g", GREETING), (b"h", HELLO), (b"s", STATE), (b"w", WELCOME),
        (b"g", hs.Greeting(bytes(32))), (b"h", hs.Hello(bytes(32), gpus=0, purpose=0)), (b"s", hs.State(0)), (b"w", hs.Welcome()),
    )  # fmt: skip
    for letter, message in messages:
        assert handshake_tool(letter + sized(message.pack())) == sized(message.pack()), message
        assert type(message).unpack(message.pack()) == message


@pytest.mark.slow
def test_messages_are_refused_alike(handshake_tool: Callable[[bytes], bytes]) -> None:
    """Every bit of a hello flipped in turn, as of each message: either both read it, and the same, or neither does."""
    for letter, message in ((b"g", GREETING), (b"h", HELLO), (b"s", STATE), (b"w", WELCOME)):
        raw, question, found = message.pack(), b"", []
        for bit in range(0, len(raw) * 8, 3):
            altered = bytearray(raw)
            altered[bit // 8] ^= 1 << bit % 8
            question += letter + sized(bytes(altered))
            try:
                type(message).unpack(bytes(altered))
                found.append(True)
            except hs.HandshakeError:
                found.append(False)
        answer, at = handshake_tool(question), 0
        for bit, taken in enumerate(found):
            (size,) = struct.unpack_from("<I", answer, at)
            at += 4 + size
            assert bool(size) == taken, (letter, bit * 3)


def test_proofs_agree(handshake_tool: Callable[[bytes], bytes]) -> None:
    key = secrets.token_bytes(32)
    for state in (b"", STATE.pack()):
        transcript = hs.Transcript(GREETING.pack())
        hello = transcript.prove_hello(HELLO, key)
        transcript.add(state)
        welcome = transcript.prove_welcome(WELCOME, key)
        parts = [GREETING.pack(), HELLO.pack(), state, WELCOME.pack()]
        assert handshake_tool(b"p" + key + b"".join(map(sized, parts))) == hello + welcome + transcript.session_key(key)
        assert handshake_tool(b"v" + key + b"".join(map(sized, [GREETING.pack(), hello, state, welcome]))) == b"11"
        assert handshake_tool(b"v" + bytes(32) + b"".join(map(sized, [GREETING.pack(), hello, state, welcome]))) == b"00"


def test_keys_after_an_exchange_agree(handshake_tool: Callable[[bytes], bytes]) -> None:
    """Both of them, and each depends on the token, on what the exchange gave, and on every message."""
    seen = set()
    key, shared = secrets.token_bytes(32), secrets.token_bytes(32)
    offers = [dataclasses.replace(HELLO, key_exchange=bytes([n]) * 33) for n in (1, 2)]
    for k, s, hello, state in [(key, shared, offers[0], b""), (key, shared, offers[1], b""), (key, shared, offers[0], STATE.pack()),
                               (shared, shared, offers[0], b""), (key, key, offers[0], b"")]:  # fmt: skip
        transcript = hs.Transcript(GREETING.pack())
        raw_hello = transcript.prove_hello(hello, k)
        transcript.add(state)
        raw_welcome = transcript.prove_welcome(WELCOME, k)
        session, link = transcript.sealed_session_keys(k, s)
        assert handshake_tool(b"x" + k + s + b"".join(map(sized, [GREETING.pack(), raw_hello, state, raw_welcome]))) == session + link
        seen |= {session, link}
        assert transcript.session_key(k) not in seen
    assert len(seen) == 10


def test_layout_agrees(build: Builder) -> None:
    """The daemon makes the shared memory, the library maps it: one formula, written twice."""
    source = build("layout", ADDRESS, [*LINK, HERE / "transport/layout_tool.c"])
    done = run(source, *map(str, (shm.COMMAND_RING, shm.REPLY_RING, shm.BULK_RING, shm.BULK_RING)))
    assert int(done.stdout) == shm.memory_size(shm.COMMAND_RING, shm.REPLY_RING, shm.BULK_RING, shm.BULK_RING)
    end = shm.open_rings()
    assert os.fstat(end.descriptors[0]).st_size == int(done.stdout)
    end.close()


def test_tables_agree(build: Builder) -> None:
    """The transports in Python's table are those of the library, in the same order of preference, with the same needs."""
    rows = run(build("table", ADDRESS, [*LINK, HERE / "transport/table_tool.c"])).stdout.splitlines()
    ours = [f"{r.name} {r.needs} {r.connections} {int(r.resumes)} {int(r.seals)}" for r in table.TRANSPORTS]
    assert rows == ours
