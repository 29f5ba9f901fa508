"""What a daemon makes of a worker's messages."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gpuvirt import paths
from gpuvirt.errors import GpuvirtError
from gpuvirt.server.worker_library import RunEnding, WorkerLibrary
from gpuvirt.server.workers import template as template_module
from gpuvirt.server.workers.pool import WorkerPool
from gpuvirt.server.workers.template import Template
from gpuvirt.server.workers.worker_process import Given, WorkerProcess

SAYS = """
import argparse, socket, sys, time
from gpuvirt.server import messages
from gpuvirt.server.workers import fork_server
parser = argparse.ArgumentParser()
parser.add_argument("--fd", type=int)
parser.add_argument("--backend")
def work(daemon):
    {does}
    return 0
fork_server.serve(socket.socket(fileno=parser.parse_args().fd), work)
"""


def template(does: str) -> Template:
    """One whose workers do this."""
    return Template([sys.executable, "-P", "-c", SAYS.format(does=does)], "soft")


@pytest.mark.parametrize(
    ("message", "ending", "text"),
    [
        ({"op": "ended", "code": 0, "text": ""}, RunEnding.GOODBYE, "goodbye"),
        ({"op": "ended", "code": 1, "text": "end of file"}, RunEnding.CLIENT_LOST, "client lost: end of file"),
        ({"op": "ended", "code": 7, "text": "goodbye"}, None, "ended: goodbye"),
        ({"op": "ended", "code": [1], "text": "goodbye"}, None, "ended: goodbye"),
        ({"op": "failed", "text": "goodbye"}, None, "goodbye"),
    ],
)
def test_how_a_session_ended_is_told_by_the_code(message: dict[str, Any], ending: RunEnding | None, text: str) -> None:
    """Whatever the worker's text says: it may be a stranger's code that chose it."""

    async def run() -> WorkerProcess:
        forks = template(f"messages.send(daemon, {message})")
        worker = WorkerProcess(await forks.fork(), lambda _: None)
        async with asyncio.timeout(30):
            await worker.gone
        forks.close()
        return worker

    worker = asyncio.run(run())
    assert (worker.run_ending, worker.ending) == (ending, text)


def test_a_worker_gets_no_secrets_by_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = ["GPUVIRT_TOKEN", "AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "DB_PASSWORD", "OPENAI_API_KEY", "SSH_AUTH_SOCK", "REGISTRY_CREDENTIALS"]
    needed = ["GPUVIRT_SOFT_LOG", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "XDG_RUNTIME_DIR"]
    for name in (*secret, *needed):
        monkeypatch.setenv(name, "x")
    found = template_module._environment()
    assert not found.keys() & set(secret) and found.keys() >= set(needed)
    assert template_module._environment(client=True)["GPUVIRT_TOKEN"] == "x"


@pytest.mark.parametrize(("does", "ending"), [("sys.exit(3)", "exit code 1"), ("return 4", "exit code 4"), ("import os; os.abort()", "SIGABRT")])
def test_how_a_worker_ends_is_known(does: str, ending: str) -> None:
    """Though it is not the daemon's child; also when several end at once."""

    async def run() -> list[str]:
        forks = template(f"time.sleep(0.2); {does}")
        workers = [WorkerProcess(await forks.fork(), lambda _: None) for _ in range(5)]
        async with asyncio.timeout(30):
            for worker in workers:
                await worker.gone
        forks.close()
        return [worker.ending for worker in workers]

    endings = asyncio.run(run())
    assert len(endings) == 5 and all(found.endswith(ending) for found in endings), endings


def test_a_worker_may_be_over_before_anybody_looks() -> None:
    """Its start and its end are read at once."""

    async def run() -> list[str]:
        forks = template("return 4")
        starts = [asyncio.create_task(forks.fork()) for _ in range(3)]
        await asyncio.sleep(0)
        time.sleep(1)
        workers = [WorkerProcess(await start, lambda _: None) for start in starts]
        async with asyncio.timeout(30):
            for worker in workers:
                await worker.gone
        forks.close()
        return [worker.ending for worker in workers]

    assert asyncio.run(run()) == ["ended by itself with exit code 4"] * 3


