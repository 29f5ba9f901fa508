"""The replacements of ptxas and nvJitLink that programs use with software GPUs."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import c_build
import pytest
from e2e.harness import HERE, Server, assert_right, run_program

from gpuvirt import paths
from gpuvirt.demo.programs import find_nvcc

PTX = "// by hand { \n.version 8.7\n.target sm_120a, debug\n.address_size 64\n.visible .entry k() { ret; }\n"


def ptxas(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = paths.program(f"{paths.COMPAT_PROGRAMS}/ptxas")
    return subprocess.run([program, *arguments], capture_output=True, text=True, cwd=folder, timeout=100, check=False)


@pytest.mark.parametrize(
    "arguments",
    [
        # as Triton calls it, as XLA does, and in other orders
        ["-lineinfo", "--fmad=false", "-v", "--opt-level", "0", "--regAllocOptLevel=2", "--gpu-name=sm_130a", "in.ptx", "-o", "out"],
        ["in.ptx", "-o", "out", "-arch=sm_130a", "--warn-on-spills", "-v"],
        ["-arch", "sm_90", "--output-file=out", "-O3", "-maxrregcount", "64", "in.ptx"],
        ["--output-file", "out", "--gpu-name", "sm_90", "-g", "-suppress-debug-info", "in.ptx"],
    ],
)
def test_ptxas_hands_ptx_through(tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "in.ptx").write_text(PTX)
    done = ptxas(tmp_path, *arguments)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out").read_bytes() == PTX.encode() + b"\0"
    assert ("handed through" in done.stderr) == ("-v" in arguments) and done.stdout == ""


def test_ptxas_tells_a_version_that_suits(tmp_path: Path) -> None:
    done = ptxas(tmp_path, "--version")
    assert done.returncode == 0 and re.search(r"release (\d+\.\d+), V\1\.\d+$", done.stdout, re.M)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("int main() {}", "no PTX"),
        (".version 8.0\n.visible .entry k() { ret; }", "no .target"),
        (PTX.replace("ret; }", "ret;"), "braces"),
        ("", "no PTX"),
    ],
)
def test_ptxas_refuses_what_is_no_ptx(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "in.ptx").write_text(text)
    done = ptxas(tmp_path, "in.ptx", "-o", "out")
    assert done.returncode == 255 and why in done.stderr and not (tmp_path / "out").exists()


def test_ptxas_misused(tmp_path: Path) -> None:
    (tmp_path / "in.ptx").write_text(PTX)
    for arguments in ([], ["missing.ptx"], ["in.ptx", "in.ptx"], ["in.ptx", "-o"], ["in.ptx", "-o", "no/such/folder/out"]):
        done = ptxas(tmp_path, *arguments)
        assert done.returncode == 255 and done.stderr.startswith("ptxas fatal"), arguments


def test_nvjitlink(pool: Server) -> None:
    import nvidia.cuda_nvrtc

    nvrtc = next(Path(nvidia.cuda_nvrtc.__path__[0], "lib").glob("libnvrtc.so.1*"))
    assert_right(run_program(pool, [sys.executable, HERE / "programs" / "nvjitlink.py", nvrtc]))


def test_nvrtc(pool: Server, build: Callable[..., Path]) -> None:
    """Without native/compat/nvrtc.c the first sm_130 is an invalid option."""
    import nvidia.cuda_nvrtc

    folder = Path(nvidia.cuda_nvrtc.__path__[0], "lib")
    library = next(folder.glob("libnvrtc.so.1*"))
    assert_right(run_program(pool, [build("nvrtc_cubin", "-Xlinker", f"{library},-rpath={folder}")]))


def test_nvrtc_opened_by_the_program(pool: Server, tmp_path: Path) -> None:
    """By dlopen and dlsym, as ctypes does: without native/compat/lookup.c sm_130 is an invalid option. Each library gets its own programs."""
    import nvidia.cuda_nvrtc

    folder = Path(nvidia.cuda_nvrtc.__path__[0], "lib")
    library = next(folder.glob("libnvrtc.so.1*"))
    another = tmp_path / library.name  # another file is another library
    shutil.copy(library, another)
    for file in folder.glob("libnvrtc-builtins*"):
        shutil.copy(file, tmp_path / file.name)
    line = [sys.executable, HERE / "programs" / "opens_nvrtc.py"]
    assert_right(run_program(pool, [*line, library]))
    assert_right(run_program(pool, [*line, another, library], LD_LIBRARY_PATH=str(tmp_path)))


def test_other_look_ups_are_the_c_librarys(pool: Server, tmp_path: Path) -> None:
    """Among them RTLD_NEXT, whose answer depends on who asks, and names of ours in other libraries."""
    (tmp_path / "back.c").write_text("int nvrtcGetCUBIN(void) { return 7; }\nint value(void) { return 5; }\n")
    (tmp_path / "front.c").write_text(
        "#define _GNU_SOURCE\n#include <dlfcn.h>\n"
        "int nvrtcGetCUBIN(void);\nint value(void) { return 1; }\nint linked(void) { return nvrtcGetCUBIN(); }\n"
        'int behind(void) { int (*next)(void) = (int (*)(void))dlsym(RTLD_NEXT, "value"); return next ? next() : -1; }\n'
    )
    back = c_build.library(tmp_path / "libback.so", [tmp_path / "back.c"])
    front = c_build.library(tmp_path / "libfront.so", [tmp_path / "front.c"], libraries=[f"-L{tmp_path}", "-lback", f"-Wl,-rpath,{tmp_path}"])
    code = (
        "import ctypes, sys\nfront, back = map(ctypes.CDLL, sys.argv[1:])\nprint(front.behind(), back.nvrtcGetCUBIN(), ctypes.CDLL(None).abs(-3))\n"
        "try: back.nvrtcCompileProgram\nexcept AttributeError as error: print('undefined symbol' in str(error))"
    )
    assert run_program(pool, [sys.executable, "-c", code, front, back]).stdout == "5 7 3\nTrue\n"


def test_nvvm(pool: Server, build: Callable[..., Path]) -> None:
    """Without native/compat/nvvm.c compute_130 is an unsupported option."""
    home = find_nvcc().resolve().parents[1]
    library = next(p for folder in ("lib", "lib64", "nvvm/lib64", "../nvvm/lib64") for p in sorted((home / folder).glob("libnvvm.so*")))
    assert_right(run_program(pool, [build("nvvm_arch", "-Xlinker", f"{library},-rpath={library.parent}")]))


LOOKS = """
import os, subprocess, sys
own = sys.argv[1]
print([os.path.exists(f"/dev/nvidia{x}") for x in ("0", "ctl", "1", "-uvm")], os.access("/dev/nvidia0", os.R_OK), os.path.exists("/dev/null"))
for line in ([own, "--version"], ["env", own, "--version"], [own + "-other"]):
    print("gpuvirt" in subprocess.run(line, capture_output=True, text=True).stdout)
