"""The metrics: what a scrape says, to whom it does not say what, and what a strange scraper can do."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from server.harness import FakeServer, environment, wait_until

from gpuvirt.cluster.whole_pool import merge_metrics
from gpuvirt.server.observe.accounts import Accounts, Holding
from gpuvirt.server.observe.facts import ATTACHED, PARKED, QUEUED
from gpuvirt.server.observe.metrics import families, metrics_answer, metrics_text, pool_text
from gpuvirt.server.observe.metrics_server import FRESH, REQUEST_MOST, TOTAL
from gpuvirt.transport.packing import pack, unpack
from gpuvirt.transport.token import parse_token

from .test_facts import MIB, facts

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parsed(text: str) -> Samples:
    """Samples by name and labels; no sample comes twice, and each family says what it is."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation and family.name.startswith("gpuvirt_")
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in found and (family.type == "counter") == sample.name.endswith("_total"), key
            found[key] = sample.value
    return found


def value(samples: Samples, metric: str, /, **labels: str) -> float:
    return samples[f"gpuvirt_{metric}", frozenset(labels.items())]


def test_what_they_say() -> None:
    accounts = Accounts({"shm": 2})
    accounts.observe(0, 0, [Holding("alice", 2, ATTACHED), Holding("alice", 1, QUEUED), Holding('b"o\\b', 1, PARKED)], {})
    accounts.observe(10, 10, [], {})
    accounts.figures(
        1, "alice", "shm", 10, {"commands": 9, "launches": 3, "bytes_in": 5, "bytes_out": 6, "answers": 4, "rtt_ns": 10**9, "cut_ns": 5 * 10**8}
    )
    samples = parsed(metrics_text(families(facts(), accounts)).decode())
    assert value(samples, "device_memory_bytes", device="1", name="gpu") == 256 * MIB
    assert [value(samples, f"device_memory_{what}_bytes", device="0") for what in ("used", "given_back")] == [100 * MIB, 3 * MIB]
    assert [value(samples, "sessions", state=state) for state in ("attached", "parked", "waits_for_memory", "moves")] == [1, 1, 1, 1]
    assert [value(samples, "leases", state=state) for state in ("attached", "parked", "idle")] == [1, 2, 1]
    assert [value(samples, f"{queue}") for queue in ("queue_leases", "queue_gpus", "memory_queue_sessions", "memory_queue_bytes")] == [
        1,
        2,
        1,
        7 * MIB,
    ]
    assert value(samples, "lease_gpu_seconds_total", user="alice", state="attached") == 20
    assert value(samples, "lease_gpu_seconds_total", user='b"o\\b', state="parked") == 10
    assert value(samples, "lease_gpu_seconds_total", user='b"o\\b', state="attached") == 0
    assert value(samples, "lease_wait_seconds_total", user="alice") == 10
    assert [value(samples, "session_bytes_total", user="alice", direction=way) for way in ("in", "out")] == [5, 6]
    assert [value(samples, f"session_{what}_total", user="alice") for what in ("answers", "network_seconds")] == [4, 4.5]
    assert value(samples, "session_launches_total", user="alice") == 3 and value(samples, "link_reconnections_total", transport="shm") == 2


def test_what_they_say_of_a_pool() -> None:
    """Each value says of which host it is, a host that is silent is down, and the numbers of one host are what it says of itself."""
    accounts = Accounts({"shm": 2})
    accounts.figures(1, "alice", "shm", 10, {"launches": 3})
    answers = [unpack(pack(metrics_answer(replace(facts(), server=name), accounts))) for name in ("one", "two")]
    samples = parsed(pool_text({**merge_metrics(answers), "silent": ["three"]}).decode())
    assert [value(samples, "host_up", server=name) for name in ("one", "two", "three")] == [1, 1, 0]
    alone = parsed(metrics_text(families(replace(facts(), server="two"), accounts)).decode())
    of_two = {(name, labels - {("server", "two")}): n for (name, labels), n in samples.items() if ("server", "two") in labels}
    del of_two["gpuvirt_host_up", frozenset()]
    assert of_two == {(name, labels - {("server", "two")}): n for (name, labels), n in alone.items()} and len(samples) == 2 * len(alone) + 3


def scrape(server: FakeServer, page: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.ready['metrics_port']}{page}", timeout=100) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return str(answer.read().decode())