def test_a_worker_has_nothing_of_its_siblings() -> None:
    """No descriptor but its own socket and the standard ones, the same signals as a fresh process, a session of its own."""

    async def run() -> list[str]:
        looks = "import os, signal; assert os.getsid(0) == os.getpid() != os.getppid(); "
        looks += "assert signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL and signal.set_wakeup_fd(-1) == -1; "
        looks += "had = [int(fd) for fd in os.listdir('/proc/self/fd')]; "  # one of them is for the listing
        looks += "assert {fd for fd in had if os.path.lexists(f'/proc/self/fd/{fd}')} == {0, 1, 2, daemon.fileno()}, had; "
        forks = template(f"{looks} messages.send(daemon, {{'op': 'ready'}}); daemon.recv(1)")
        workers = [WorkerProcess(await forks.fork(), lambda _: None) for _ in range(3)]
        async with asyncio.timeout(30):
            for worker in workers:
                await worker.ready
        for worker in workers:
            worker.kill()
            await worker.gone
        forks.close()
        return [worker.ending for worker in workers]

    assert asyncio.run(run()) == ["killed by SIGKILL"] * 3


def test_a_template_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_module, "FORK_LIMIT", 0.5)

    async def run() -> None:
        forks = template("pass")
        os.kill(forks._process.pid, signal.SIGSTOP)
        with pytest.raises(GpuvirtError, match="did not start within"):
            await forks.fork()
        async with asyncio.timeout(30):
            while not forks.ended:
                await asyncio.sleep(0.01)

    asyncio.run(run())


