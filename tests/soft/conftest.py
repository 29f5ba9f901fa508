"""The software GPU's compiler under test: an object cache of its own for each run, so that everything is compiled by the code that is there."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """GPUVIRT_CACHE in a temporary folder."""
    before = os.environ.get("GPUVIRT_CACHE")
    os.environ["GPUVIRT_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["GPUVIRT_CACHE"]
    else:
        os.environ["GPUVIRT_CACHE"] = before
