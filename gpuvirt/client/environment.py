"""The variables that make a program use remote GPUs. `gpuvirt run` sets them, `gpuvirt env` prints them; nothing else is needed."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuvirt import paths
from gpuvirt.client import cuda_libraries
from gpuvirt.client.settings import Settings, format_compute
from gpuvirt.client.userfault import may_watch_pages
from gpuvirt.errors import GpuvirtError
from gpuvirt.transport.pool import PoolStatus

# Variables for software GPUs: their compute capability (13.0) is one that no compiler generates machine code for.
SOFTWARE = {
    "CUPY_COMPILE_WITH_PTX": ("1", "CuPy compiles to PTX, which a software GPU runs"),
    "NUMBA_FORCE_CUDA_CC": ("9.0", "Numba does not know compute capability 13.0"),
    "TRITON_DEFAULT_BACKEND": ("gpuvirt", "Triton does not know it either: gpuvirt's Triton backend (on PYTHONPATH) names one that it knows"),
    "TF_CUDNN_USE_AUTOTUNE": ("0", "TensorFlow would compile every algorithm of a convolution to time them"),
}
DEVICE_FILE = Path("/dev/nvidia0")
PTXAS = ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH")
# XLA's autotuner runs each product in dozens of ways: on a software GPU a minute where the program takes two seconds, for times that tell nothing.
XLA = ("--xla_gpu_autotune_level=0",)


@dataclass(frozen=True)
class Variable:
    """One environment variable.

    Attributes:
        prefix: `value` is put before the variable's present value, separated by a colon; suffix: behind it.
        optional: a value that the user has set is kept.
        flags: the variable holds flags; `value` adds those that the user has not set. A value that is no flag (a file of flags) is kept.
    """

    name: str
    value: str
    comment: str
    prefix: bool = False
    optional: bool = False
    flags: bool = False
    suffix: bool = False

    def merged(self, old: str | None) -> str:
        """The value to set, `old` being the present one."""
        if self.flags and old:
            given = [flag.partition("=")[0] for flag in old.split()]
            mine = [flag for flag in self.value.split() if flag.partition("=")[0] not in given]
            return old if not given or not given[0].startswith("-") else " ".join([*mine, old])
        if not (self.prefix or self.suffix) or not old:
            return self.value
        mine = self.value.split(":")
        if self.suffix:
            there = old.split(":")
            return ":".join([*there, *(part for part in mine if part not in there)])
        parts = (old.replace(" ", ":") if self.name == "LD_PRELOAD" else old).split(":")  # the loader accepts blanks, too
        return ":".join([*mine, *(part for part in parts if part and part not in mine)])

    def exported(self) -> str:
        """The shell command that sets it."""
        value = shlex.quote(self.value)
        if self.flags:  # of repeated flags the last one takes effect
            setting = f'export {self.name}={value}"${{{self.name}:+ ${self.name}}}"'
            return f'case "${{{self.name}:--}}" in -*) {setting};; esac'
        if self.suffix:
            value = f'"${{{self.name}:+${self.name}:}}"{value}'
        elif self.prefix:
            value += f'"${{{self.name}:+:${self.name}}}"'
        elif self.optional:
            value = f'"${{{self.name}-{self.value}}}"'
        return f"export {self.name}={value}"

    def is_announced(self, environment: Mapping[str, str]) -> bool:
        """Whether it sets a variable of another program (optional, flags) that the user has not set; `gpuvirt run` names these on stderr."""
        old = environment.get(self.name)
        return (self.optional and old is None) or (self.flags and self.merged(old) != old)


def variables(settings: Settings, status: PoolStatus, command: Sequence[str] = ()) -> list[Variable]:
    """All variables that a program needs to use this pool with these settings.

    Args:
        command: the program, if it is known.

    Raises:
        GpuvirtError: the libraries are not built, or their path has a space or a colon, which LD_PRELOAD cannot hold.
    """
    cuda, nvml = paths.library(paths.CUDA), paths.library(paths.NVML)
    preloaded = [cuda, nvml, *([paths.program(paths.COMPAT)] if status.software else [])]
    if not DEVICE_FILE.exists():  # JAX looks for it before it loads the driver
        preloaded.append(paths.program(paths.DEVICE_FILES))
    if not may_watch_pages():
        preloaded.append(paths.program(paths.HOST_IO))
    link_dir = paths.unversioned_dir()
    unfit = [path.parent for path in preloaded if set(str(path.parent)) & set(": ")]
    if unfit:
        raise GpuvirtError(f"LD_PRELOAD cannot hold the path {unfit[0]} (a space or a colon in it); install gpuvirt elsewhere or set GPUVIRT_LIB_DIR")
    folders = dict.fromkeys([str(cuda.parent), str(link_dir)])
    found = [
        Variable("LD_PRELOAD", ":".join(map(str, preloaded)), "gpuvirt's CUDA driver and NVML", prefix=True),
        Variable("LD_LIBRARY_PATH", ":".join(folders), "for programs and compilers that search for libcuda.so", prefix=True),
        Variable("GPUVIRT_POOL", status.address.url, "the server"),
        Variable("GPUVIRT_LINK", settings.link, "how to reach it: auto, shm, tcp, tcp(channels=4), verbs(rails=2), delay(rtt=30ms,rate=10gbit,tcp)"),
    ]
    if there := cuda_libraries.folders(command, os.environ):
        found.append(Variable("LD_LIBRARY_PATH", ":".join(there), "CUDA libraries of the program's Python", suffix=True))
    if settings.gpus:
        found.append(Variable("GPUVIRT_GPUS", str(settings.gpus), "how many GPUs"))
    if settings.lease:
        found.append(Variable("GPUVIRT_LEASE", settings.lease.hex(), "the lease of them, which all programs share"))
    elif os.environ.get("GPUVIRT_LEASE"):
        found.append(Variable("GPUVIRT_LEASE", "", "the lease of this shell is another pool's"))
    if settings.memory is not None:
        found.append(Variable("GPUVIRT_MEMORY", str(settings.memory), "bytes per GPU"))
    if settings.compute is not None:
        found.append(Variable("GPUVIRT_COMPUTE", format_compute(settings.compute), "part of each GPU's compute"))
    if settings.capability is not None:
        found.append(Variable("GPUVIRT_CAPABILITY", settings.capability, "the compute capability that software GPUs report"))
    found += _waiting(settings)
    if settings.quiet:
        found.append(Variable("GPUVIRT_QUIET", "1", "nothing is said of what takes long"))
    if settings.stats:
        found.append(Variable("GPUVIRT_STATS", settings.stats, "file for the statistics at exit; - is stderr"))
    if settings.token:
        found.append(Variable("GPUVIRT_TOKEN", settings.token, "a secret"))
    return found + (software() if status.software else [])


def _waiting(settings: Settings) -> list[Variable]:
    """How it waits for GPUs. What this process's environment says otherwise is undone."""
    values = {
        "GPUVIRT_NO_WAIT": ("1" if settings.no_wait else "", "refused instead of waiting for GPUs"),
        "GPUVIRT_WAIT": ("" if settings.wait is None else f"{round(settings.wait * 1000)}ms", "how long to wait for GPUs at most"),
        "GPUVIRT_PRIORITY": (str(settings.priority or ""), "among those that wait"),
    }
    return [Variable(name, value, comment) for name, (value, comment) in values.items() if value or os.environ.get(name)]


