"""The client's session against a fake worker over the real transports: attaching, waiting, data, losing the server, fork and exit."""

from __future__ import annotations

import base64
import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import c_build
import pytest
from concurrent_runs import ENVIRONMENT, ConcurrentRuns

HERE = Path(__file__).parent
ROOT = HERE.parent.parent.parent
NATIVE = ROOT / "native"
# The session leaves the link's threads and memory to the end of the process: other threads of the program may be in them.
# A thread that sends from the program's memory may still be on its way out of sendmsg when the peer has it all and the memory goes: the address
# sanitizer's wrapper would look at it once more then.
OPTIONS = {
    "TSAN_OPTIONS": "exitcode=66 report_thread_leaks=0 atexit_sleep_ms=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "ASAN_OPTIONS": "intercept_send=0",
}
FAILING_ATTACHES = [
    "attach_refused", "attach_foreign_window", "attach_no_devices", "attach_impossible_device", "attach_garbage", "attach_worker_dies",
]  # fmt: skip
WORKING_ATTACHES = ["attach", "attach_reply_addresses"]
WORK = [
    "calls", "copies_out", "copies_out_unattended", "copies_in", "lent", "worker_named_payloads", "thirty_two_threads", "host_functions",
    "behind_a_host_function", "late_functions", "failures", "prints", "notices", "prints_into_nothing", "floods", "many_posts", "random_events",
]  # fmt: skip
LOSSES = [
    "lost_in_a_call", "lost_in_many_waits", "lost_on_a_full_ring", "lost_in_a_payload_out", "lost_in_a_payload_in", "lost_while_idle",
    "lost_before_a_call", "lost_for_a_host_function", "lost_for_a_parcel", "nonsense_malformed", "nonsense_unknown", "nonsense_stray_reply",
    "nonsense_stray_data", "nonsense_stray_payload", "nonsense_one_payload_for_two", "nonsense_payload_of_a_copy", "nonsense_stray_inline",
    "nonsense_wrong_inline",
]  # fmt: skip
TOO_EARLY = [
    "early_success_small", "early_success_late", "early_success_half", "early_success_during", "early_success_unattended",
    "early_success_before_posted", "early_success_of_a_later_command", "early_success_in_a_host_function",
]  # fmt: skip
FAILED_EARLY = ["early_failure_small", "early_failure_late", "early_failure_half", "early_failure_during"]
# A copy's bytes come late, and another stream is waited for; the fault is caught by those that the copy comes before.
COVERED = [
    "order_event", "order_event_small", "order_chain", "order_earlier_copy", "order_legacy", "order_blocking", "order_across_legacy",
    "order_host_function", "order_before_posted",
]  # fmt: skip
ORDER = [
    *COVERED, "order_during_small_copy", "order_failed", "order_source_removed", "order_flood_held", "order_as_said",
    "order_none", "order_none_by_a_mark",
    "order_none_across_contexts", "order_none_before", "order_none_yet", "order_fork",
]  # fmt: skip
PROCESSES = [
    "fork_before", "fork_after", "fork_orphan", "exit", "exit_late", "exit_busy", "exit_in_host_function", "exit_hung", "exit_abrupt",
]  # fmt: skip
Programs = Callable[..., Path]
TOKEN_PARTS = b"0123456789abcdef" b"the secret of the fake worker..." b"a public key that nobody uses..."  # as in fake_worker.c
TOKEN = "gpuvirt1." + base64.urlsafe_b64encode(TOKEN_PARTS).decode().rstrip("=")

SANITIZED = [pytest.param("address", marks=pytest.mark.slow), pytest.param("thread", marks=pytest.mark.wide)]
sanitizers = pytest.mark.parametrize("build", ["plain", *SANITIZED])
links = pytest.mark.parametrize("link", ["tcp", "shm"])


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    """The test program, built for the sanitizer that is asked for."""
    folder = tmp_path_factory.mktemp("session")

    def build_for(build: str, *link: str) -> Path:
        generated = c_build.generated()
        below = [HERE, NATIVE / "shim" / "session", NATIVE / "transport", NATIVE / "wire"]
        sources = [file for folder in below for file in sorted(folder.rglob("*.c"))]
        sources.append(generated / "gv_commands.c")
        includes = [generated, NATIVE, NATIVE / "wire", NATIVE / "transport", NATIVE / "shim", HERE]
        counted = c_build.calls("COMPLETIONS_STEP()", "void", "count_completion_step")
        flags = ["-DSESSION_BEHIND_LATE=(3ull<<20)", counted, *(f"-I{i}" for i in includes)]
        return c_build.program(folder / (build + "".join(link)), sources, variant=build, flags=flags, libraries=("-Wl,--wrap=gv_recv_wait", *link))

    return build_for


