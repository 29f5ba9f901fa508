"""The process that compiles for another: several at a time, what it does about crashes and its own death, its box, its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import lz4.block
import pytest
from e2e.harness import children, wait_until
from server.harness import has_ended

from gpuvirt.soft.host import compile_helper, jit
from gpuvirt.soft.host.compile_helper import CompileHelper

TEXT = "define void @f() { ret void }"
IR = lz4.block.compress(TEXT.encode())
NO_IR = b"no lz4"


@pytest.fixture
def helper() -> Iterator[CompileHelper]:
    own = CompileHelper(priority=0)
    yield own
    own.close()


def started_with(idle: float, linger: float) -> Callable[[int], subprocess.Popen[bytes]]:
    """In the place of compile_helper._start: other times."""
    code = f"from gpuvirt.soft.host import compile_helper as c; c.IDLE, c.LINGER = {idle}, {linger}; c.serve(0)"
    return lambda priority: subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def process_of(helper: CompileHelper) -> subprocess.Popen[bytes]:
    assert helper._running is not None and isinstance(helper._running.process, subprocess.Popen)
    return helper._running.process


def test_the_object_is_that_which_this_process_would_make(helper: CompileHelper) -> None:
    for level in (jit.QUICK, jit.GOOD):
        assert helper.compile(IR, level) == jit.compile_object(TEXT, level)
    assert helper.compile(NO_IR, jit.GOOD) is None and helper.compile(lz4.block.compress(b"define"), jit.GOOD) is None


def test_several_at_a_time(helper: CompileHelper, monkeypatch: pytest.MonkeyPatch) -> None:
    """None waits for another: one process each, of which all are stopped until the last is asked."""
    monkeypatch.setattr(compile_helper, "_start", started_with(600, 600))
    asked, made = 3, []
    assert helper.compile(NO_IR, jit.GOOD) is None
    pid = process_of(helper).pid
    (first,) = children(pid)
    stopped: list[int] = []
    threads = [threading.Thread(target=lambda: made.append(helper.compile(IR, jit.GOOD)), daemon=True) for _ in range(asked)]
    os.kill(first, signal.SIGSTOP)
    for count, thread in enumerate(threads, 1):
        thread.start()
        if count > 1:
            assert wait_until(lambda: len(children(pid)) + len(made) > len(stopped) + 1), "it waits for those that are stopped"
        for child in set(children(pid)) - {first, *stopped}:
            os.kill(child, signal.SIGSTOP)
            stopped.append(child)
    for child in (first, *stopped):
        os.kill(child, signal.SIGCONT)
    for thread in threads:
        thread.join(100)
    assert made == [jit.compile_object(TEXT, jit.GOOD)] * asked


def test_what_compiled_ends_before_the_helper(helper: CompileHelper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_helper, "_start", started_with(600, 0.01))
    assert helper.compile(IR, jit.GOOD) is not None
    first = process_of(helper)
    for _ in range(3):
        assert wait_until(lambda: not children(first.pid)), "it stays"
        assert helper.compile(IR, jit.GOOD) is not None
    assert first.poll() is None and process_of(helper) is first


def test_a_helper_that_dies_is_replaced_and_given_up_in_the_end(helper: CompileHelper, monkeypatch: pytest.MonkeyPatch) -> None:
    assert helper.compile(NO_IR, jit.GOOD) is None  # an error in the helper is no death
    first = process_of(helper)
    assert first.poll() is None
    first.kill()
    first.wait()
    assert helper.compile(IR, jit.GOOD) is not None and process_of(helper) is not first
    monkeypatch.setattr(compile_helper, "_start", lambda priority: subprocess.Popen(["/bin/false"], stdin=subprocess.PIPE, stdout=subprocess.PIPE))
    process_of(helper).kill()
    process_of(helper).wait()
    assert helper.compile(IR, jit.GOOD) is None and helper._failures == compile_helper.ATTEMPTS


def test_who_waits_for_a_helper_that_dies_asks_the_next(helper: CompileHelper) -> None:
    assert helper.compile(NO_IR, jit.GOOD) is None
    first = process_of(helper)
    first.send_signal(signal.SIGSTOP)
    made: list[bytes | None] = []
    thread = threading.Thread(target=lambda: made.append(helper.compile(IR, jit.GOOD)), daemon=True)
    thread.start()
    assert wait_until(lambda: helper._running is not None and bool(helper._running._asked))
    first.kill()
    thread.join(100)
    assert made == [jit.compile_object(TEXT, jit.GOOD)]


@pytest.mark.parametrize("answer", ["7, True, 0", "1, True, 2**62"])
def test_a_helper_that_answers_nonsense_is_given_up(helper: CompileHelper, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    """What nobody asked, or more than there can be: whoever waits is told at once."""
    code = f"import os, struct; os.read(0, 9999); os.write(1, struct.pack('<Q?Q', {answer})); os.read(0, 9999)"
    started = lambda priority: subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: E731 (one line)
    monkeypatch.setattr(compile_helper, "_start", started)
    assert helper.compile(IR, jit.GOOD) is None and helper._failures == compile_helper.ATTEMPTS


def test_a_helper_with_nothing_to_do_ends_and_the_next_begins(helper: CompileHelper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_helper, "_start", started_with(0.01, 0.01))
    assert helper.compile(IR, jit.GOOD) is not None
    first = process_of(helper)
    assert first.wait(100) == 0
    assert helper.compile(IR, jit.GOOD) is not None and process_of(helper) is not first and helper._failures == 0


PARENT = """
import sys, time
from gpuvirt.soft.host.compile_helper import CompileHelper
helper = CompileHelper(priority=3)
assert helper.compile(b"no lz4", 2) is None
print(helper._running.process.pid, flush=True)
if sys.argv[1] == "wait": time.sleep(600)
"""


@pytest.mark.parametrize("end", ["leaves", "killed"])
def test_it_ends_with_its_parent(end: str) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, "wait" if end == "killed" else ""], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    helper = int(parent.stdout.readline())
    family = [helper]
    if end == "killed":
        assert os.getpriority(os.PRIO_PROCESS, helper) == os.getpriority(os.PRIO_PROCESS, parent.pid) + 3
        family += [*children(helper)]
        parent.kill()
    assert parent.wait(100) == (-9 if end == "killed" else 0)
    assert wait_until(lambda: all(has_ended(pid) for pid in family))
    parent.stdout.close()


FORKED = """
import os, sys, time
import lz4.block
from gpuvirt.server.box import box
from gpuvirt.soft.host import jit
from gpuvirt.soft.host.compile_helper import CompileHelper
made = jit.compile_object
def compile_object(text, level):
    if "crash" in text:
        os.abort()  # as LLVM does with what it does not expect
    return made(text, level)