pid = os.posix_spawn(own, [own, "missing.ptx"], os.environ)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.mark.slow
@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="this machine has device files")
def test_device_files_for_a_pool_of_drivers_own_gpus(chained: Server, tmp_path: Path) -> None:
    """JAX looks for them, whatever GPUs the pool has; a ptxas is replaced for software GPUs only."""
    own = tmp_path / "ptxas"
    own.write_text("#!/bin/sh\necho makes machine code\n")
    own.chmod(0o755)
    done = run_program(chained, [sys.executable, "-c", LOOKS.splitlines()[1] + "\n" + LOOKS.splitlines()[2] + "\n" + LOOKS.splitlines()[3], own])
    assert done.stdout.splitlines() == ["[True, True, False, False] True True"], done.stderr
    assert run_program(chained, [own, "--version"]).stdout == "makes machine code\n"


def test_what_frameworks_look_for(pool: Server, tmp_path: Path) -> None:
    """A ptxas that a program brings along gives way to ours; a GPU's device files seem to be there."""
    own = tmp_path / "ptxas"
    for path in (own, tmp_path / "ptxas-other"):
        path.write_text("#!/bin/sh\necho makes machine code\n")
        path.chmod(0o755)
    done = run_program(pool, [sys.executable, "-c", LOOKS, own])
    there = Path("/dev/nvidia1").exists(), Path("/dev/nvidia-uvm").exists()
    assert done.stdout.splitlines() == [f"[True, True, {there[0]}, {there[1]}] True True", "True", "True", "False", "255"], done.stderr
