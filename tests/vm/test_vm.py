"""The virtual machine, and links over verbs in it, on the kernel's own verbs stack."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from vm import initramfs, packages

ROOT = Path(__file__).resolve().parents[2]
NOT_RUN = 77

def machine(*line: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([sys.executable, "-m", "tests.vm", *line], cwd=ROOT, capture_output=True, text=True, timeout=2000)
    if done.returncode == NOT_RUN:
        pytest.skip(f"no virtual machine here: {done.stderr[-500:]}")
    return done


def test_modules_load_behind_those_they_need(tmp_path: Path) -> None:
    (tmp_path / "modules.dep").write_text("a/one-two.ko: b/three.ko c/four.ko\nb/three.ko: c/four.ko\nc/four.ko:\nd/five.ko:\n")
    order = initramfs.load_order(tmp_path, ["one_two", "built_in", "three", "five"])
    assert [path.name for path in order] == ["four.ko", "three.ko", "one-two.ko", "five.ko"]


def test_only_new_packages_are_taken() -> None:
    said = "Inst libudev1 [252.38] (252.39 Debian [amd64])\nInst qemu-system-x86 (1:7.2 Debian [amd64])\nConf qemu-system-x86 (1:7.2)\n"
    assert [name for name, _ in packages.NEW.findall(said)] == ["qemu-system-x86"]


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_status_output_and_what_stays() -> None:
    """The command's own status and output, as root, on another kernel; what it writes does not reach the host."""
    written = ROOT / "build-tests" / "written-in-the-guest"
    done = machine("run", "--seconds", "200", "--", "bash", "-c", f"uname -r; id -u; echo x > {written}; ls {written}; exit 7")
    assert done.returncode == 7, done.stderr
    release, user, path = done.stdout.split()
    assert release != Path("/proc/sys/kernel/osrelease").read_text().strip() and (user, path) == ("0", str(written)) and not written.exists()


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_a_command_that_does_not_end() -> None:
    done = machine("run", "--seconds", "25", "--", "sleep", "1000")
    assert done.returncode == 124 and "took longer than 25 s" in done.stderr


@pytest.mark.long
@pytest.mark.timeout(2100)
def test_verbs_on_soft_roce() -> None:
    done = machine("rdma")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    passed = re.findall(r"^part (\S+): status 0, \d+ s, (\d+) packets$", done.stdout, re.MULTILINE)
    assert {"pingpong", "links/bulk_both_ways", "resume/verbs_cut", "program", "cupy"} <= {name for name, packets in passed if int(packets) > 100}
