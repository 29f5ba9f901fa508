"""Under which address others reach a host."""

from __future__ import annotations

import logging
import socket

import pytest

from gpuvirt.cluster import addresses
from gpuvirt.cluster.addresses import is_near, reachable


def test_the_one_at_which_it_listens() -> None:
    assert reachable("10.0.0.7", 7070) == "tcp://10.0.0.7:7070"


def test_of_all_the_one_that_leads_to_who_is_asked() -> None:
    assert reachable("0.0.0.0", 7070, "127.0.0.1") == "tcp://127.0.0.1:7070"


def leads_nowhere(monkeypatch: pytest.MonkeyPatch, ipv4: list[str], ipv6: list[str]) -> None:
    """A machine with these addresses, and no way to `EVERYWHERE`."""
    monkeypatch.setattr(addresses, "_ipv4", lambda: ipv4)
    monkeypatch.setattr(addresses, "_ipv6", lambda: ipv6)


@pytest.mark.parametrize(
    ("listens", "ipv4", "ipv6", "url"),
    [
        ("0.0.0.0", ["10.0.0.7"], ["fd00::7"], "tcp://10.0.0.7:7070"),
        ("::", [], ["fd00::7"], "tcp://[fd00::7]:7070"),
        ("0.0.0.0", [], ["fd00::7"], f"tcp://{socket.gethostname()}:7070"),
    ],
)
def test_where_nothing_leads_elsewhere_its_first(monkeypatch: pytest.MonkeyPatch, listens: str, ipv4: list[str], ipv6: list[str], url: str) -> None:
    leads_nowhere(monkeypatch, ipv4, ipv6)
    assert reachable(listens, 7070, "nobody.invalid") == url


def test_of_several_it_says_which(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    leads_nowhere(monkeypatch, ["10.0.0.7", "172.17.0.1"], [])
    with caplog.at_level(logging.WARNING):
        assert reachable("0.0.0.0", 7070, "nobody.invalid") == "tcp://10.0.0.7:7070"
    assert "it has 172.17.0.1, too: give --listen the one that is meant" in caplog.text


def test_what_the_kernel_says_is_no_loopback() -> None:
    for text in (*addresses._ipv4(), *addresses._ipv6()):
        assert not is_near(f"tcp://{text}:1" if ":" not in text else f"tcp://[{text}]:1")
