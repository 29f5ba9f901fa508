"""`gpuvirt bench`, up to the program that measures. What it measures is tested in tests/bench."""

from __future__ import annotations

from server.harness import FakeServer

from .conftest import Gpuvirt


def test_help_has_examples(gpuvirt: Gpuvirt) -> None:
    done = gpuvirt("bench", "--help")
    assert done.returncode == 0 and "gpuvirt bench --local" in done.stdout and "--quick" in done.stdout and "--json" in done.stdout


def test_usage(gpuvirt: Gpuvirt) -> None:
    for line in (["--rounds", "0"], ["--link", "carrier-pigeon"], ["--pool", "tcp://h:1", "--local"], ["something"]):
        done = gpuvirt("bench", *line)
        assert done.returncode == 2 and done.stdout == "", line


def test_no_server(gpuvirt: Gpuvirt) -> None:
    done = gpuvirt("bench", "--pool", "tcp://127.0.0.1:1")
    assert done.returncode == 125 and done.stdout == "" and "no GPU server at tcp://127.0.0.1:1" in done.stderr


def test_a_driver_that_is_none(gpuvirt: Gpuvirt, server: FakeServer) -> None:
    """The libraries here are empty: the measuring program says what it misses, and nothing is on stdout."""
    done = gpuvirt("bench", "--json", server=server)
    assert done.returncode == 125 and done.stdout == "" and "libcuda.so.1 has no such call" in done.stderr, done.stderr
