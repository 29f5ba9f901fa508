"""What is found of RDMA devices, and what is said to be in the way."""

from __future__ import annotations

import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import c_build
import pytest
from transport.fabrics import device, ib_port, roce_port, write_sysfs

from gpuvirt.transport import fabric_inventory
from gpuvirt.transport.fabric import Device, Fabric, Obstacle
from gpuvirt.transport.fabric_devices import devices_of_kernel, devices_of_pyverbs
from gpuvirt.transport.fabric_inventory import inspect, look

IB = device("mlx5_2", ib_port(1), ib_port(2, rate=10.0, state="INIT", lid=0x2B), numa=None)
ROCE = device("mlx5_10", roce_port("fe80::1", "10.0.0.1", "2001:db8::1", rate=2.5), numa=1)

LIBRARY = """
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
static const char *names[] = {NAMES NULL};
#ifdef CRASHES
__attribute__((constructor)) static void crash(void) { abort(); }
#endif
const char **ibv_get_device_list(int *n) {
    for (*n = 0; names[*n]; ++*n) {}
    if (*n) return names;
    errno = ENOSYS;
    return NULL;
}
const char *ibv_get_device_name(const char *device) { return device; }
void ibv_free_device_list(const char **list) { (void)list; }
"""


def library(folder: Path, *names: str, flags: tuple[str, ...] = ()) -> str:
    """A libibverbs that lists devices of these names."""
    folder.mkdir(exist_ok=True)
    (folder / "verbs.c").write_text(LIBRARY.replace("NAMES", "".join(f'"{name}", ' for name in names)))
    return str(c_build.library(folder / "libibverbs.so.1", [folder / "verbs.c"], flags=flags))


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Looks at a host with these devices, on which nothing is in the way but what the test puts there: no locked memory, no library."""
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    monkeypatch.setitem(sys.modules, "pyverbs.device", None)
    (tmp_path / "dev/infiniband").mkdir(parents=True)

    def look_at(*devices: Device, boxed: bool = False, **env: str) -> Fabric:
        write_sysfs(tmp_path / "sys", *devices)
        for number in range(len(devices)):
            file = tmp_path / f"dev/infiniband/uverbs{number}"
            if not file.exists() and not (tmp_path / "no files").exists():
                file.touch()
        listed = [one.name for one in devices]
        monkeypatch.setattr(fabric_inventory, "_load", lambda path, named: (listed, None))
        return look(tmp_path / "sys", tmp_path / "dev", env, boxed)

    look_at.folder = tmp_path  # type: ignore[attr-defined]
    return look_at


def texts(found: Fabric) -> list[str]:
    return [obstacle.text for obstacle in found.obstacles]


# ---- what is found --------------------------------------------------------------------------------------------------------------


def test_the_kernels_files(tmp_path: Path) -> None:
    found = devices_of_kernel(write_sysfs(tmp_path, ROCE, IB))
    assert found == [IB, ROCE]  # by number: 2 before 10; the empty places of the GID tables left out
    assert devices_of_kernel(tmp_path / "nothing") == []


def test_files_that_say_little(tmp_path: Path) -> None:
    (tmp_path / "class/infiniband/odd0/ports/1").mkdir(parents=True)
    (tmp_path / "class/infiniband/odd0/ports/x").mkdir()
    (tmp_path / "class/infiniband/odd0/ports/1/rate").write_text("fast\n")
    (found,) = devices_of_kernel(tmp_path)
    assert (found.name, found.type, found.numa, [port.rate for port in found.ports]) == ("odd0", "", None, [0.0])


def test_all_is_well(host: Any) -> None:
    found = host(ROCE, device("mlx5_2", ib_port()))
    assert found.obstacles == () and [one.name for one in found.usable()] == ["mlx5_2/1", "mlx5_10/1"]


def test_no_device_loads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *line, **more: pytest.fail("a process was started"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert inspect({"GPUVIRT_SYSFS": str(tmp_path)}) == Fabric()


class Opened:
    """A device as pyverbs opens it: a ConnectX with an InfiniBand port of 4 lanes of 100 Gb/s and a RoCE port of 25."""

    def __init__(self, name: str) -> None:
        if name == "closed":
            raise Error("Failed to open device closed")

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *error: object) -> None: ...

    def query_device(self) -> Any:
        return SimpleNamespace(phys_port_cnt=2, fw_version="28.36.1010", node_guid=0xC6E40000039B0398)

    def query_port(self, number: int) -> Any:
        common = {"phys_state": 5, "gid_tbl_len": 8, "state": 4 if number == 1 else 1}
        kind = {"link_layer": 1, "active_speed": 128, "active_width": 2, "lid": 3} if number == 1 else {"link_layer": 2, "lid": 0}
        return SimpleNamespace(**({"active_speed": 32, "active_width": 1} | common | kind))

    def query_gid_table(self, most: int) -> list[Any]:
        assert most == 16

        def entry(port: int, index: int, type: int, text: str) -> Any:
            return SimpleNamespace(port_num=port, gid_index=index, gid_type=type, ndev_ifindex=1 if port == 2 else 0, gid_str=lambda: text)

        zeros = "0000:0000:0000:0000:0000:"
        local = f"fe80:{zeros}0000:000"
        return [entry(2, 3, 2, f"{zeros}ffff:0a00:0001"), entry(2, 0, 1, f"{local}1"), entry(1, 0, 0, f"{local}7")]


class Error(Exception):
    pass


def pyverbs(monkeypatch: pytest.MonkeyPatch, names: list[bytes] | None) -> None:
    """A stand-in for pyverbs; None: it has no devices, which it says by an error."""

    def listed() -> list[Any]:
        if names is None:
            raise Error("Failed to get devices list")
        return [SimpleNamespace(name=name, node_type=1) for name in names]

    modules = {"pyverbs": {}, "pyverbs.device": {"Context": Opened, "get_device_list": listed}, "pyverbs.pyverbs_error": {"PyverbsError": Error}}
    for name, content in modules.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)


def test_pyverbs(monkeypatch: pytest.MonkeyPatch) -> None:
    pyverbs(monkeypatch, [b"mlx5_1", b"closed"])
    closed, other = device("closed", ib_port()), device("not_listed", ib_port())
    known = device("mlx5_1", numa=1)
    first, found, last = devices_of_pyverbs([closed, known, other])
    assert (first, last) == (closed, other)  # what it cannot open, or does not list, is as the kernel says
    assert (found.name, found.type, found.guid, found.firmware, found.numa) == ("mlx5_1", "CA", "9803:9b03:0000:e4c6", "28.36.1010", 1)
    one, two = found.ports
    assert (one.number, one.state, one.physical, one.rate, one.layer, one.lid) == (1, "ACTIVE", "LinkUp", 400.0, "InfiniBand", 3)
    assert [(gid.index, gid.address, gid.type, gid.netdev) for gid in one.gids] == [(0, "fe80::7", "IB", "")]
    assert (two.number, two.state, two.rate, two.layer) == (2, "DOWN", 25.0, "Ethernet")
    assert [(gid.index, gid.address, gid.type) for gid in two.gids] == [(0, "fe80::1", "RoCE v1"), (3, "::ffff:10.0.0.1", "RoCE v2")]
    assert {gid.netdev for gid in two.gids} == {"lo"}


def test_pyverbs_without_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    pyverbs(monkeypatch, None)
    assert devices_of_pyverbs([]) == [] and devices_of_pyverbs([IB]) == [IB]
    monkeypatch.setitem(sys.modules, "pyverbs.device", None)
    assert devices_of_pyverbs([IB]) == [IB]


# ---- what is in the way ---------------------------------------------------------------------------------------------------------


def in_a_process(folder: Path, *devices: Device, **env: str) -> Fabric:
    """With the libraries as they are found by a process of its own."""
    write_sysfs(folder / "sys", *devices)
    return inspect({"GPUVIRT_SYSFS": str(folder / "sys"), "PYTHONPATH": str(Path(__file__).parents[2]), **env})


def test_the_library_lists_them(tmp_path: Path) -> None:
    found = in_a_process(tmp_path, IB, ROCE, GPUVIRT_IBVERBS=library(tmp_path / "lib", "mlx5_2", "mlx5_10"))
    assert [one.name for one in found.devices] == ["mlx5_2", "mlx5_10"] and not any("libibverbs" in text for text in texts(found))


@pytest.mark.parametrize("names", [["mlx5_2"], []])
def test_a_device_without_a_provider(tmp_path: Path, names: list[str]) -> None:
    found = in_a_process(tmp_path, IB, ROCE, GPUVIRT_IBVERBS=library(tmp_path / "lib", *names))
    assert [one.opens for one in found.devices if one.name == "mlx5_10"] == [False]
    (obstacle,) = [obstacle for obstacle in found.obstacles if obstacle.text.startswith("mlx5_10")]
    assert obstacle.text == "mlx5_10: libibverbs does not list it" and "ibverbs-providers" in obstacle.remedy and not obstacle.general


def test_no_library(tmp_path: Path) -> None:
    found = in_a_process(tmp_path, IB, GPUVIRT_IBVERBS=str(tmp_path / "none.so"))
    assert found.devices == (replace(IB, opens=found.devices[0].opens),) and found.usable() == []
    obstacle = found.obstacles[0]
    assert obstacle.general and obstacle.text.startswith("GPUVIRT_IBVERBS cannot be loaded: ") and "libibverbs.so.1" in obstacle.remedy


def test_no_library_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fabric_inventory, "LIBRARY", "libibverbs-that-nobody-has.so.1")
    obstacle = look(write_sysfs(tmp_path, IB), tmp_path, {}, False).obstacles[0]
    assert obstacle.text == "the library libibverbs-that-nobody-has.so.1 is not installed" and "ibverbs-providers" in obstacle.remedy


def test_a_library_that_crashes(tmp_path: Path) -> None:
    found = in_a_process(tmp_path, IB, GPUVIRT_IBVERBS=library(tmp_path / "lib", "mlx5_2", flags=("-DCRASHES",)))
    assert texts(found) == ["the RDMA devices cannot be listed: the process that asks them failed"] and found.blocked


def test_no_answer_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fabric_inventory, "TIME_LIMIT", 0.001)
    assert texts(in_a_process(tmp_path, IB)) == ["the RDMA devices cannot be listed: they did not answer in time"]


def test_the_devices_file_is_not_there(host: Any) -> None:
    (host.folder / "no files").touch()
    found = host(device("mlx5_2", ib_port()))
    (obstacle,) = found.obstacles
    assert obstacle.text.endswith("dev/infiniband/uverbs0 is not there") and "--device" in obstacle.remedy and found.usable() == []


def test_the_devices_file_cannot_be_opened(host: Any) -> None:
    (host.folder / "dev/infiniband/uverbs1").mkdir()
    found = host(device("mlx5_2", ib_port()), device("mlx5_3", ib_port()))
    (obstacle,) = found.obstacles
    assert obstacle.text.startswith("mlx5_3: ") and "uverbs1 cannot be opened: Is a directory" in obstacle.text and "--device" in obstacle.remedy
    assert [one.name for one in found.usable()] == ["mlx5_2/1"]


def test_the_kernel_has_no_device_file(host: Any) -> None:
    write_sysfs(host.folder / "sys", device("mlx5_2", ib_port()))
    (host.folder / "sys/class/infiniband_verbs/uverbs0/ibdev").write_text("another\n")
    found = look(host.folder / "sys", host.folder / "dev", {"GPUVIRT_IBVERBS": library(host.folder / "lib", "mlx5_2")}, False)
    assert [(o.text, o.remedy) for o in found.obstacles] == [("mlx5_2: the kernel has no device file for it", "load its module: modprobe ib_uverbs")]


@pytest.mark.parametrize(
    ("port", "state", "remedy"),
    [
        (ib_port(state="DOWN", physical="Polling"), "DOWN, Polling", "cable"),
        (ib_port(state="INIT"), "INIT, LinkUp", "opensm"),
        (roce_port("10.0.0.1", state="DOWN", physical="Disabled"), "DOWN, Disabled", "ip link set DEV up"),
        (roce_port("10.0.0.1", state="DOWN"), "DOWN, LinkUp", "ip link set DEV up"),
    ],
)
def test_no_port_is_active(host: Any, port: Any, state: str, remedy: str) -> None:
    found = host(device("mlx5_0", port))
    (obstacle,) = found.obstacles
    assert obstacle.text == f"mlx5_0 port 1 is not active: it is {state}" and remedy in obstacle.remedy and found.usable() == []


def test_a_port_without_a_cable_beside_one_that_works(host: Any) -> None:
    assert host(device("mlx5_0", ib_port(1), ib_port(2, state="DOWN", physical="Polling"))).obstacles == ()


def test_no_gid_of_roce_v2(host: Any) -> None:
    found = host(device("mlx5_0", roce_port("10.0.0.1", v2=False)))
    (obstacle,) = found.obstacles
    assert obstacle.text == "mlx5_0 port 1 has no GID of RoCE v2" and "ip addr add" in obstacle.remedy and "eth0" in obstacle.remedy
    assert found.usable() == []


@pytest.mark.parametrize(
    ("text", "said"),
    [("7", "mlx5_0 port 1 has no GID 7, which GPUVIRT_GID_INDEX names; it has 0, 1"), ("x", "GPUVIRT_GID_INDEX is 'x'")],
)
def test_a_gid_that_is_not_there(host: Any, text: str, said: str) -> None:
    found = host(device("mlx5_0", roce_port("10.0.0.1")), GPUVIRT_GID_INDEX=text)
    assert texts(found) == [said] and found.usable() == []
    assert host(device("mlx5_0", roce_port("10.0.0.1")), GPUVIRT_GID_INDEX="0").usable()[0].gid().index == 0


def test_devices_for_something_else(host: Any) -> None:
    found = host(device("siw0", roce_port("10.0.0.1"), type="RNIC"))
    assert texts(found) == ["none of the RDMA devices is for InfiniBand or RoCE (they are: RNIC)"] and found.blocked


@pytest.mark.parametrize("boxed", [False, True])
@pytest.mark.parametrize(("limit", "enough"), [(8 << 20, False), ((64 << 20) - 1, False), (64 << 20, True), (resource.RLIM_INFINITY, True)])
@pytest.mark.parametrize("may", [False, True])
def test_locked_memory(host: Any, monkeypatch: pytest.MonkeyPatch, boxed: bool, limit: int, enough: bool, may: bool) -> None:
    """CAP_IPC_LOCK makes the limit void, but no worker in a box has it."""
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limit, limit))
    monkeypatch.setattr(fabric_inventory, "_may_lock_memory", lambda: may)
    found = host(IB, boxed=boxed)
    if enough or (may and not boxed):
        assert found.obstacles == ()
    else:
        (obstacle,) = found.obstacles
        assert "RLIMIT_MEMLOCK" in obstacle.text and "registers 64.0 MiB" in obstacle.text and obstacle.general
        assert all(word in obstacle.remedy for word in ("LimitMEMLOCK=64M", "--ulimit memlock=67108864", "limits.conf"))


@pytest.mark.parametrize(
    ("capabilities", "users", "may"),
    [
        ("000001ffffffffff", "0 0 4294967295", True),
        ("0000000000004000", "0 0 4294967295", True),
        ("0000000000003fff", "0 0 4294967295", False),
        ("000001ffffffffff", "0 1000 1", False),  # root of a container of its own: the kernel asks in the first namespace
    ],
)
def test_who_may_lock_memory(tmp_path: Path, capabilities: str, users: str, may: bool) -> None:
    (tmp_path / "status").write_text(f"Name:\tpython\nCapPrm:\t000001ffffffffff\nCapEff:\t{capabilities}\nCapBnd:\t000001ffffffffff\n")
    (tmp_path / "uid_map").write_text("         {}          {} {}\n".format(*users.split()))
    assert fabric_inventory._may_lock_memory(tmp_path) is may


def test_obstacles_survive_the_process(tmp_path: Path) -> None:
    """What the other process found arrives here, its remedy whole."""
    verbs = library(tmp_path / "lib", "mlx5_0")
    found = in_a_process(tmp_path, device("mlx5_0", roce_port("10.0.0.1")), GPUVIRT_GID_INDEX="9", GPUVIRT_IBVERBS=verbs)
    text, remedy = "mlx5_0 port 1 has no GID 9, which GPUVIRT_GID_INDEX names; it has 0, 1", "set it to one of these, or unset it"
    assert Obstacle(text, remedy) in found.obstacles and found.gid_index == 9
