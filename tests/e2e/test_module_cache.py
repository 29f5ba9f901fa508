"""The module cache: the second process of a program sends no image and waits for none, whatever happened to the cache's files."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from e2e.harness import HERE, Server, assert_right, clean_environment, run_line, run_program, running, start_server

pytestmark = pytest.mark.slow

PROGRAM = HERE / "programs" / "modules.py"
COUNT = 3
IMAGES = COUNT * 8000  # bytes; each image is larger


@dataclass
class Ran:
    """What one process did."""

    waits: int  # for its modules
    sent: int  # bytes, of everything

    @property
    def images_sent(self) -> bool:
        return self.sent > IMAGES


@dataclass
class Setting:
    """A server with a cache of its own, a client with another, images that nobody loaded before."""

    server: Server
    images: Path
    client: Path
    folder: Path
    salt: str

    def run(self, *words: str, link: str = "tcp", client: Path | None = None, count: int = COUNT) -> Ran:
        stats = self.folder / "stats.json"
        command: list[str | Path] = [sys.executable, PROGRAM, self.salt, str(count), *words]
        done = run_program(self.server, command, "--link", link, f"--stats={stats}", GPUVIRT_CACHE=str(client or self.client))
        assert_right(done)
        found = re.search(r"module waits (\d+)", done.stderr)
        assert found
        return Ran(int(found[1]), int(json.loads(stats.read_text())["bytes_out"]))

    def kept(self) -> list[Path]:
        """The server's files of our images."""
        return [p for p in self.images.iterdir() if p.is_file() and self.salt.encode() in p.read_bytes()]

    def described(self) -> list[Path]:
        """The client's files."""
        return [p for p in (self.client / "modules").iterdir() if p.is_file()]


def start(folder: Path) -> Server:
    """A server whose cache is in `folder`."""
    env = clean_environment(GPUVIRT_CACHE=str(folder / "cache"))
    return start_server(folder, "--backend", "soft", "--gpus", "2", "--gpu-memory", "1g", env=env)


def images_in(folder: Path) -> Path:
    """Where that server keeps the images of its only tenant."""
    (found,) = (folder / "cache" / "tenants").glob("*/images")
    return found