@pytest.mark.parametrize("already", [False, True])
def test_a_template_that_ends_says_why(already: bool) -> None:
    """Also when it has ended before it is asked: nothing can be sent to it then."""

    async def run() -> None:
        forks = Template([sys.executable, "-P", "-c", "import sys; sys.exit(9)"], "soft")
        if already:
            os.waitid(os.P_PID, forks._process.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(GpuvirtError, match="the process that forks them ended with exit code 9"):
            await forks.fork()
        assert forks.ended
        with pytest.raises(GpuvirtError):
            await forks.fork()

    asyncio.run(run())


def test_what_was_said_before_an_end_is_heard() -> None:
    """Also when it was asked something that it has not read: its socket is reset then."""
    says = """
import argparse, socket
from gpuvirt.server import messages
parser = argparse.ArgumentParser()
parser.add_argument("--fd", type=int)
daemon = socket.socket(fileno=parser.parse_known_args()[0].fd)
daemon.recv(1, socket.MSG_PEEK)
messages.send(daemon, {"op": "failed", "text": "there is no library"})
"""

    async def run() -> str:
        started = asyncio.create_task(Template([sys.executable, "-P", "-c", says], "soft").fork())
        await asyncio.sleep(0)
        time.sleep(1)  # it has ended before anything is read
        with pytest.raises(GpuvirtError, match="there is no library"):
            await started
        forks = template(
            "messages.send(daemon, {'op': 'ready'}); daemon.recv(1, socket.MSG_PEEK); messages.send(daemon, {'op': 'ended', 'code': 0, 'text': ''})"
        )
        worker = WorkerProcess(await forks.fork(), lambda _: None)
        async with asyncio.timeout(30):
            await worker.ready
            asked = asyncio.create_task(worker.figures())
            await asyncio.sleep(0)
            time.sleep(1)
            assert await asked == {}
            await worker.gone
        forks.close()
        return worker.ending

    assert asyncio.run(run()) == "goodbye"


def test_what_was_not_waited_for_is_ended() -> None:
    """A worker that comes when nobody wants it any more."""

    async def run() -> None:
        forks = template("time.sleep(100)")
        unwanted = asyncio.create_task(forks.fork())
        await asyncio.sleep(0)
        unwanted.cancel()
        other = await forks.fork()
        children = Path(f"/proc/{forks._process.pid}/task/{forks._process.pid}/children")
        async with asyncio.timeout(30):
            while children.read_text().split() != [str(other.pid)]:
                await asyncio.sleep(0.01)
        worker = WorkerProcess(other, lambda _: None)
        worker.kill()
        await worker.gone
        forks.close()

    asyncio.run(run())


def test_what_is_said_at_the_end_stays() -> None:
    """An answer that another thread of the worker had under way may come behind it."""

    async def run() -> dict[str, int]:
        ended, answer = "{'op': 'ended', 'code': 1, 'text': '', 'launches': 4}", "{'op': 'figures', 'id': asked['id'], 'launches': 3}"
        forks = template(f"asked, _ = messages.receive(daemon); messages.send(daemon, {ended}); messages.send(daemon, {answer})")
        worker = WorkerProcess(await forks.fork(), lambda _: None)
        await worker.figures()
        async with asyncio.timeout(30):
            await worker.gone
        forks.close()
        return worker.last_figures

    assert asyncio.run(run()) == {"launches": 4}


def test_descriptors_come_only_with_what_was_asked_for(tmp_path: Path) -> None:
    """And as many as the message says; what else a worker sends with them is closed, or where the kernel can see to it never sent."""

    async def run() -> list[Given]:
        script = f"""
import os
from gpuvirt.transport.packing import pack
fd = os.open({str(tmp_path)!r}, os.O_RDONLY)
try:
    socket.send_fds(daemon, [pack({{"op": "ready"}})], [fd])
except PermissionError:
    messages.send(daemon, {{"op": "ready"}})
for files in ([0], [0, 0], [7]):
    asked, _ = messages.receive(daemon)
    socket.send_fds(daemon, [pack({{"op": "given", "id": asked["id"], "what": b"it", "files": files}})], [fd])
daemon.recv(1)"""
        forks = template(script.strip().replace("\n", "\n    "))
        worker = WorkerProcess(await forks.fork(), lambda _: None)
        async with asyncio.timeout(30):
            await worker.ready
            got = [await worker.give_export(bytes(16)) for _ in range(3)]
        worker.kill()
        await worker.gone
        forks.close()
        return got

    def there() -> int:
        return sum(os.path.realpath(f"/proc/self/fd/{fd}") == str(tmp_path.resolve()) for fd in os.listdir("/proc/self/fd"))

    first, *others = asyncio.run(run())
    assert (first.what, first.files, len(first.fds)) == (b"it", (0,), 1) and others == [Given(), Given()]
    os.close(first.fds[0])
    deadline = time.monotonic() + 20
    while there():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("what", ["none", "another version's"])
def test_a_worker_library_that_does_not_fit(tmp_path: Path, what: str) -> None:
    path = tmp_path / "libgpuvirt_worker.so"
    if what == "none":
        path.write_text("this is no library")
    else:
        path.symlink_to(paths.library(paths.NVML))
    with pytest.raises(GpuvirtError, match=r"cannot be loaded.*build it anew: make setup"):
        WorkerLibrary(path)


def test_no_workers_are_forked_beside_threads() -> None:
    """What another thread holds at that moment, its fork would hold for ever."""

    async def run() -> None:
        script = SAYS.format(does="pass")
        threads = "import threading, time; threading.Thread(target=time.sleep, args=(100,), daemon=True).start()"
        forks = Template([sys.executable, "-P", "-c", threads + script], "soft")
        with pytest.raises(GpuvirtError):
            await forks.fork()

    asyncio.run(run())


def test_another_template_takes_over() -> None:
    """When one is killed while it is asked for a worker, and before that is noticed."""

    async def run() -> None:
        pool = WorkerPool("soft", [sys.executable, "-P", "-c", SAYS.format(does="messages.send(daemon, {'op': 'ready'}); daemon.recv(1)")])
        for _ in range(3):
            worker = await pool.take(30)
            assert pool._template is not None
            process = pool._template._process
            os.kill(process.pid, signal.SIGKILL)
            worker.kill()
        for _ in range(3):
            starting = asyncio.create_task(pool._start())
            await asyncio.sleep(0)
            os.kill(pool._template._process.pid, signal.SIGSTOP)
            await asyncio.sleep(0.1)
            os.kill(pool._template._process.pid, signal.SIGKILL)
            (await starting).kill()
        await pool.close()

    asyncio.run(run())


def test_a_session_outlasts_a_worker_that_was_to_wait_for_it(tmp_path: Path) -> None:
    """That began to start before the session came, and fails: one that begins now may well start."""

    async def run() -> None:
        does = (
            f"import os; here = {str(tmp_path)!r}; first = not os.listdir(here); open(f'{{here}}/{{os.getpid()}}', 'w'); time.sleep(first * 0.5); "
            "first and os._exit(3); messages.send(daemon, {'op': 'ready'}); daemon.recv(1)"
        )
        pool = WorkerPool("soft", [sys.executable, "-P", "-c", SAYS.format(does=does)])
        pool.prestart()
        async with asyncio.timeout(30):
            while not any(tmp_path.iterdir()):
                await asyncio.sleep(0.01)
        (await pool.take(30)).kill()
        await pool.close()

    asyncio.run(run())
