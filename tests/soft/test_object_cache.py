"""The compiled kernels on disk: several writers at once, damage, a full disk, folders that cannot be written, no home, a bounded size."""

from __future__ import annotations

import hashlib
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from soft.kernels import Kernels

from gpuvirt.soft.host import module_registry, object_cache


def key(n: int) -> str:
    return hashlib.sha256(str(n).encode()).hexdigest()


def same_folder(count: int) -> list[str]:
    """Keys that share a folder."""
    return ["ab" + key(n)[2:] for n in range(count)]


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("GPUVIRT_CACHE", str(tmp_path))
    return tmp_path / "kernels"


def only_file(folder: Path) -> Path:
    (found,) = [p for p in folder.rglob("*") if p.is_file()]
    return found


def test_what_is_written_is_read(cache: Path) -> None:
    assert object_cache.read(key(1)) is None
    assert object_cache.write(key(1), b"about", b"code")
    assert object_cache.read(key(1)) == (b"about", b"code")
    assert object_cache.read(key(2)) is None
    assert (only_file(cache).stat().st_mode | only_file(cache).parent.stat().st_mode) & 0o077 == 0
    object_cache.remove(key(1))
    assert object_cache.read(key(1)) is None


def test_any_damage_is_absence(cache: Path) -> None:
    object_cache.write(key(1), b"about", b"code" * 10)
    path = only_file(cache)
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        assert object_cache.read(key(1)) is None, at
        path.write_bytes(whole[:at])
        assert object_cache.read(key(1)) is None, at
    path.write_bytes(whole + b"\0")
    assert object_cache.read(key(1)) is None
    path.write_bytes(whole)
    assert object_cache.read(key(1)) is not None
    # An entry in another's place.
    other = cache / key(2)[:2] / key(2)
    other.parent.mkdir(exist_ok=True)
    path.rename(other)
    assert object_cache.read(key(2)) is None
    # It is replaced when written again.
    assert object_cache.write(key(2), b"a", b"b") and object_cache.read(key(2)) == (b"a", b"b")


def test_folders_in_the_way_and_folders_that_cannot_be_written(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cache / key(1)[:2] / key(1) / "inside").mkdir(parents=True)
    assert object_cache.read(key(1)) is None and not object_cache.write(key(1), b"a", b"b")
    assert not [p for p in cache.rglob("new.*")]
    (cache / key(2)[:2]).write_bytes(b"a file where a folder should be")
    assert object_cache.read(key(2)) is None and not object_cache.write(key(2), b"a", b"b")
    for nowhere in ("/proc/gpuvirt", "/dev/null/x", "/sys"):
        monkeypatch.setenv("GPUVIRT_CACHE", nowhere)
        assert object_cache.read(key(3)) is None and not object_cache.write(key(3), b"a", b"b")


def test_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUVIRT_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def none() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(object_cache.Path, "home", none)
    assert object_cache.directory() is None
    assert object_cache.read(key(1)) is None and not object_cache.write(key(1), b"a", b"b")
    object_cache.remove(key(1))


def test_a_full_disk(cache: Path) -> None:
    """A limit on file sizes stands for the disk's: the write stops in the middle."""
    object_cache.write(key(1), b"a", b"b")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        assert not object_cache.write(key(2), b"a", os.urandom(1 << 18))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert object_cache.read(key(2)) is None and object_cache.read(key(1)) == (b"a", b"b")
    only_file(cache)  # nothing half-written is left


def test_the_size_is_bounded(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_cache, "LIMIT", 256 * 50_000)
    keys = same_folder(10)
    now = time.time()
    for age, k in enumerate(keys[:-1]):
        assert object_cache.write(k, b"", bytes(9_000))
        os.utime(cache / "ab" / k, (now - 1000 + age, now - 1000 + age))
    folder = cache / "ab"
    (folder / "new.lost").write_bytes(bytes(10))
    os.utime(folder / "new.lost", (now - 10_000, now - 10_000))
    (folder / "new.busy").write_bytes(bytes(10))
    assert object_cache.write(keys[-1], b"", bytes(9_000))
    kept = {p.name for p in folder.iterdir()}
    assert kept == {*keys[-4:], "new.busy"}  # 12 KiB each on disk
    assert object_cache.write(keys[0], b"", bytes(100_000)), "an entry beyond the share is kept until the next comes"
    assert object_cache.read(keys[0]) is not None


