"""The client with a pause between two of its steps, so that another thread comes between them each time: what else happens once in a thousand."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import c_build
import pytest
from conformance import building
from e2e.harness import Server, assert_right, clean_environment

pytestmark = [pytest.mark.slow, pytest.mark.wide]

OBJECTS = c_build.NATIVE / "shim" / "objects"
PAUSE = "    nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);\n"
FILL = "    rc = copy_managed(s, &side, &box, true);\n"
SEND = "    sending++;\n    pthread_mutex_unlock(&region_lock);\n"


@dataclass(frozen=True)
class Place:
    source: str  # below native/shim/objects
    behind: str  # a text
    program: str  # of tests/e2e/programs
    case: str


PLACES = {
    "what the host has written is about to be queued": Place("managed/coherence.c", SEND, "mapped", "touched_all_the_time"),
    "what a fetch has brought is not seen yet": Place("managed/coherence.c", "    if (!rc) rc = status;\n", "managed", "beside_launches"),
    "a kernel has its memory and is not posted": Place("launch.c", "    rc = managed_launch(s);\n", "managed", "beside_launches"),
    "a fill has its memory and is not posted": Place("memory/copy.c", FILL, "managed", "beside_launches"),
}


@pytest.mark.parametrize("name", PLACES)
def test_another_thread_comes_between(pool: Server, build: Callable[..., Path], tmp_path: Path, name: str) -> None:
    place = PLACES[name]
    source, copy = OBJECTS / place.source, tmp_path / Path(place.source).name
    text = source.read_text().replace("#define _GNU_SOURCE\n", "")
    assert text.count(place.behind) == 1, f"{place.source} has changed: PLACES no longer fits"
    copy.write_text(f"#define _GNU_SOURCE\n#include <time.h>\n{text.replace(place.behind, place.behind + PAUSE)}")
    libraries = str(building.driver(tmp_path, instead={source: copy}).parent)
    env = clean_environment(LD_LIBRARY_PATH=libraries, GPUVIRT_POOL=pool.url, GPUVIRT_LINK="tcp", GPUVIRT_GPUS="1")
    assert_right(subprocess.run([build(place.program), place.case], env=env, capture_output=True, text=True, timeout=300, check=False))
