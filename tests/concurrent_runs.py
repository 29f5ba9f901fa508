"""Runs the programs of a test module concurrently, because C tests mostly wait for threads, sockets and time limits.

    JOBS = {"test_links": lambda item: subprocess.run([program, item["case"]], ...)}

    @pytest.fixture(scope="module")
    def runs(request):
        with ConcurrentRuns(request, JOBS) as started:
            yield started

    @pytest.mark.parametrize("case", CASES)
    def test_links(runs, request, case):
        assert runs.result(request).returncode == 0

What is not selected is not run; a job that raises fails its own test.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any

import pytest

# A job takes its environment from here: pytest changes its own between two tests, which another thread must not read meanwhile.
ENVIRONMENT = dict(os.environ)

Job = Callable[[Mapping[str, Any]], Any]
AT_ONCE = 4


class ConcurrentRuns:
    """Jobs by the name of the test function; each gets the parameters of one test of this module, in the order of the tests."""

    def __init__(self, request: pytest.FixtureRequest, jobs: Mapping[str, Job], at_once: int = AT_ONCE) -> None:
        self._pool = ThreadPoolExecutor(at_once)
        self._results: dict[str, Future[Any]] = {}
        for item in request.session.items:
            if isinstance(item, pytest.Function) and item.path == request.path and item.originalname in jobs:
                parameters = item.callspec.params if hasattr(item, "callspec") else {}
                self._results[item.nodeid] = self._pool.submit(jobs[item.originalname], parameters)

    def __enter__(self) -> ConcurrentRuns:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._pool.shutdown(cancel_futures=True)

    def result(self, request: pytest.FixtureRequest) -> Any:
        """What the job of the test that asks has returned; waits for it."""
        return self._results[request.node.nodeid].result()