@pytest.fixture(scope="module")
def caching(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    folder = tmp_path_factory.mktemp("caching")
    server = start(folder)
    yield server, images_in(folder)
    server.stop()


@pytest.fixture
def setting(caching: tuple[Server, Path], tmp_path: Path) -> Setting:
    server, images = caching
    return Setting(server, images, tmp_path / "client", tmp_path, uuid.uuid4().hex)


@pytest.fixture
def own_setting(tmp_path: Path) -> Iterator[Setting]:
    """With a server of its own, which a test may stop."""
    setting = Setting(start(tmp_path), images_in(tmp_path), tmp_path / "client", tmp_path, uuid.uuid4().hex)
    yield setting
    setting.server.stop()


@contextlib.contextmanager
def no_server(setting: Setting) -> Iterator[None]:
    """Files are changed while no server runs: a worker that waits for its session may have opened them before, and what is open stays good."""
    setting.server.stop()
    yield
    setting.server = start(setting.folder)


def check_warm(setting: Setting) -> None:
    ran = setting.run()
    assert (ran.waits, ran.images_sent) == (0, False)


@pytest.mark.parametrize("words", [[], ["library"]])
@pytest.mark.parametrize("link", ["tcp", "shm"])
def test_the_second_process_sends_no_image_and_does_not_wait(setting: Setting, link: str, words: list[str]) -> None:
    """Why the table of functions calls loading, and the first look into a library, asynchronous."""
    cold = setting.run(*words, link=link)
    assert (cold.waits, cold.images_sent) == (COUNT, True)
    warm = setting.run(*words, link=link)
    assert (warm.waits, warm.images_sent) == (0, False)


def test_images_travel_packed_from_afar(setting: Setting) -> None:
    """What the kernels do shows that they arrived as they were; and the server keeps them unpacked."""
    cold = setting.run(link="delay(rtt=10ms,tcp)")
    assert (cold.waits, cold.sent < IMAGES / 4) == (COUNT, True)
    assert len(setting.kept()) == COUNT
    check_warm(setting)


def test_without_a_cache_it_would_be_noticed(setting: Setting) -> None:
    """The deliberate fault of the test above: a client that keeps nothing."""
    for _ in range(2):
        setting.run(client=Path("/proc/gpuvirt"))
    with pytest.raises(AssertionError):
        check_warm(setting)


def test_an_image_loaded_again_in_one_process(setting: Setting) -> None:
    assert setting.run("twice").waits == COUNT
    assert setting.run("twice").waits == 0


def test_variables_of_modules(setting: Setting) -> None:
    """Their addresses are new each time, whether asked for by name or told by a kernel."""
    for words in (["global"], ["global"], ["leak"], ["leak", "global"]):
        setting.run(*words)
    check_warm(setting)


def test_the_compilers_log_is_waited_for(setting: Setting) -> None:
    setting.run()
    ran = setting.run("log")
    assert (ran.waits, ran.images_sent) == (COUNT, False)


def test_another_client_asks_by_hash(setting: Setting) -> None:
    setting.run()
    ran = setting.run(client=setting.folder / "another")
    assert (ran.waits, ran.images_sent) == (COUNT, False)


def test_what_fails_is_not_kept(setting: Setting) -> None:
    for _ in range(2):
        setting.run("bad")
    assert len(setting.kept()) == len(setting.described()) == COUNT


DAMAGES = ["flipped", "cut", "emptied", "folder", "gone"]


def damage(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "flipped":
        data[-3] ^= 1
        path.write_bytes(data)
    elif how == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif how == "emptied":
        path.write_bytes(b"")
    else:
        path.unlink()
        if how == "folder":
            path.mkdir()


@pytest.mark.parametrize("how", DAMAGES)
def test_damaged_on_the_server(own_setting: Setting, how: str) -> None:
    own_setting.run()
    with no_server(own_setting):
        assert len(own_setting.kept()) == COUNT
        for path in own_setting.kept():
            damage(path, how)
    ran = own_setting.run()
    assert (ran.waits, ran.images_sent) == (COUNT, True)
    if how == "folder":  # in the way for good: no cache, no error
        assert own_setting.run().images_sent
    else:
        check_warm(own_setting)


@pytest.mark.parametrize("how", DAMAGES)
def test_damaged_on_the_client(setting: Setting, how: str) -> None:
    setting.run()
    for path in setting.described():
        damage(path, how)
    ran = setting.run()
    assert (ran.waits, ran.images_sent) == (COUNT, False)
    if how != "folder":
        check_warm(setting)


def test_metadata_of_another_image(setting: Setting) -> None:
    """A whole and sound file in the wrong place is noticed."""
    setting.run()
    first, *others = setting.described()
    for path in others:
        shutil.copy(first, path)
    assert setting.run().waits == len(others)
    check_warm(setting)


HEADER = 8 + 3 * 32 + 8  # of a client's file: magic; image, device, digest; size


def forge(path: Path) -> tuple[str, bytes]:
    """Gives a client's file other metadata, sound and with a digest that fits; its image's hash and that digest."""
    data = bytearray(path.read_bytes())
    data[HEADER + 32 + 8 * 4] ^= 1  # the first kernel's number of registers
    digest = hashlib.sha256(data[HEADER:]).digest()
    data[8 + 64 : 8 + 96] = digest
    path.write_bytes(data)
    return data[8:40].hex(), digest


def test_stale_metadata(setting: Setting) -> None:
    """What another build of the server said of the image: the server's list tells that it is not so any more."""
    setting.run()
    for path in setting.described():
        forge(path)
    assert setting.run().waits == COUNT
    check_warm(setting)


def test_stale_metadata_on_both_sides(own_setting: Setting) -> None:
    """A server that does not notice when it lists them notices when it loads: the program fails, with a reason, and launches no wrong kernels."""
    own_setting.run()
    with no_server(own_setting):
        for path in own_setting.described():
            image, digest = forge(path)
            (kept,) = (p for p in own_setting.images.iterdir() if p.name.startswith(image))
            name, _, key = kept.name.split(".")
            kept.rename(kept.with_name(f"{name}.{digest[:8].hex()}.{key}"))
    command: list[str | Path] = [sys.executable, PROGRAM, own_setting.salt, str(COUNT)]
    done = run_program(own_setting.server, command, GPUVIRT_CACHE=str(own_setting.client))
    assert done.returncode == 1 and "wrong" in done.stderr
    assert "does not give the metadata that it gave before" in done.stderr
    with no_server(own_setting):
        pass  # the next program's worker may have seen the file, too
    own_setting.run(count=1)  # what was found out is out of the way; the others were never reached, or are found out in turn


def test_two_at_once(setting: Setting) -> None:
    line = [*run_line(setting.server, "--link", "tcp"), sys.executable, str(PROGRAM), setting.salt, str(COUNT)]
    env = clean_environment(GPUVIRT_CACHE=str(setting.client))
    both = [subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) for _ in range(2)]
    for process in both:
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out) == (0, "right\n"), err
    assert len(setting.kept()) == len(setting.described()) == COUNT
    check_warm(setting)