def software() -> list[Variable]:
    """Further variables for programs on software GPUs.

    Raises:
        GpuvirtError: the libraries are not built.
    """
    ptxas = paths.program(f"{paths.COMPAT_PROGRAMS}/ptxas")
    return [
        Variable("PATH", str(ptxas.parent), "a ptxas that passes PTX through, for XLA", prefix=True),
        Variable("PYTHONPATH", str(paths.PYTHON_COMPAT), "Triton's backend for software GPUs", prefix=True),
        *(Variable(name, str(ptxas), "the same for Triton", optional=True) for name in PTXAS),
        Variable("TRITON_LIBCUDA_PATH", str(paths.library(paths.CUDA).parent), "where Triton's own compiler finds the driver", optional=True),
        *(Variable(name, value, comment, optional=True) for name, (value, comment) in SOFTWARE.items()),
        Variable("XLA_FLAGS", " ".join(XLA), "no autotuning in XLA: on a software GPU it takes long and tells nothing", flags=True),
    ]


def apply(found: list[Variable], environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """A copy of the environment (by default this process's) with the variables set."""
    env = dict(os.environ if environment is None else environment)
    for variable in found:
        if not (variable.optional and variable.name in env):
            env[variable.name] = variable.merged(env.get(variable.name))
    return env
