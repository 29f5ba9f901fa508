"""A machine in software emulation (qemu, tcg): Debian's kernel, the host's files as its root, one command, whose output and status come back."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import initramfs
from .packages import Tree, kernel_package

STORE = Path(__file__).resolve().parents[2] / "build-tests" / "vm"
HOST_PACKAGES = ("qemu-system-x86", "busybox-static", "kmod")
POLL_S = 0.5
INITRAMFS = "initramfs.gz"
SEARCHED = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Nothing that is random happens to a machine without devices: the kernel believes the emulated processor's numbers.
KERNEL_LINE = "console=ttyS0 panic=-1 loglevel=4 mitigations=off random.trust_cpu=on"


class NoAnswer(Exception):
    """The machine ended, or its time was over, before the command had."""


@dataclass(frozen=True)
class Outcome:
    status: int
    output: str
    seconds: float


class Machine:
    """`packages` are those that the guest has beside what the host has."""

    def __init__(self, packages: Sequence[str] = (), *, store: Path = STORE, cpus: int = 2, memory_mib: int = 3072) -> None:
        self.store, self._cpus, self._memory = store, cpus, memory_mib
        self.tree = Tree(store)
        self.tree.add([*HOST_PACKAGES, *packages])
        kernel = kernel_package()
        self.tree.add([kernel], alone=True)
        self._release = kernel.removeprefix("linux-image-")
        self._modules = self.tree.root / "usr/lib/modules" / self._release
        if not (self._modules / "modules.dep").exists():
            line = ["depmod", "-b", str(self.tree.root), self._release]  # kmod is all of its programs, by the name it is called by
            subprocess.run(line, executable=self.tree.program("kmod"), env=self.tree.environment(), check=True, timeout=120)

    def run(self, command: str, *, seconds: float, environment: Mapping[str, str] | None = None, show: bool = True) -> Outcome:
        """Boots, runs `command` in bash as root, and ends. `seconds` of the host's are for all of it; `show`: the output goes to stdout, too."""
        with tempfile.TemporaryDirectory(prefix="run-", dir=self.store) as folder:
            return self._run(Path(folder), command, seconds, environment or {}, show)

    def _run(self, folder: Path, command: str, seconds: float, environment: Mapping[str, str], show: bool) -> Outcome:
        exchange, console = folder / "exchange", folder / "console.log"
        exchange.mkdir()
        initramfs.make(folder / INITRAMFS, self.tree.program("busybox"), self._modules)
        settings = {"PATH": SEARCHED, "HOME": "/root", "LC_ALL": "C.UTF-8", **environment}
        exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in settings.items())
        (exchange / "command.sh").write_text(exports + command + "\n")
        (exchange / "output").touch()
        started = time.monotonic()
        line, own = self._line(folder, exchange, console), self.tree.environment()
        with (folder / "errors").open("w") as errors, subprocess.Popen(line, env=own, stdin=subprocess.DEVNULL, stderr=errors) as qemu:
            try:
                self._follow(qemu, exchange / "output", started + seconds, show)
            finally:
                qemu.kill()
        said = (folder / "errors").read_text(errors="replace")[-2000:]
        output = (exchange / "output").read_text(errors="replace")
        status = (exchange / "status").read_text().strip() if (exchange / "status").exists() else ""
        if not status:
            over = time.monotonic() - started >= seconds
            last = (console.read_text(errors="replace") if console.exists() else "")[-2000:]
            raise NoAnswer(f"the machine {f'took longer than {seconds:.0f} s' if over else 'ended without an answer'}: {said}{last}")
        return Outcome(int(status), output, time.monotonic() - started)

    def _follow(self, qemu: subprocess.Popen[bytes], output: Path, until: float, show: bool) -> None:
        with output.open(errors="replace") as lines:
            while True:
                ended = qemu.poll() is not None
                new = lines.read()
                if show and new:
                    sys.stdout.write(new)
                    sys.stdout.flush()
                if ended or time.monotonic() > until:
                    return
                time.sleep(POLL_S)

    def _line(self, folder: Path, exchange: Path, console: Path) -> list[str]:
        root = self.tree.root
        firmware = [part for name in ("qemu", "seabios") if (root / "usr/share" / name).exists() for part in ("-L", f"{root}/usr/share/{name}")]
        shares = [("host", Path("/"), ",readonly=on"), ("packages", root, ",readonly=on"), ("exchange", exchange, "")]
        return [
            str(self.tree.program("qemu-system-x86_64")), *firmware,
            "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", str(self._cpus), "-m", str(self._memory),
            "-nodefaults", "-display", "none", "-no-reboot", "-serial", f"file:{console}",
            "-kernel", str(root / "boot" / f"vmlinuz-{self._release}"), "-initrd", str(folder / INITRAMFS), "-append", KERNEL_LINE,
            *(part for tag, path, more in shares
              for part in ("-virtfs", f"local,path={path},mount_tag={tag},security_model=none,multidevs=remap{more}")),
        ]  # fmt: skip


__all__ = ["Machine", "NoAnswer", "Outcome"]
