"""The first file system of a kernel: busybox, modules in the order in which they load, and the program that makes the host's files the root."""

from __future__ import annotations

import gzip
import stat
from collections.abc import Sequence
from pathlib import Path

FIRST_MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay")

# Of the root the host's files are the lowest layer, the packages' lie over them, and what is written stays in memory. /run/vm is a folder of the
# host's in which the command finds what it is to do, and puts what came of it. The first process itself goes into the new root: the kernel shares its
# root, and looks for modprobe there when it needs a module.
INIT = """#!/bin/sh
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in /modules/*; do insmod "$module" || echo "cannot load $module"; done
plan9() { mount -t 9p -o "trans=virtio,version=9p2000.L,msize=262144,$3" "$1" "$2" || echo "cannot mount $1"; }
plan9 host /host ro,cache=loose
plan9 packages /packages ro,cache=loose
plan9 exchange /exchange rw
mount -t tmpfs upper /upper
mkdir /upper/data /upper/work
mount -t overlay -o lowerdir=/packages:/host,upperdir=/upper/data,workdir=/upper/work root /system || echo "cannot mount the root"
mount -t proc proc /system/proc
mount -t sysfs sys /system/sys
mount -t cgroup2 cgroup /system/sys/fs/cgroup
mount -t devtmpfs dev /system/dev
mkdir -p /system/dev/pts /system/dev/shm
mount -t devpts pts /system/dev/pts
for folder in dev/shm tmp run; do mount -t tmpfs -o mode=1777 "$folder" "/system/$folder"; done
mkdir /system/run/vm
mount -o bind /exchange /system/run/vm
hostname vm
ip link set lo up
echo 1 >/proc/sys/kernel/sysrq
exec chroot /system /bin/bash -c '
/bin/bash /run/vm/command.sh </dev/null >/run/vm/output 2>&1
echo $? >/run/vm/status
echo o >/proc/sysrq-trigger
sleep 60'
"""
FOLDERS = ("bin", "dev", "exchange", "host", "modules", "packages", "proc", "sys", "system", "upper")


def load_order(modules: Path, names: Sequence[str]) -> list[Path]:
    """The files of the modules named and of those that they need, which come first. `modules` is /lib/modules/RELEASE, after depmod."""
    needs: dict[str, list[str]] = {}
    paths: dict[str, str] = {}
    for line in (modules / "modules.dep").read_text().splitlines():
        path, _, others = line.partition(":")
        needs[path] = others.split()
        paths[Path(path).name.partition(".")[0].replace("-", "_")] = path
    order: dict[str, None] = {}
    for name in names:
        path = paths.get(name)
        if path is not None:  # else it is built into the kernel
            order |= dict.fromkeys([*reversed(needs[path]), path])
    return [modules / path for path in order]


def _entry(name: str, mode: int, data: bytes = b"") -> bytes:
    """One file in the format newc of cpio: 13 numbers of 8 digits, the name and the data, each filled up to a multiple of 4 bytes."""
    raw = name.encode() + b"\0"
    fields = (0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(raw), 0)
    head = b"070701" + b"".join(b"%08x" % field for field in fields) + raw
    return head + bytes(-len(head) % 4) + data + bytes(-len(data) % 4)


def make(target: Path, busybox: Path, modules: Path) -> None:
    parts = [_entry(name, stat.S_IFDIR | 0o755) for name in FOLDERS]
    parts += [_entry("init", stat.S_IFREG | 0o755, INIT.encode()), _entry("bin/busybox", stat.S_IFREG | 0o755, busybox.read_bytes())]
    parts.append(_entry("bin/sh", stat.S_IFLNK | 0o777, b"busybox"))
    for number, path in enumerate(load_order(modules, FIRST_MODULES)):
        parts.append(_entry(f"modules/{number:02}-{path.name}", stat.S_IFREG | 0o644, path.read_bytes()))
    parts.append(_entry("TRAILER!!!", 0))
    target.write_bytes(gzip.compress(b"".join(parts), 1))
