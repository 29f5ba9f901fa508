"""Whether kernels reach all memory of their worker is asked of the driver, logged by the server and said by doctor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import c_build
import pytest

from gpuvirt.client import checks
from gpuvirt.server.devices import take_inventory
from gpuvirt.server.options import ServeOptions

DRIVER = """
#include <string.h>
int cuInit(unsigned flags) { return (int)flags; }
int cuDeviceGetCount(int *n) { return *n = 1, 0; }
int cuDeviceGet(int *d, int n) { return *d = n, 0; }
int cuDeviceGetName(char *name, int size, int d) { return strncpy(name, "GPU", (unsigned)size), d; }
int cuDeviceTotalMem_v2(unsigned long *size, int d) { return *size = 1ul << 30, d; }
int cuDeviceGetAttribute(int *value, int which, int d) { return *value = which == 88 && PAGEABLE == 1, PAGEABLE == 2 ? 1 : d; }
"""


@pytest.mark.parametrize(("answer", "reached"), [(0, False), (1, True), (2, False)])  # 2: a driver that does not know the attribute
def test_driver_is_asked(tmp_path: Path, answer: int, reached: bool) -> None:
    (tmp_path / "driver.c").write_text(DRIVER)
    driver = c_build.library(tmp_path / "libcuda.so.1", [tmp_path / "driver.c"], flags=[f"-DPAGEABLE={answer}", "-fPIC"])
    inventory = take_inventory(ServeOptions(backend="cuda", driver=driver))
    assert [device.pageable_access for device in inventory.devices] == [reached] and inventory.pageable_access is reached


class Status:
    """As much of a pool's status as the check reads."""

    class greeting:
        control_port = 1


@pytest.mark.parametrize(("backend", "reached", "said"), [("cuda", True, "warn"), ("cuda", False, "ok"), ("soft", False, None)])
def test_doctor_says_it(monkeypatch: pytest.MonkeyPatch, backend: str, reached: bool, said: str | None) -> None:
    def ask(status: Any, op: str) -> dict[str, Any]:
        from gpuvirt import __version__

        return {"backend": backend, "version": __version__, "pageable_access": reached}

    monkeypatch.setattr(checks, "ask", ask)
    found = {result.name: result for result in checks._control(Status())}  # type: ignore[arg-type]
    assert ("pageable access" in found) is (said is not None)
    if said:
        assert found["pageable access"].status == said
        assert bool(found["pageable access"].remedy) is reached