def test_use_keeps_an_entry_young(cache: Path) -> None:
    object_cache.write(key(1), b"", b"x")
    path = only_file(cache)
    long_ago = time.time() - 30 * 86400
    os.utime(path, (long_ago, long_ago))
    assert object_cache.read(key(1)) is not None
    assert time.time() - path.stat().st_mtime < 60


WRITER = """
import sys, hashlib
from gpuvirt.soft.host import object_cache
object_cache.LIMIT = 256 * 200_000
seed = int(sys.argv[1])
for n in range(400):
    k = "ab" + hashlib.sha256(str(n % 40).encode()).hexdigest()[2:]
    found = object_cache.read(k)
    body = (k * 150).encode()
    assert found is None or found == (k.encode(), body), "torn"
    if found is None or n % 3 == seed % 3:
        object_cache.write(k, k.encode(), body)
"""


def test_many_processes_at_once(cache: Path) -> None:
    """They read and write the same few entries, and remove one another's."""
    processes = [subprocess.Popen([sys.executable, "-c", WRITER, str(i)], env={**os.environ}) for i in range(4)]
    try:
        assert [p.wait(60) for p in processes] == [0] * 4
    finally:
        for p in processes:
            p.kill()
    assert not list(cache.rglob("new.*"))
    assert sum(p.stat().st_size for p in cache.rglob("*") if p.is_file()) <= 200_000


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a small disk")
def test_a_disk_that_is_really_full(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system of 256 KiB: what fits is kept, the next is not written and leaves nothing, and what has room again is."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(disk)], capture_output=True, check=False).returncode:
        pytest.skip("this root may not mount a small disk")
    try:
        monkeypatch.setenv("GPUVIRT_CACHE", str(disk))
        kept = [n for n in range(12) if object_cache.write(key(n), b"a", bytes([n]) * 60_000)]
        assert 2 <= len(kept) <= 4, kept
        assert not [p for p in disk.rglob("new.*")]
        assert all(object_cache.read(key(n)) == (b"a", bytes([n]) * 60_000) for n in kept)
        k = Kernels(STORE)  # the compiler goes on without the cache
        out = np.zeros(32, np.uint32)
        (disk / "rest").write_bytes(bytes(os.statvfs(disk).f_bavail * os.statvfs(disk).f_bsize))
        k.launch("k", 1, 32, out)
        assert (out == np.arange(32)).all()
        (disk / "rest").unlink()
        object_cache.remove(key(kept[0]))
        assert object_cache.write(key(20), b"a", b"b") and object_cache.read(key(20)) == (b"a", b"b")
    finally:
        subprocess.run(["umount", str(disk)], check=True)


STORE = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 p) { .reg .b64 %q<3>; .reg .b32 %r<3>; ld.param.u64 %q0, [p]; mov.u32 %r0, %tid.x; mul.wide.u32 %q1, %r0, 4;
add.u64 %q0, %q0, %q1; st.global.u32 [%q0], %r0; ret; }
"""


def compiled_right(text: str) -> None:
    out = np.zeros(32, np.uint32)
    Kernels(text).launch("k", 1, 32, out)
    assert (out == np.arange(32)).all()


def test_the_folder_goes_away_while_the_program_runs(cache: Path) -> None:
    compiled_right(STORE)
    only_file(cache)
    shutil.rmtree(cache)
    compiled_right(STORE + "// another\n")
    only_file(cache)


def test_what_another_version_left_is_not_run(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another compiler's entry has another name; one that is sound but not what it should be is compiled anew."""
    compiled_right(STORE)
    first = only_file(cache)
    monkeypatch.setattr(module_registry, "_version", "another compiler")
    compiled_right(STORE)
    assert len([p for p in cache.rglob("*") if p.is_file()]) == 2
    # A sound entry whose description is of another making.
    (other,) = [p for p in cache.rglob("*") if p.is_file() and p != first]
    object_cache.write(other.name, b'{"something": "else"}', b"no code")
    compiled_right(STORE)
    about = object_cache.read(other.name)
    assert about is not None and b"static_shared" in about[0]


@pytest.mark.slow
def test_two_processes_compile_the_same_kernel_at_once(cache: Path) -> None:
    text = "import numpy as np; from soft.test_object_cache import STORE, compiled_right; compiled_right(STORE)"
    folder = str(Path(__file__).parent.parent)
    own = [subprocess.Popen([sys.executable, "-c", text], env={**os.environ, "PYTHONPATH": folder}) for _ in range(3)]
    try:
        assert [p.wait(120) for p in own] == [0] * 3
    finally:
        for p in own:
            p.kill()
    only_file(cache)
