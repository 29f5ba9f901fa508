"""Options take precedence over the environment, the environment over the configuration file."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuvirt.client.settings import Settings, resolve
from gpuvirt.errors import GpuvirtError
from gpuvirt.sizes import format_size, parse_size
from gpuvirt.transport.pool import PoolAddress, parse_pool

NOWHERE = Path("/nowhere/config.toml")


def test_defaults() -> None:
    assert resolve({}, {}, NOWHERE) == Settings(None, False, 1, None, None, "auto", None, None)


def test_order(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('pool = "tcp://file:1"\ngpus = 4\nlink = "tcp"\nmemory = "1g"\n')
    env = {"GPUVIRT_POOL": "tcp://env:2", "GPUVIRT_GPUS": "3"}
    found = resolve({"gpus": 2}, env, file)
    assert found == Settings(PoolAddress("env", 2), False, 2, 1 << 30, None, "tcp", None, None)


def test_quiet_is_a_setting_like_any_other(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("quiet = true\n")
    assert resolve({}, {}, file).quiet
    assert not resolve({}, {"GPUVIRT_QUIET": "0"}, file).quiet
    assert resolve({"quiet": True}, {"GPUVIRT_QUIET": "0"}, file).quiet


def test_local_and_pool_are_one_setting(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('pool = "tcp://file:1"\n')
    found = resolve({}, {"GPUVIRT_LOCAL": "1"}, file)
    assert found.pool is None and found.chosen_local
    found = resolve({"pool": "tcp://flag:3"}, {"GPUVIRT_LOCAL": "yes"}, file)
    assert found.pool == PoolAddress("flag", 3) and not found.chosen_local
    found = resolve({}, {"GPUVIRT_LOCAL": "no"}, file)
    assert found.pool == PoolAddress("file", 1)
    with pytest.raises(GpuvirtError, match="GPUVIRT_POOL and GPUVIRT_LOCAL contradict"):
        resolve({}, {"GPUVIRT_LOCAL": "1", "GPUVIRT_POOL": "tcp://x:1"}, file)


@pytest.mark.parametrize(
    ("env", "named"),
    [
        ({"GPUVIRT_GPUS": "some"}, "GPUVIRT_GPUS: 'some'"),
        ({"GPUVIRT_GPUS": "99"}, "GPUVIRT_GPUS"),
        ({"GPUVIRT_MEMORY": "4x"}, "GPUVIRT_MEMORY"),
        ({"GPUVIRT_POOL": "host"}, "GPUVIRT_POOL: 'host' is not a pool"),
        ({"GPUVIRT_LINK": "delay(rtt=1ms,verbs)"}, "GPUVIRT_LINK: a verbs link is not delayed"),
        ({"GPUVIRT_NO_WAIT": "maybe"}, "GPUVIRT_NO_WAIT: 'maybe' is neither"),
        ({"GPUVIRT_COMPUTE": "50"}, "GPUVIRT_COMPUTE: '50' is no part of a GPU"),
    ],
)
def test_bad_environment_is_named(env: dict[str, str], named: str) -> None:
    with pytest.raises(GpuvirtError) as raised:
        resolve({}, env, NOWHERE)
    assert named in str(raised.value)


@pytest.mark.parametrize(
    ("content", "named"), [("gpus = 'x'", "gpus in "), ("nonsense = 1", "nonsense in "), ("idle = 5", "idle in "), ("= 3", "cannot be read")]
)
def test_bad_file_is_named(tmp_path: Path, content: str, named: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(content)
    with pytest.raises(GpuvirtError) as raised:
        resolve({}, {}, file)
    assert named in str(raised.value) and str(file) in str(raised.value)


@pytest.mark.parametrize(
    ("value", "expected"), [("-", "-"), ("1", "-"), ("0", None), ("/tmp/s.json", "/tmp/s.json"), ("s.json", str(Path("s.json").absolute()))]
)
def test_stats(value: str, expected: str | None) -> None:
    assert resolve({"stats": value}, {}, NOWHERE).stats == expected


@pytest.mark.parametrize(
    ("text", "size"), [("512m", 512 << 20), ("4g", 4 << 30), ("1.5GiB", 3 << 29), ("4096", 4096), ("2 KB", 2048), ("1T", 1 << 40)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "g", "-1g", "0", "4q", "1e9", "9999999t"])
def test_not_sizes(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a size|out of range"):
        parse_size(text)


def test_format_size() -> None:
    assert [format_size(s) for s in (5, 1536, 4 << 30, 3 << 40)] == ["5 B", "1.5 KiB", "4.0 GiB", "3.0 TiB"]


def test_pools() -> None:
    assert parse_pool("tcp://host:7070/") == PoolAddress("host", 7070)
    assert parse_pool("tcp://[::1]:7070").url == "tcp://[::1]:7070"
    for text in ("host:7070", "tcp://host", "tcp://host:0", "tcp://host:70000", "udp://h:1", "tcp://h:1,tcp://h:2", "tcp://::1:7070"):
        with pytest.raises(GpuvirtError):
            parse_pool(text)


def test_waiting(tmp_path: Path) -> None:
    """--no-wait and --wait are one setting: the layer with precedence decides both."""
    file = tmp_path / "config.toml"
    file.write_text('wait = "2m"\npriority = -3\n')
    found = resolve({}, {}, file)
    assert (found.no_wait, found.wait, found.priority) == (False, 120.0, -3)
    found = resolve({}, {"GPUVIRT_NO_WAIT": "1", "GPUVIRT_PRIORITY": "7"}, file)
    assert (found.no_wait, found.wait, found.priority) == (True, None, 7)
    found = resolve({"wait": 1.5}, {"GPUVIRT_NO_WAIT": "1"}, file)
    assert (found.no_wait, found.wait) == (False, 1.5)
    with pytest.raises(GpuvirtError, match=r"--no-wait and --wait contradict"):
        resolve({"no_wait": True, "wait": "1s"}, {}, file)
    for name, wrong in (("wait", "soon"), ("wait", 0), ("wait", "31d"), ("wait", True), ("priority", "high"), ("priority", 101), ("priority", True)):
        with pytest.raises(GpuvirtError, match=f"--{name}: "):
            resolve({name: wrong}, {}, file)