def run(path: Path, scenario: str, link: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in ENVIRONMENT.items() if not name.startswith("GPUVIRT_") and name != "LD_PRELOAD"}
    done = subprocess.run([str(path), scenario, link], capture_output=True, text=True, timeout=280, env={**clean, **OPTIONS, **(environment or {})})
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def said(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stderr.splitlines() if line.startswith("gpuvirt: ")]


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, programs: Programs) -> Iterator[ConcurrentRuns]:
    """The scenarios of the tests that want nothing else."""
    def scenario(p: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        return run(programs(p["build"]), p["scenario"], p["link"])

    tests = ("test_works", "test_attach_fails", "test_loss", "test_completion_before_the_data")
    with ConcurrentRuns(request, dict.fromkeys(tests, scenario)) as started:
        yield started


@pytest.mark.slow
def test_every_scenario_is_run(programs: Programs) -> None:
    listed = subprocess.run([str(programs("plain")), "list"], capture_output=True, text=True, check=False).stdout.split()
    early = [*TOO_EARLY, *FAILED_EARLY, *ORDER]
    assert sorted(listed) == sorted([*WORKING_ATTACHES, *FAILING_ATTACHES, "attach_fails", *WORK, *early, *LOSSES, *PROCESSES])


@sanitizers
@links
@pytest.mark.parametrize("scenario", [*WORKING_ATTACHES, *WORK, *FAILED_EARLY, *ORDER, *PROCESSES])
def test_works(runs: ConcurrentRuns, request: pytest.FixtureRequest, build: str, link: str, scenario: str) -> None:
    done = runs.result(request)
    if scenario == "prints":
        assert done.stdout == "".join(f"line {i}\n" for i in range(50)) + "after\n"
    elif scenario == "notices":
        assert said(done) == ["gpuvirt: the first", r"gpuvirt: \x1b[2J\n"] and not done.stdout
    elif scenario == "failures":
        lines = said(done)
        assert len(lines) == 2 and "launch (command 2) failed" in lines[0] and "illegal address 0x10" in lines[1] and "context is lost" in lines[1]
    else:
        assert not done.stdout and (not said(done) or scenario == "prints_into_nothing")


@sanitizers
@links
@pytest.mark.parametrize("scenario", FAILING_ATTACHES)
def test_attach_fails(runs: ConcurrentRuns, request: pytest.FixtureRequest, build: str, link: str, scenario: str) -> None:
    lines = said(runs.result(request))
    assert len(lines) == 1 and "tcp://127.0.0.1:" in lines[0]


@sanitizers
@links
@pytest.mark.parametrize("scenario", LOSSES)
def test_loss(runs: ConcurrentRuns, request: pytest.FixtureRequest, build: str, link: str, scenario: str) -> None:
    lines = said(runs.result(request))
    assert len(lines) == 1 and lines[0].startswith("gpuvirt: lost the GPU server tcp://127.0.0.1:") and " during " in lines[0]


@sanitizers
@links
@pytest.mark.parametrize("scenario", TOO_EARLY)
def test_completion_before_the_data(runs: ConcurrentRuns, request: pytest.FixtureRequest, build: str, link: str, scenario: str) -> None:
    """A copy to the host that is reported as complete without its bytes: the session ends, and nothing is written afterwards."""
    lines = said(runs.result(request))
    assert len(lines) == 1 and "a copy to the host as complete before all of its bytes had arrived" in lines[0]


@links
@pytest.mark.parametrize("scenario", COVERED)
def test_streams_without_order_are_noticed(programs: Programs, link: str, scenario: str) -> None:
    """The deliberate fault: no completion is held back for the copies of another stream.

    On a busy machine a wait may end so late that it looks right, so it has several tries.
    """
    program = programs("plain", "-Wl,--wrap=order_open")

    def fails() -> bool:
        try:
            run(program, scenario, link)
        except AssertionError as error:
            if "FAILED" not in str(error):
                raise
            return True
        return False

    assert any(fails() for _ in range(10))


@links
def test_small_copies_end_when_their_bytes_are_there(programs: Programs, link: str) -> None:
    """A host function of another stream asks for the copy while its bytes are being copied, which takes 0.3 s here."""
    run(programs("plain", "-Wl,--wrap=memcpy"), "order_during_small_copy", link)


# ---- settings -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        ({"GPUVIRT_POOL": ""}, "gpuvirt run"),
        ({"GPUVIRT_POOL": "tcp://127.0.0.1:1"}, "tcp://127.0.0.1:1"),
        ({"GPUVIRT_POOL": "http://127.0.0.1:7070"}, "http://127.0.0.1:7070"),
        ({"GPUVIRT_TOKEN": "gpuvirt1.AAAA"}, "GPUVIRT_TOKEN is not a token"),
        ({"GPUVIRT_TOKEN": "gpuvirt1." + "A" * 107}, "the token was not accepted"),
        ({"GPUVIRT_TOKEN": ""}, "GPUVIRT_TOKEN is not set"),
        ({"GPUVIRT_GPUS": "two"}, "GPUVIRT_GPUS=two"),
        ({"GPUVIRT_GPUS": "0"}, "GPUVIRT_GPUS=0"),
        ({"GPUVIRT_MEMORY": "much"}, "GPUVIRT_MEMORY=much"),
        ({"GPUVIRT_PRIORITY": "101"}, "GPUVIRT_PRIORITY=101"),
        ({"GPUVIRT_WAIT": "soon"}, "GPUVIRT_WAIT=soon"),
        ({"GPUVIRT_NO_WAIT": "maybe"}, "GPUVIRT_NO_WAIT=maybe"),
        ({"GPUVIRT_QUIET": "maybe"}, "GPUVIRT_QUIET=maybe"),
        ({"GPUVIRT_LINK": "pigeon"}, "pigeon"),
    ],
)
def test_bad_settings(programs: Programs, environment: dict[str, str], text: str) -> None:
    lines = said(run(programs("plain"), "attach_fails", "tcp", environment))
    assert len(lines) == 1 and text in lines[0]


