"""Tenants that keep too much on the server's disk: their sessions end, their clients hear why, their folder is emptied, and nobody else notices."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from server.harness import FakeServer, start_fake, wait_until
from server.held_session import Held

from gpuvirt.server.limits import tenant_disk
from gpuvirt.server.tenants import PARTS, Tenant, Tenants
from gpuvirt.server.workers.template import WORKER_COMMAND

MIB = 1 << 20


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    tenants = Tenants(tmp_path / "cache")
    tenant = tenants.of(b"whose")
    yield tmp_path / "cache" / "tenants" / tenant.name, tenant.folder
    tenants.close()


def holds(fd: int) -> int:
    """Bytes, by asking."""
    least, most = 0, 1 << 40
    while least < most:
        middle = (least + most) // 2
        if tenant_disk.holds_more(fd, middle):
            least = middle + 1
        else:
            most = middle
    return least


def test_what_a_folder_holds(folder: tuple[Path, int]) -> None:
    path, fd = folder
    began = holds(fd)
    assert began <= 3 * 8192, "its parts alone"
    (path / "kernels" / "00").mkdir()
    (path / "kernels" / "00" / "entry").write_bytes(os.urandom(3 * MIB))
    (path / "strange").write_bytes(os.urandom(MIB))
    assert 4 * MIB <= holds(fd) - began <= 4 * MIB + 4 * 8192
    for i in range(1000):
        (path / "images" / str(i)).touch()
    assert holds(fd) - began >= 4 * MIB + 1000 * tenant_disk.ENTRY, "names are scarce as well"
    (path / "sparse").touch()
    os.truncate(path / "sparse", 1 << 40)
    assert holds(fd) - began < 16 * MIB, "what takes no disk"
    asyncio.run(tenant_disk.empty(fd))
    assert holds(fd) <= began + 16 * 8192  # a folder that had many names stays large on some file systems
    assert sorted(os.listdir(path)) == sorted(PARTS) and not any(os.listdir(path / part) for part in PARTS)


def test_folders_too_deep_are_too_much_and_go(folder: tuple[Path, int]) -> None:
    path, fd = folder
    inner = os.open(path / "kernels", os.O_RDONLY)
    for _ in range(3000):  # deeper than paths are long
        os.mkdir("d", dir_fd=inner)
        inner, outer = os.open("d", os.O_RDONLY, dir_fd=inner), inner
        os.close(outer)
    os.close(inner)
    assert tenant_disk.holds_more(fd, 1 << 60)
    asyncio.run(tenant_disk.empty(fd))
    assert not tenant_disk.holds_more(fd, MIB) and not os.listdir(path / "kernels")


def test_a_folder_that_may_not_be_read_is_too_much_and_goes(folder: tuple[Path, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker can make folders of which it is only written what it likes; root's tests read them all the same."""
    path, fd = folder
    (path / "kernels" / "hidden").mkdir(mode=0o300)
    (path / "kernels" / "hidden" / "entry").touch()
    opened = tenant_disk._opened

    def as_no_root(folder: int, name: str = ".") -> int:
        if name == "hidden":
            raise PermissionError
        return opened(folder, name)

    assert not tenant_disk.holds_more(fd, MIB) or os.getuid()
    monkeypatch.setattr(tenant_disk, "_opened", as_no_root)
    assert tenant_disk.holds_more(fd, MIB)
    asyncio.run(tenant_disk.empty(fd))
    assert not tenant_disk.holds_more(fd, MIB) and not os.listdir(path / "kernels")


def test_when_a_folder_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not before the disk has less space than at the last count, or a while has passed; nor while it rests from a count that took long."""
    clock, free, takes = 1000.0, 1 << 40, 0.0
    counts: list[float] = []

    def count(folder: int, most: int) -> bool:
        nonlocal clock
        counts.append(clock)
        clock += takes
        return False

    monkeypatch.setattr(tenant_disk, "time", SimpleNamespace(monotonic=lambda: clock))
    monkeypatch.setattr(tenant_disk, "_free", lambda folder: free)
    monkeypatch.setattr(tenant_disk, "holds_more", count)
    tenant = Tenant("whose", bytes(32), folder=0)

    async def story() -> None:
        nonlocal clock, free, takes
        watch = tenant_disk.Watch(1 << 30, list)

        async def counted(after: float, less: int = 0) -> bool:
            nonlocal clock, free
            clock, free = clock + after, free - less
            before = len(counts)
            await watch._look(tenant)
            return len(counts) > before

        assert await counted(0) and not await counted(1), "nothing has been written"
        assert not await counted(1, tenant_disk.FELL - 1) and await counted(1, 1)
        assert not await counted(tenant_disk.COUNT_ANYWAY - 1) and await counted(1)
        takes = 0.1
        assert await counted(1, 1 << 30)
        assert not await counted(0.1 * tenant_disk.REST - 0.01, 1 << 30) and await counted(0.02)
        takes = 100.0
        assert await counted(10, 1 << 30)
        assert not await counted(tenant_disk.REST_MOST - 0.01, 1 << 30) and await counted(0.02), "a folder that is hard to count"
        watch.close()

    asyncio.run(story())


def test_no_folder_holds_nothing(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    fd = os.open(tmp_path / "gone", os.O_PATH)
    (tmp_path / "gone").rmdir()
    assert not tenant_disk.holds_more(fd, 0)
    asyncio.run(tenant_disk.empty(fd))
    os.close(fd)


@pytest.fixture
def served(hostile: Path, tmp_path: Path) -> Iterator[FakeServer]:
    command = ["env", f"GPUVIRT_LIB_DIR={hostile}", *WORKER_COMMAND]
    server = start_fake(tmp_path / "server", worker=command, disk_per_token=32 * MIB)
    yield server
    server.stop()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["bytes", "depth"])
def test_a_tenant_that_fills_the_disk_is_ended(served: FakeServer, tmp_path: Path, how: str) -> None:
    taker, beside = Held(served), Held(served)  # of one token
    (root,) = tmp_path.glob("server/**/tenants")
    (own,) = (entry for entry in root.iterdir() if entry.is_dir())
    if how == "bytes":
        for i in range(5):
            assert taker.tries("fill", f"8 kernels/{i}") in (0, None)
    else:
        deep = "kernels"
        for _ in range(20):
            deep += "/d"
            assert taker.tries("folder", deep) in (0, None)
    wait_until(lambda: not served.ask("ps")["sessions"])
    for session in (taker, beside):
        assert session.is_over()
        told = session.resumes()
        assert "more than 32.0 MiB on the server's disk (serve --disk-per-token)" in told.text, told.text
    wait_until(lambda: not os.listdir(own / "kernels"))
    again = Held(served)
    assert again.tries("fill", "8 kernels/entry") == 0
    with pytest.raises(TimeoutError):
        again.sock.settimeout(3 * tenant_disk.LOOK)
        again.is_over()
