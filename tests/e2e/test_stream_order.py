"""Whoever has waited for a stream finds the bytes of all copies to the host that the stream is ordered after, and of no others."""

from __future__ import annotations

import sys

import pytest
from e2e.harness import HERE, Server, assert_right, run_program

pytestmark = pytest.mark.slow

PROGRAM = HERE / "programs" / "stream_order.py"
SLOW_LINE = "delay(rtt=2ms,rate=500mbit,tcp)"  # the bytes come long after the device has copied them
ORDERED = [
    "own", "by_event", "by_event_of_the_other", "stream_query", "event_query", "chain", "recorded_again", "destroyed", "host_function", "context",
    "legacy", "legacy_copy", "blocking", "across_legacy", "per_thread",
]  # fmt: skip
BY_MEMORY = ["by_word", "by_word_waited_first", "by_kernels", "by_word_and_event", "by_event_and_word", "by_word_queried", "by_word_in_host_function"]
UNORDERED = ["unordered_legacy", "unordered_stream", "unordered_event", "unordered_kernels"]
CASES = [*ORDERED, *BY_MEMORY, *UNORDERED]


LINK_IS_SLOW = [*CASES, "not_followed"]


@pytest.mark.parametrize("server", ["pool", "chained"])
def test_copies_have_landed(request: pytest.FixtureRequest, server: str) -> None:
    """All cases one after the other, on both backends: chained is the cuda backend, with our own shim in the place of the driver."""
    assert_right(run_program(request.getfixturevalue(server), [sys.executable, PROGRAM, ",".join(LINK_IS_SLOW), "1"], "--link", SLOW_LINE))


@pytest.mark.wide
@pytest.mark.parametrize("server", ["pool", "chained"])
@pytest.mark.parametrize("case", LINK_IS_SLOW)
def test_copies_have_landed_alone(request: pytest.FixtureRequest, server: str, case: str) -> None:
    assert_right(run_program(request.getfixturevalue(server), [sys.executable, PROGRAM, case], "--link", SLOW_LINE))


@pytest.mark.wide
@pytest.mark.parametrize("link", ["shm", "tcp"])
def test_on_a_fast_line(pool: Server, link: str) -> None:
    assert_right(run_program(pool, [sys.executable, PROGRAM, ",".join(CASES), "5"], "--link", link))