def say(server: FakeServer, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", int(server.ready["metrics_port"])), timeout=100) as sock:
        sock.sendall(request)
        answer = b""
        while part := sock.recv(65536):
            answer += part
        return answer


def test_counters_outlive_their_sessions(own_server: Callable[..., FakeServer]) -> None:
    """What a session said last counts when it has ended, and each session once. Whose it was is told, what it ran is not."""
    server = own_server(gpus=2, metrics=["127.0.0.1", 0])
    token = parse_token(server.ask("token_create", name="laptop", user="alice")["token"])
    socks = [server.attach(token, program="a secret program", user="me")[0] for _ in range(2)]
    before: Samples = {}

    def launches() -> float:
        nonlocal before
        text = scrape(server)
        assert not any(secret in text for secret in ("secret", "laptop", token.text(), token.id.hex()))
        samples = parsed(text)
        assert all(samples[key] >= number for key, number in before.items() if key[0].endswith("_total"))
        before = samples
        return value(samples, "session_launches_total", user="alice")

    wait_until(lambda: launches() == 6)
    assert value(before, "sessions", state="attached") == 2 and value(before, "session_starts_total", user="alice") == 2
    for sock in socks:
        sock.close()
    wait_until(lambda: launches() == 8)  # a session's last word has one more
    wait_until(lambda: launches() == 8 and value(before, "sessions", state="attached") == 0)
    assert value(before, "link_bytes_total", transport="tcp", direction="out") == 4
    sock, _, _ = server.attach(token)
    wait_until(lambda: launches() == 11)
    sock.close()


def test_a_pool_without_an_admin(own_server: Callable[..., FakeServer]) -> None:
    """Whoever scrapes has no token made by that: it is said that there is none. A server's own page needs none."""
    server = own_server(metrics=["127.0.0.1", 0])
    assert 'gpuvirt_host_up{server="' in scrape(server, "/metrics/pool")
    server.ask("token_revoke", which="default")
    time.sleep(FRESH)
    answer = say(server, b"GET /metrics/pool HTTP/1.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 503 ") and b"token create NAME --admin" in answer
    assert "gpuvirt_info" in scrape(server)


def test_strange_requests(own_server: Callable[..., FakeServer]) -> None:
    server = own_server(metrics=["127.0.0.1", 0])
    for request, status in (
        (b"GET / HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/2\r\n\r\n", b"400"),
        (b"GET /metrics?x=1 HTTP/1.0\r\nA: b\r\n\r\n", b"200"),
    ):
        assert say(server, request).startswith(b"HTTP/1.1 " + status), request
    head = say(server, b"HEAD /metrics HTTP/1.1\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200") and head.endswith(b"\r\n\r\n") and b"gpuvirt_info" not in head
    assert say(server, b"GET /metrics HTTP/1.1\r\nA: " + b"b" * REQUEST_MOST) == b""
    assert "gpuvirt_info" in scrape(server)


@pytest.mark.slow
def test_slow_scrapers(own_server: Callable[..., FakeServer]) -> None:
    """Many that say nothing, or too little, take neither descriptors nor the others' time, and are not kept."""
    server = own_server(metrics=["127.0.0.1", 0])
    descriptors = Path(f"/proc/{server.process.pid}/fd")
    before = len(os.listdir(descriptors))
    slow = [socket.create_connection(("127.0.0.1", int(server.ready["metrics_port"])), timeout=100) for _ in range(100)]
    for number, sock in enumerate(slow):
        if number % 2:
            sock.sendall(b"GET /metrics HTTP/1.1\r\n")
    most = 0
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline:
        most = max(most, len(os.listdir(descriptors)))
    assert most - before <= 3 * TOTAL
    assert server.ask("info")["pid"] == server.process.pid
    wait_until(lambda: all(_ended(sock) for sock in slow))
    assert "gpuvirt_info" in scrape(server)
    wait_until(lambda: len(os.listdir(descriptors)) <= before)
    for sock in slow:
        sock.close()


def _ended(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        line = [sys.executable, "-P", "-m", "gpuvirt", "serve", "--backend", "soft", "--listen", "127.0.0.1:0", "--metrics", where]
        done = subprocess.run(line, capture_output=True, text=True, timeout=200, env=environment(tmp_path), check=False)
    assert done.returncode == 125 and done.stderr.count("\n") == 1 and "is taken" in done.stderr and "--metrics 127.0.0.1:PORT" in done.stderr


def test_off_unless_asked_for(server: FakeServer) -> None:
    assert "metrics_port" not in server.ready
