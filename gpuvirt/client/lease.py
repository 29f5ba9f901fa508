"""A lease as Python programs see it: what `gpuvirt.attach()` and ``with gpuvirt.remote() as lease`` give."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuvirt.client.connect import ask
from gpuvirt.errors import GpuvirtError
from gpuvirt.transport.control import ControlError, RequestRefused

if TYPE_CHECKING:
    from gpuvirt.client.devices import Device
    from gpuvirt.client.named_lease import NamedLease

EXIT_LIMIT = 1.0  # seconds that the end of the program waits for a server that does not answer


@dataclass(frozen=True)
class Stats:
    """What this process has used its GPUs for, since its first CUDA call.

    Attributes:
        calls: driver calls.
        waits, wait_s: how often, and for how many seconds together, a caller waited for the server.
        launches: kernels that the server has launched.
        memory_used: bytes in use on the GPUs; None where only the driver knows, and before the first CUDA call.
    """

    calls: int
    waits: int
    wait_s: float
    launches: int
    memory_used: int | None


class Lease:
    """GPUs of a server that this process has. Made by `gpuvirt.attach` and `gpuvirt.remote`, not by its constructor.

    Threads: any thread may call any method.
    """

    def __init__(self, named: NamedLease, driver: ctypes.CDLL, joined: bool) -> None:
        """joined: it is the lease of the shell around this process, which keeps it."""
        self._named, self._driver, self.joined = named, driver, joined
        self._over = threading.Event()
        self._news = threading.Event()  # it is over, or the program has left its blocks
        self._left = False
        self._owner = os.getpid()
        if not joined:
            threading.Thread(target=self._renew, name="gpuvirt-lease", daemon=True).start()

    def __repr__(self) -> str:
        state = "given back" if self.released else f"GPUs {', '.join(map(str, self._named.devices))}"
        return f"<gpuvirt.Lease of {self.pool}: {state}>"

    @property
    def pool(self) -> str:
        """The server's URL, ``tcp://HOST:PORT``."""
        return self._named.status.address.url

    @property
    def released(self) -> bool:
        """Whether the GPUs were given back."""
        return self._over.is_set()

    @property
    def devices(self) -> list[Device]:
        """The GPUs, in the order in which CUDA numbers them, as they are now at the server.

        Raises:
            GpuvirtError: they were given back, or the server does not answer.
        """
        from gpuvirt.client.devices import devices_of

        self._check()
        ordinals = self._named.present_devices()  # a session may have moved
        found = {device.ordinal: device for device in devices_of(ask(self._named.status, "devices", alone=True))}
        return [found[ordinal] for ordinal in ordinals]

    def stats(self) -> Stats:
        """What this process has used the GPUs for; asks the server.

        Raises:
            GpuvirtError: they were given back, or the server does not answer.
        """
        self._check()
        figures = (ctypes.c_uint64 * 3)()
        self._driver.gpuvirt_figures(figures)
        own = [s for s in self._named.show() if s["pid"] == os.getpid()] if self.begun else []
        launches = sum(s.get("launches", 0) for s in own)
        memory = [s["memory_used"] for s in own if s.get("memory_used") is not None]
        return Stats(int(figures[0]), int(figures[1]), figures[2] / 1e9, launches, sum(memory) if memory else None)

    @property
    def begun(self) -> bool:
        """Whether this process has begun to use CUDA."""
        return bool(self._driver.gpuvirt_block(-1))

    def release(self) -> None:
        """Gives the GPUs back, with all that this process has on them; after that it has no GPUs. A second call does nothing.

        Where CUDA has begun in this process, it cannot be used again until the process ends: frees, destroys and queries may still be called, other
        calls fail. Before that, `gpuvirt.remote` and `gpuvirt.attach` take GPUs anew.

        Raises:
            GpuvirtError: the GPUs belong to the shell around this process (`gpuvirt detach` gives those back).
        """
        if self.joined:
            raise GpuvirtError("these GPUs belong to the attached shell around this program; `gpuvirt detach` gives them back")
        self._driver.gpuvirt_block(0)
        if self._over.is_set():
            return
        self._end()
        try:
            self._named.release()
        except RequestRefused:
            pass  # it has ended meanwhile
        except ControlError as error:
            raise GpuvirtError(f"{error}; the server takes the GPUs back when it has not heard of them for {self._named.expiry:.0f} s") from None

    def at_exit(self) -> None:
        """The process ends: what it still has on the GPUs ends with its CUDA library, and the lease with that."""
        if self.joined or self._over.is_set() or os.getpid() != self._owner:
            return
        self._end()
        with contextlib.suppress(ControlError):  # then it ends because nobody renews it any more
            self._named.let_go(EXIT_LIMIT)

    def _check(self) -> None:
        if self.released:
            raise GpuvirtError("these GPUs were given back; gpuvirt.remote() or gpuvirt.attach() takes others")

    def park(self) -> None:
        """The program is outside of its blocks: the server is told, soon, that it may give the GPUs' memory to others. Returns at once."""
        self._left = True
        self._news.set()

    def _end(self) -> None:
        self._over.set()
        self._news.set()

    def _renew(self) -> None:
        while True:
            self._news.wait(self._named.period)
            self._news.clear()
            if self._over.is_set():
                return
            left, self._left = self._left, False
            try:
                if left:
                    self._named.park()
                else:
                    self._named.renew()
            except RequestRefused:
                return  # CUDA calls tell why
            except ControlError:
                continue