jit.compile_object = compile_object
def confine_more():
    box.no_more_processes()
    try:
        os.fork()
        os._exit(3)
    except PermissionError:
        pass
helper = CompileHelper(priority=0)
helper.fork(box.helper(0, 8 << 30).close, confine_more)
text = "define void @f() { ret void }"
ir = lz4.block.compress(text.encode())
print(helper._forked.pid, helper.compile(ir, jit.GOOD) == made(text, jit.GOOD), helper.compile(b"no lz4", jit.GOOD), flush=True)
print(helper.compile(lz4.block.compress(b"; crash"), jit.GOOD), helper.compile(ir, jit.GOOD) is not None, helper._failures, flush=True)
time.sleep(600)
"""


def test_a_forked_helper_compiles_in_a_box_of_its_own() -> None:
    """It outlives what crashes a compilation, makes no processes where it is given strangers' code, and ends with its parent."""
    parent = subprocess.Popen([sys.executable, "-c", FORKED], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    helper, *said = parent.stdout.readline().split()
    assert said == ["True", "None"]
    status = Path(f"/proc/{helper}/status").read_text()
    assert "NoNewPrivs:\t1" in status and "Seccomp:\t2" in status and "CapEff:\t0000000000000000" in status
    assert parent.stdout.readline() == "None True 0\n"
    parent.kill()
    parent.communicate()
    assert wait_until(lambda: has_ended(int(helper)))