@pytest.mark.parametrize("environment", [{"GPUVIRT_MEMORY": "1.5GiB"}, {"GPUVIRT_MEMORY": "512m", "GPUVIRT_GPUS": "2"}])
def test_good_settings(programs: Programs, environment: dict[str, str]) -> None:
    run(programs("plain"), "attach", "auto", environment)


def test_first_server_that_answers(programs: Programs) -> None:
    run(programs("plain"), "attach", "tcp", {"SESSION_TEST_POOL": "tcp://127.0.0.1:1,%s"})


def test_address_space_limit(programs: Programs) -> None:
    command = f"ulimit -v {200 << 20}; exec {programs('plain')} attach tcp"
    limited = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=280, check=False)
    assert limited.returncode == 0, limited.stderr


def test_token_file(programs: Programs, tmp_path: Path) -> None:
    """The token that a server of the same user left is found, and trusted only when nobody else can have written or read it."""
    path = programs("plain")
    file = tmp_path / "gpuvirt" / "token"
    file.parent.mkdir()
    file.write_text(TOKEN + "\n")
    file.chmod(0o600)
    environment = {"GPUVIRT_TOKEN": "", "XDG_RUNTIME_DIR": str(tmp_path), "SESSION_TEST_TOKEN_FILE": str(file)}
    run(path, "attach", "tcp", environment)
    file.chmod(0o640)
    assert "nobody else may read" in said(run(path, "attach_fails", "tcp", environment))[0]
    file.chmod(0o600)
    file.write_text("gpuvirt1.nonsense")
    assert "holds no token" in said(run(path, "attach_fails", "tcp", environment))[0]


# ---- figures ------------------------------------------------------------------------------------------------------------


@links
def test_stats(programs: Programs, link: str, tmp_path: Path) -> None:
    run(programs("plain"), "fork_after", link, {"GPUVIRT_STATS": str(tmp_path / "stats.json")})
    figures = json.loads((tmp_path / "stats.json").read_text())
    counts = ["calls", "waits", "wait_s", "launches", "bytes_out", "bytes_in", "bytes_lent", "bytes_in_place"]
    assert list(figures) == [*counts, "transport", "link_reason", "backend", "server"]
    assert figures["bytes_lent"] == figures["bytes_in_place"] == 0
    assert figures["transport"] == link and figures["backend"] == "fake" and figures["launches"] == 0 and figures["server"].startswith("tcp://127.0.0.1:")
    assert figures["waits"] > 20 and 0 < figures["wait_s"] < 300 and figures["bytes_out"] > 1000 and figures["bytes_in"] > 1000
    assert [p.name for p in tmp_path.iterdir()] == ["stats.json"]  # the forked children wrote nothing


def test_stats_elsewhere(programs: Programs, tmp_path: Path) -> None:
    path = programs("plain")
    lines = said(run(path, "exit", "tcp", {"GPUVIRT_STATS": "-"}))
    assert len(lines) == 1 and json.loads(lines[0].removeprefix("gpuvirt: "))["launches"] == 1
    run(path, "exit", "tcp", {"GPUVIRT_STATS": str(tmp_path / "%p.json")})
    (file,) = tmp_path.iterdir()
    assert file.stem.isdigit() and json.loads(file.read_text())["launches"] == 1
    file.unlink()
    run(path, "lost_in_a_call", "tcp", {"GPUVIRT_STATS": str(tmp_path / "s")})
    assert json.loads((tmp_path / "s").read_text())["launches"] is None
    assert "could not be written" in said(run(path, "exit", "tcp", {"GPUVIRT_STATS": "/nowhere/at/all"}))[0]


def test_a_hung_server_does_not_hold_the_exit(programs: Programs) -> None:
    started = time.monotonic()
    run(programs("plain"), "exit_hung", "shm")
    assert time.monotonic() - started < 60
