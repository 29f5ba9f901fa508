"""The agent of `gpuvirt attach`: a process that keeps a lease for as long as another process lives, and gives it back when that has ended.

It is in a session of its own and no child of the process that it watches, which becomes the user's shell. It watches by a pidfd, so that it notices
at once however that process ends; killed itself, it leaves a lease that the server ends when nobody has renewed it. A private local pool ends with
it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from gpuvirt.client.connect import Connected, at_lease, connect
from gpuvirt.client.named_lease import NamedLease, open_lease
from gpuvirt.client.settings import Settings
from gpuvirt.errors import GpuvirtError
from gpuvirt.transport.control import ControlError, RequestRefused
from gpuvirt.transport.pool import parse_pool

AGAIN = 1.0  # seconds between two attempts to give GPUs back
PATIENCE = 60.0  # seconds for them


@dataclass(frozen=True)
class Kept:
    """What an agent keeps: settings for programs under the lease, and the pool's URL; private: it is a private local pool."""

    settings: Settings
    private: bool
    devices: tuple[int, ...]


def start(settings: Settings, pid: int, program: str, told: Callable[[str], None]) -> Kept:
    """Starts an agent that keeps a lease for process `pid`; returns when that has its GPUs.

    Args:
        program: whose the lease is, for `gpuvirt ps`.
        told: called with a line for the user while it waits.

    Raises:
        GpuvirtError: the pool does not answer or does not grant the lease, or the process has ended.
    """
    asked = {
        "pool": settings.pool.url if settings.pool else None,
        "gpus": settings.gpus,
        "memory": settings.memory,
        "compute": settings.compute,
        "token": settings.token,
        "pid": pid,
        "program": program,
        "no_wait": settings.no_wait,
        "wait": settings.wait,
        "priority": settings.priority,
    }
    line = [sys.executable, "-P", "-m", "gpuvirt.client.agent"]
    process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
    assert process.stdin is not None and process.stdout is not None
    answer: dict[str, Any] = {}
    with contextlib.suppress(BrokenPipeError, ValueError), process.stdout:
        with process.stdin:
            process.stdin.write(json.dumps(asked).encode())
        for said in process.stdout:
            answer = json.loads(said)
            if "waiting" not in answer:
                break
            told(str(answer["waiting"]))
    process.wait()  # it has left the agent behind
    if not answer or "waiting" in answer:
        raise GpuvirtError("the agent that keeps the lease did not start; `gpuvirt doctor` checks the installation")
    if "error" in answer:
        raise GpuvirtError(str(answer["error"]))
    found = replace(settings, pool=parse_pool(answer["pool"]), token=answer["token"], lease=bytes.fromhex(answer["lease"]))
    return Kept(found, bool(answer["private"]), tuple(answer["devices"]))


def _begin(asked: dict[str, Any]) -> tuple[int, Connected, NamedLease]:
    """Connects and opens the lease: the watched process's pidfd, the pool and the lease."""
    pool = parse_pool(asked["pool"]) if asked["pool"] else None
    try:
        watched = os.pidfd_open(asked["pid"])
    except OSError as error:
        raise GpuvirtError(f"process {asked['pid']} cannot be watched: {error.strerror}") from None
    wanted = {name: asked[name] for name in ("gpus", "memory", "compute", "token", "no_wait", "wait", "priority")}
    found = connect(Settings(pool=pool, **wanted))
    poll = select.poll()
    poll.register(watched, select.POLLIN)
    poll.register(1, 0)  # whoever started it is gone

    def told(line: str) -> None:
        _say({"waiting": line})

    def pause(seconds: float) -> None:
        if poll.poll(seconds * 1000):
            raise GpuvirtError("nobody waits for the GPUs any more")

    try:
        return watched, found, open_lease(found.status, found.settings, program=asked["program"], told=told, pause=pause)
    except BaseException:
        if found.private is not None:
            found.private.close()
        raise


def _say(what: dict[str, Any]) -> None:
    """To whoever started this process."""
    os.write(1, json.dumps(what).encode() + b"\n")


def _keep(watched: int, lease: NamedLease, patient: bool) -> None:
    """Renews the lease until the watched process has ended, this one is told to end, or the lease has.

    patient: the server may come back.
    """
    ended, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(writing)
    for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(sig, lambda *_: None)
    poll = select.poll()
    poll.register(watched, select.POLLIN)
    poll.register(ended, select.POLLIN)
    while not poll.poll(lease.period * 1000):
        try:
            lease.renew()
        except RequestRefused:
            # It was given back, or the server has forgotten it. A private local pool stays: programs are to hear why they have no GPUs.
            poll.poll()
            return
        except ControlError:
            continue  # the server may come back; until then the lease lasts as long as the server says
    _give_back(lease, time.monotonic() + PATIENCE if patient else 0)


def _give_back(lease: NamedLease, until: float) -> None:
    """The GPUs go back, also when the server is away just now, or busy; not when it stays away until then: it ends the lease by itself."""
    while True:
        try:
            lease.release()
        except RequestRefused:
            return  # it has ended
        except ControlError:
            if time.monotonic() >= until:
                return
            time.sleep(AGAIN)
        else:
            return


def main() -> None:
    """Reads what to keep from stdin, says on stdout what it keeps or why not, and keeps it."""
    if os.fork():
        os._exit(0)  # the watched process is to have no child that it has not started
    asked = json.load(sys.stdin)
    found: Connected | None = None
    try:
        watched, found, lease = _begin(asked)
        found = at_lease(found, lease.status)
        answer: dict[str, Any] = {
            "pool": found.status.address.url,
            "token": found.settings.token,
            "private": found.private is not None,
            "lease": lease.id.hex(),
            "devices": lease.devices,
        }
    except (GpuvirtError, OSError) as error:
        answer = {"error": str(error)}
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    with contextlib.suppress(BrokenPipeError):
        _say(answer)
    os.dup2(null, 1)
    if found is None:
        return
    try:
        _keep(watched, lease, patient=found.private is None)
    finally:
        if found.private is not None:
            found.private.close()


if __name__ == "__main__":
    main()
