"""The variables that put a program on remote GPUs. `gpuvirt run` sets them, `gpuvirt env` prints them; nothing else is needed."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from gpuvirt import paths
from gpuvirt.client.settings import Settings
from gpuvirt.errors import GpuvirtError
from gpuvirt.transport.pool import PoolStatus

# What programs need to know of a software GPU, whose compute capability (13.0) no compiler has machine code for.
SOFTWARE = {
    "CUPY_COMPILE_WITH_PTX": ("1", "CuPy would make machine code; a software GPU runs PTX"),
    "NUMBA_FORCE_CUDA_CC": ("9.0", "Numba does not know compute capability 13.0"),
    "TRITON_DEFAULT_BACKEND": ("gpuvirt", "nor does Triton: its own backend, for an architecture that it knows (found on PYTHONPATH)"),
    "TF_CUDNN_USE_AUTOTUNE": ("0", "TensorFlow would have every algorithm for a convolution compiled, to time them"),
}
PTXAS = ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH")
# XLA times its choices behind a kernel that waits for a word of mapped host memory, and puts kernels into CUDA graphs; there is neither yet.
XLA = ("--xla_gpu_autotune_level=0", "--xla_gpu_enable_command_buffer=")


@dataclass(frozen=True)
class Variable:
    """One variable.

    prefix: `value` goes in front of what the variable holds already, with a colon between; optional: what the user has set stays;
    flags: it holds flags, of which those that the user gives stay, and a file's name, which is how some programs take many flags, stays too.
    """

    name: str
    value: str
    comment: str
    prefix: bool = False
    optional: bool = False
    flags: bool = False

    def merged(self, old: str | None) -> str:
        """The variable's value where it was `old` before."""
        if self.flags and old:
            given = [flag.partition("=")[0] for flag in old.split()]
            mine = [flag for flag in self.value.split() if flag.partition("=")[0] not in given]
            return old if not given or not given[0].startswith("-") else " ".join([*mine, old])
        if not self.prefix or not old:
            return self.value
        mine = self.value.split(":")
        parts = (old.replace(" ", ":") if self.name == "LD_PRELOAD" else old).split(":")  # the loader takes blanks as well
        return ":".join([*mine, *(part for part in parts if part and part not in mine)])

    def exported(self) -> str:
        """The line of shell that sets it."""
        value = shlex.quote(self.value)
        if self.flags:  # the last of several counts
            setting = f'export {self.name}={value}"${{{self.name}:+ ${self.name}}}"'
            return f'case "${{{self.name}:--}}" in -*) {setting};; esac'
        if self.prefix:
            value += f'"${{{self.name}:+:${self.name}}}"'
        elif self.optional:
            value = f'"${{{self.name}-{self.value}}}"'
        return f"export {self.name}={value}"

    def makes_known(self, environment: Mapping[str, str]) -> bool:
        """Whether it tells the program something that the user has not decided."""
        old = environment.get(self.name)
        return (self.optional and old is None) or (self.flags and self.merged(old) != old)


def variables(settings: Settings, status: PoolStatus) -> list[Variable]:
    """Everything a program needs to use this pool with these settings.

    Raises:
        GpuvirtError: the libraries are not built, or lie at a path that LD_PRELOAD cannot hold.
    """
    cuda, nvml = paths.library(paths.CUDA), paths.library(paths.NVML)
    preloaded = [cuda, nvml, *([paths.program(paths.COMPAT)] if status.software else [])]
    link_dir = paths.unversioned_dir()
    unfit = [path.parent for path in preloaded if set(str(path.parent)) & set(": ")]
    if unfit:
        raise GpuvirtError(f"LD_PRELOAD cannot hold the path {unfit[0]} (a space or a colon in it); install gpuvirt elsewhere or set GPUVIRT_LIB_DIR")
    folders = dict.fromkeys([str(cuda.parent), str(link_dir)])
    found = [
        Variable("LD_PRELOAD", ":".join(map(str, preloaded)), "the CUDA driver and NVML, for whatever loads them", prefix=True),
        Variable("LD_LIBRARY_PATH", ":".join(folders), "for programs and compilers that look for libcuda.so themselves", prefix=True),
        Variable("GPUVIRT_POOL", status.address.url, "the server"),
        Variable("GPUVIRT_LINK", settings.link, "how to reach it: auto, shm, tcp, tcp(channels=4), delay(rtt=30ms,rate=10gbit,tcp)"),
        Variable("GPUVIRT_GPUS", str(settings.gpus), "how many GPUs"),
    ]
    if settings.memory is not None:
        found.append(Variable("GPUVIRT_MEMORY", str(settings.memory), "bytes per GPU"))
    if settings.capability is not None:
        found.append(Variable("GPUVIRT_CAPABILITY", settings.capability, "the compute capability that software GPUs tell the program"))
    if settings.stats:
        found.append(Variable("GPUVIRT_STATS", settings.stats, "where to write the figures at exit; - is stderr"))
    if settings.token:
        found.append(Variable("GPUVIRT_TOKEN", settings.token, "a secret"))
    return found + (software() if status.software else [])


def software() -> list[Variable]:
    """What programs need in addition where the GPUs are software ones.

    Raises:
        GpuvirtError: the libraries are not built.
    """
    ptxas = paths.program(f"{paths.COMPAT_PROGRAMS}/ptxas")
    return [
        Variable("PATH", str(ptxas.parent), "a ptxas that hands PTX through, for XLA", prefix=True),
        Variable("PYTHONPATH", str(paths.PYTHON_COMPAT), "Triton's backend for software GPUs", prefix=True),
        *(Variable(name, str(ptxas), "the same for Triton", optional=True) for name in PTXAS),
        Variable("TRITON_LIBCUDA_PATH", str(paths.library(paths.CUDA).parent), "where Triton's own compiler finds the driver", optional=True),
        *(Variable(name, value, comment, optional=True) for name, (value, comment) in SOFTWARE.items()),
        Variable("XLA_FLAGS", " ".join(XLA), "no autotuning (it needs mapped host memory) and no CUDA graphs in XLA", flags=True),
    ]


def apply(found: list[Variable], environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """An environment with the variables in it."""
    env = dict(os.environ if environment is None else environment)
    for variable in found:
        if not (variable.optional and variable.name in env):
            env[variable.name] = variable.merged(env.get(variable.name))
    return env
