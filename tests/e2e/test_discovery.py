"""Pools that announce themselves in the network are found, and nobody is believed who only says that he is one."""

from __future__ import annotations

import asyncio
import json
import secrets
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from e2e.harness import GPUVIRT, Server, clean_environment
from e2e.test_hosts_in_namespaces import Network, network  # noqa: F401 (a fixture)
from e2e.test_many_hosts import SOON, STAYS, Pool, wait_until

from gpuvirt.transport.announcement import Announcement, pool_digest
from gpuvirt.transport.announcer import Announcer
from gpuvirt.transport.token import parse_token

SOFT = ("--backend", "soft", "--gpus", "1", "--gpu-memory", "256m")

pytestmark = pytest.mark.slow


def gpuvirt(*line: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*GPUVIRT, *map(str, line)], capture_output=True, text=True, env=clean_environment(**env), timeout=SOON, check=False)


def listed(token: str) -> dict[str, dict[str, Any]]:
    """What `pools` shows to the holder of a token, by name."""
    return {row["name"]: row for row in json.loads(gpuvirt("pools", "--json", GPUVIRT_TOKEN=token).stdout)}


def works(token: str, refusal: str | None = None, tries: int = 4) -> subprocess.CompletedProcess[str]:
    """A program on the pool that is found, or is refused with these words. A busy machine may not hear all in time: so it may try again."""
    done = gpuvirt("run", "--", *STAYS, "/dev/null", GPUVIRT_POOL="find", GPUVIRT_TOKEN=token)
    other = done.returncode == 125 and (refusal is None or refusal not in done.stderr)
    return works(token, refusal, tries - 1) if tries > 1 and other else done


def token_of(state: Path) -> str:
    return gpuvirt("token", "show", GPUVIRT_STATE=str(state)).stdout.strip()


@pytest.fixture
def name() -> str:
    """Nobody else's: the same tests may be run from another checkout at the same time."""
    return f"oak-{secrets.token_hex(4)}"


@pytest.fixture
def oak(own_pool: Callable[..., Server], name: str, tmp_path: Path) -> Server:
    """One that announces itself, to this machine only. Its tokens are no other server's."""
    return own_pool(*SOFT, "--announce", "--name", name, env=clean_environment(GPUVIRT_STATE=str(tmp_path / "oak")))


def test_a_pool_is_found_by_its_token(oak: Server, name: str, tmp_path: Path) -> None:
    """And the program's user is told which. Who has another token is told what there is; a server that has ended is not found."""
    token = token_of(tmp_path / "oak")
    found: dict[str, dict[str, Any]] = {}

    def is_listed() -> bool:  # a busy machine may be too slow for the time of one look
        found.update(listed(token))
        return name in found

    wait_until(is_listed)
    row = found[name]
    assert (row["addresses"], row["gpus"], row["backend"], row["own"]) == ([oak.url], 1, "soft", True)
    wait_until(lambda: name in gpuvirt("pools", COLUMNS="200").stdout)
    done = works(token)
    assert done.stdout == "running\nright\n" and f"found the pool of {name} at {oak.url}" in done.stderr, done.stderr
    refused = works(token_of(tmp_path / "other"), oak.url)  # of a server that is not there
    assert refused.returncode == 125 and "are not those of this token" in refused.stderr and oak.url in refused.stderr
    oak.stop()
    gone = works(token, tries=1)
    assert gone.returncode == 125 and oak.url not in gone.stderr, gone.stderr


def test_who_only_says_that_it_is_the_pool_gets_nobody(oak: Server, name: str, own_pool: Callable[..., Server], tmp_path: Path) -> None:
    """Another server is announced as of oak's pool; it does not hold the token's secret, and the program works on oak."""
    impostor = own_pool(*SOFT, env=clean_environment(GPUVIRT_STATE=str(tmp_path / "other")))
    token = token_of(tmp_path / "oak")
    digest = pool_digest(parse_token(token).server_key)

    async def run() -> tuple[subprocess.CompletedProcess[str], subprocess.CompletedProcess[str]]:
        host, _, port = impostor.info["address"].rpartition(":")
        lie = Announcer(Announcement(f"{name}-lie", (), digest, 9, "cuda"), host, int(port))
        await lie.start()
        try:
            both = await asyncio.to_thread(works, token)
            oak.stop()
            return both, await asyncio.to_thread(works, token, "token was not accepted")
        finally:
            await lie.close()

    both, alone = asyncio.run(run())
    assert both.stdout == "running\nright\n" and oak.url in both.stderr, both.stderr
    assert alone.returncode == 125 and "can be used: " in alone.stderr and "token was not accepted" in alone.stderr, alone.stderr


@pytest.mark.wide
def test_hosts_of_a_network_find_their_pool(network: Network, tmp_path: Path) -> None:  # noqa: F811 (the fixture)
    """A host joins a pool that it finds, and a program on another machine finds both, or the one that is left."""
    pool = Pool(tmp_path)

    def start(name: str, *options: str) -> Server:
        inside = ["ip", "netns", "exec", network.namespace(name)]
        return pool.start(name, 1, "--box", "off", "--link", "tcp", "--announce", *options, prefix=inside, listen=f"{network.address(name)}:7070")

    def finds_it() -> bool:  # or not yet, on a busy machine
        try:
            start("birch", "--join", "find")
        except RuntimeError as error:
            assert "announces itself in this network" in str(error)
            return False
        return True

    try:
        start("ash")
        wait_until(finds_it)
        wait_until(lambda: pool.are_there("ash", "ash", "birch"))
        assert f"found the pool of ash at {pool.hosts['ash'].url}" in (tmp_path / "birch" / "serve.log").read_text()
        wait_until(lambda: {name for name, row in listed(pool.token).items() if row["own"]} >= {"ash", "birch"})
        pool.hosts["ash"].stop()
        left = f"found the pool of birch at {pool.hosts['birch'].url}"
        wait_until(lambda: left in gpuvirt("ps", "--pool", "find", GPUVIRT_TOKEN=pool.token).stderr)
    finally:
        pool.stop()
