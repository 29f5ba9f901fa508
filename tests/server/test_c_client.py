"""The C client's side of the handshake (native/transport) against the daemon."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Callable
from pathlib import Path

import c_build
import pytest
from server.harness import FakeServer

from gpuvirt.transport import handshake as hs
from gpuvirt.transport.token import Token

ROOT = Path(__file__).parent.parent.parent

CLIENT = r"""
#include <stdio.h>
#include <stdlib.h>
#include "native/transport/transport.h"
#include "native/wire/handshake.h"
static void notice(void *arg, const char *text) { printf("%s\n", text), (void)arg; }
int main(int argc, char **argv) {
    uint8_t id[GV_TOKEN_ID_SIZE], secret[GV_SECRET_SIZE];
    if (argc != 6) return 2;
    for (int i = 0; i < GV_TOKEN_ID_SIZE; i++) sscanf(argv[3] + 2 * i, "%2hhx", &id[i]);
    for (int i = 0; i < GV_SECRET_SIZE; i++) sscanf(argv[4] + 2 * i, "%2hhx", &secret[i]);
    struct gv_link_options options = {.pool = argv[1], .link = argv[2], .token_id = id, .secret = secret, .gpus = (uint32_t)atoi(argv[5]),
                                      .notice = notice};
    struct gv_open_error error;
    struct gv_link *link = gv_link_connect(&options, &error);
    if (!link) {
        printf("%d %s\n", error.status, error.text);
        return 1;
    }
    printf("%s %s\n", gv_link_transport(link), gv_link_server(link));
    gv_link_close(link);
    return 0;
}
"""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("client")
    (folder / "client.c").write_text('#include "native/wire/handshake.h"\n' + CLIENT)
    sources = [*ROOT.glob("native/transport/**/*.c"), *ROOT.glob("native/wire/*.c")]
    return c_build.program(folder / "client", [folder / "client.c", *sources], flags=[f"-I{ROOT}"])


def run(client: Path, url: str, link: str, token: Token, gpus: int = 1) -> subprocess.CompletedProcess[str]:
    line = [str(client), url, link, token.id.hex(), token.secret.hex(), str(gpus)]
    return subprocess.run(line, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.parametrize(("link", "transport"), [("auto", "shm"), ("shm", "shm"), ("tcp", "tcp")])
def test_connects(server: FakeServer, client: Path, link: str, transport: str) -> None:
    done = run(client, server.url, link, server.token)
    assert (done.returncode, done.stdout) == (0, f"{transport} {server.url}\n")


def test_refused(server: FakeServer, client: Path) -> None:
    done = run(client, server.url, "tcp", dataclasses.replace(server.token, secret=bytes(32)))
    assert done.returncode == 1 and done.stdout.startswith("2 ") and server.url in done.stdout and "token was not accepted" in done.stdout
    done = run(client, server.url, "auto", server.token, 3)
    assert done.returncode == 1 and done.stdout.startswith("3 ") and "this pool has 2 GPUs" in done.stdout


def test_waits(own_server: Callable[..., FakeServer], client: Path) -> None:
    """Quietly but for one line, in which the server says why, and nothing that would do anything to a terminal."""
    server = own_server(states=[{"place": 3 - i, "queued": 5, "text": "\x1b[2Jnone is free"} for i in range(3)])
    for link, transport in (("tcp", "tcp"), ("auto", "shm")):
        done = run(client, server.url, link, server.token)
        told = f"waiting for a GPU of the server at {server.url}, place 3 of 5 in the queue: ?[2Jnone is free\n"
        assert (done.returncode, done.stdout) == (0, f"{told}{transport} {server.url}\n")


def test_parked(own_server: Callable[..., FakeServer], client: Path) -> None:
    server = own_server(states=[{"state": hs.STATE_PARKED}])
    done = run(client, server.url, "tcp", server.token)
    assert done.stdout.splitlines()[0].endswith("to bring the session's memory back") and done.stdout.endswith(f"tcp {server.url}\n")


def test_follows(server: FakeServer, own_server: Callable[..., FakeServer], client: Path) -> None:
    """To the other server, whose refusal is told under its own name."""
    moved = own_server(moves_to=server.url)
    done = run(client, moved.url, "tcp", server.token)
    assert done.returncode == 1 and moved.url in done.stdout  # the first one does not know that token
    done = run(client, moved.url, "tcp", moved.token)
    assert done.returncode == 1 and f"the server at {server.url} refused: the token was not accepted" in done.stdout