@pytest.mark.parametrize("side", ["client", "server", "both"])
def test_wiped_between_runs(own_setting: Setting, side: str) -> None:
    own_setting.run()
    with no_server(own_setting):
        if side != "server":
            shutil.rmtree(own_setting.client)
        if side != "client":
            for path in own_setting.kept():
                path.unlink()
    ran = own_setting.run()
    assert (ran.waits, ran.images_sent) == (COUNT, side != "client")
    check_warm(own_setting)


def test_wiped_under_a_running_program(setting: Setting, tmp_path: Path) -> None:
    """What the server promised it keeps."""
    setting.run()
    go = tmp_path / "go"
    command: list[str | Path] = [sys.executable, PROGRAM, setting.salt, str(COUNT), "wait", go]
    with running(setting.server, command, GPUVIRT_CACHE=str(setting.client)) as process:
        for path in setting.kept():
            path.unlink()
        go.touch()
        out, err = process.communicate(timeout=100)
    assert (process.returncode, out) == (0, "right\n"), err
    assert "module waits 0" in err
    setting.run()
    check_warm(setting)


def test_damaged_under_a_running_program(setting: Setting, tmp_path: Path) -> None:
    """The one load that fails late: with its reason, and not again."""
    setting.run()
    go = tmp_path / "go"
    command: list[str | Path] = [sys.executable, PROGRAM, setting.salt, str(COUNT), "wait", go]
    with running(setting.server, command, GPUVIRT_CACHE=str(setting.client)) as process:
        for path in setting.kept():
            damage(path, "flipped")
        go.touch()
        _, err = process.communicate(timeout=100)
    assert process.returncode == 1
    assert "a module that the server kept is gone from its cache" in err and "wrong" in err
    setting.run()
    check_warm(setting)


def test_a_server_without_a_cache(tmp_path: Path) -> None:
    folder = tmp_path / "server"
    server = start_server(folder, "--backend", "soft", "--gpus", "1", "--gpu-memory", "1g", env=clean_environment(GPUVIRT_CACHE="/proc/gpuvirt"))
    try:
        setting = Setting(server, folder, tmp_path / "client", tmp_path, uuid.uuid4().hex)
        for _ in range(2):
            ran = setting.run()
            assert (ran.waits, ran.images_sent) == (COUNT, True)
    finally:
        server.stop()


def test_chained(chained: Server, tmp_path: Path) -> None:
    """Chained: the `cuda` backend's metadata come from the driver."""
    setting = Setting(chained, tmp_path, tmp_path / "client", tmp_path, uuid.uuid4().hex)
    assert setting.run("global").waits == COUNT
    ran = setting.run()
    assert (ran.waits, ran.images_sent) == (0, False)
