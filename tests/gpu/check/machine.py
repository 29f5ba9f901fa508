"""What this machine has: a driver, a Python that can run gpuvirt, libraries or the means to build them, nvcc, frameworks. Nothing is installed."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
WORK = ROOT / "build" / "gpu-check"
HEADERS = WORK / "headers"
WHEELS = ROOT / "build" / "gpu-wheels"  # what `make gpu-wheels` brought along for machines without a network
LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1", "libgpuvirt_worker.so")
DRIVER_PLACES = ("", "/usr/local/nvidia/lib64/", "/usr/local/nvidia/lib/", "/usr/lib/x86_64-linux-gnu/", "/usr/lib64/", "/usr/lib/wsl/lib/")
NEEDED = {"click": "click", "msgpack": "msgpack", "zmq": "pyzmq"}  # modules and their packages, of gpuvirt itself
NEEDED_SOFT = {"llvmlite": "llvmlite", "lz4": "lz4", "zstandard": "zstandard", "numpy": "numpy"}
FRAMEWORKS = {"cupy": "CuPy", "torch": "PyTorch", "jax": "JAX", "tensorflow": "TensorFlow"}


class Missing(Exception):
    """Something that a part cannot do without; the text says what to do."""


def driver() -> str | None:
    """The driver's version and first device in words; None when there is no driver with a device. Asked in a child: a driver stays in its process."""
    code = (
        "import ctypes,sys\n"
        f"for p in {DRIVER_PLACES!r}:\n"
        "    try: d = ctypes.CDLL(p + 'libcuda.so.1'); break\n"
        "    except OSError: pass\n"
        "else: sys.exit(1)\n"
        "v, n, name = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(200)\n"
        "if d.cuInit(0) or d.cuDriverGetVersion(ctypes.byref(v)) or d.cuDeviceGetCount(ctypes.byref(n)) or not n.value: sys.exit(1)\n"
        "d.cuDeviceGetName(name, 200, 0)\n"
        "print(f'{n.value} x {name.value.decode()}, CUDA {v.value // 1000}.{v.value % 1000 // 10}')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=clean_environment(), timeout=120, check=False)
    if done.returncode != 0:
        return None
    try:
        version = re.search(r"(\d+\.\d+(\.\d+)?)", Path("/proc/driver/nvidia/version").read_text())
    except OSError:
        version = None
    return done.stdout.strip() + (f", driver {version.group(1)}" if version else "")


def capability() -> str:
    """The first device's compute capability, as "90". "": there is none."""
    code = (
        "import ctypes\n"
        f"for p in {DRIVER_PLACES!r}:\n"
        "    try: d = ctypes.CDLL(p + 'libcuda.so.1'); break\n"
        "    except OSError: pass\n"
        "v = [ctypes.c_int(), ctypes.c_int()]\n"
        "bad = d.cuInit(0) or any(d.cuDeviceGetAttribute(ctypes.byref(n), a, 0) for n, a in zip(v, (75, 76)))\n"
        "if not bad: print(v[0].value * 10 + v[1].value)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=clean_environment(), timeout=120, check=False)
    return done.stdout.strip()


def clean_environment(**more: str) -> dict[str, str]:
    """This process's environment without anything of gpuvirt's but the folder of its libraries."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("GPUVIRT_") or k == "GPUVIRT_LIB_DIR"}
    folders = [str(ROOT), *([str(WORK / "wheels")] if (WORK / "wheels").is_dir() else []), env.get("PYTHONPATH", "")]
    return env | {"PYTHONPATH": ":".join(f for f in folders if f), "PYTHONUNBUFFERED": "1"} | more


def lacks(python: str, modules: dict[str, str]) -> list[str]:
    """Which packages this interpreter would need; all of them when it is too old."""
    code = "import sys, importlib.util as u\nif sys.version_info < (3, 11): print('Python>=3.11')\n"
    code += f"for m in {list(modules)!r}:\n    if not u.find_spec(m): print(m)"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, env=clean_environment(), check=False)
    return [modules.get(line, line) for line in done.stdout.split()] if done.returncode == 0 else ["a Python that starts"]


def pythons() -> list[str]:
    """Interpreters to look at: this one, the checkout's own, the one on PATH."""
    found = [sys.executable, str(ROOT / ".venv" / "bin" / "python"), shutil.which("python3") or ""]
    return list(dict.fromkeys(p for p in found if p and Path(p).exists()))


def unpack_wheels() -> list[str]:
    """Lays out the wheels that fit this interpreter: headers in one folder, packages that are not installed in another, which is for PYTHONPATH."""
    tags = [f"cp{sys.version_info[0]}{sys.version_info[1]}", "py3-", "py2.py3-", "abi3"]
    done = []
    for wheel in sorted(WHEELS.glob("*.whl")) if WHEELS.is_dir() else []:
        stable = re.search(r"-cp3(\d+)-abi3", wheel.name)
        if not any(tag in wheel.name for tag in tags) or (stable and int(stable.group(1)) > sys.version_info[1]):
            continue
        headers = wheel.name.startswith("nvidia_")
        if not headers and installed(wheel.name.split("-")[0]):
            continue
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(HEADERS if headers else WORK / "wheels")
        done.append(wheel.name)
    return done


def installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def driver_headers() -> Path | None:
    """The folder of the cuda.h that the programs of the driver API are written for; None: there is only the compiler's own, if any."""
    for place in (ROOT / ".venv" / "headers", HEADERS):
        folder = place / "nvidia" / "cu13" / "include"
        if (folder / "cuda.h").is_file():
            return folder
    return None


def gpuvirt_python(chained: bool) -> str:
    """An interpreter that can run `gpuvirt serve` and `gpuvirt run`.

    Raises:
        Missing: none can; the text lists what each lacks.
    """
    needed = NEEDED | (NEEDED_SOFT if chained else {})
    lacking = {python: lacks(python, needed) for python in pythons()}
    for python, packages in lacking.items():
        if not packages:
            return python
    unpack_wheels()
    if not lacks(sys.executable, needed):
        return sys.executable
    rest = "; ".join(f"{python} lacks {', '.join(packages)}" for python, packages in lacking.items())
    rescue = "Install them; or run `make gpu-wheels` where there is a network, and bring build/gpu-wheels along"
    raise Missing(f"gpuvirt's Python part cannot run: {rest}. {rescue}")


def libraries(python: str) -> tuple[Path, str]:
    """The folder of the built libraries, built first when there is none, and where it came from.

    Raises:
        Missing: there are none and they cannot be built here.
    """
    named = os.environ.get("GPUVIRT_LIB_DIR")
    for folder in [Path(named)] if named else [ROOT / "gpuvirt" / "lib", WORK / "lib"]:
        if all((folder / name).is_file() for name in LIBRARIES):
            newest = max(p.stat().st_mtime for p in (ROOT / "native").rglob("*") if p.suffix in (".c", ".h", ".toml", ".py"))
            old = newest > min((folder / name).stat().st_mtime for name in LIBRARIES)
            ctypes.CDLL(str(folder / "libgpuvirt_worker.so"))  # of another machine's C library, perhaps
            return folder, f"as found in {folder}" + (" (older than the sources)" if old else "")
    return WORK / "lib", build(python)


def build(python: str) -> str:
    """Builds the libraries into WORK/lib, with cmake where it is there, else with the C compiler alone; returns how."""
    compiler, cmake = shutil.which("cc") or shutil.which("gcc"), shutil.which("cmake")
    if not compiler:
        raise Missing(f"the libraries are not built and there is no C compiler; bring gpuvirt/lib along ({', '.join(LIBRARIES)})")
    if lacks(python, {"pycparser": "pycparser"}) and not unpack_wheels():
        raise Missing("the libraries are not built, which needs pycparser: bring gpuvirt/lib along, or build/gpu-wheels (make gpu-wheels)")
    find = [python, str(ROOT / "tools" / "find_headers.py")]
    env = clean_environment()
    found = subprocess.run(find, capture_output=True, text=True, env=env | {"PYTHONPATH": f"{HEADERS}:{env['PYTHONPATH']}"}, check=False)
    if found.returncode != 0:
        raise Missing(f"the libraries are not built, and building them needs NVIDIA's headers: {found.stderr.strip()}; make gpu-wheels brings them")
    folder = WORK / "build"
    (WORK / "lib").mkdir(parents=True, exist_ok=True)
    if cmake:
        generator = ["-G", "Ninja"] if shutil.which("ninja") else []
        lines = [[cmake, "-S", str(ROOT), "-B", str(folder), *generator, f"-DPython_EXECUTABLE={python}", "-DSKBUILD_STATE=wheel", "-DSKBUILD=2"]]
        lines.append([cmake, "--build", str(folder), "-j", str(os.cpu_count() or 2)])
        for line in lines:
            _must(line)
        for name in LIBRARIES:
            shutil.copy(folder / "lib" / name, WORK / "lib" / name)
        return "built here with cmake"
    _build_by_hand(python, compiler, found.stdout.strip().split(";"), folder)
    return f"built here with {compiler}"


def _must(line: list[str]) -> None:
    done = subprocess.run(line, capture_output=True, text=True, env=clean_environment(), check=False)
    if done.returncode != 0:
        raise Missing(f"{' '.join(line[:4])} ... failed: {(done.stdout + done.stderr)[-1500:]}")


def _build_by_hand(python: str, compiler: str, headers: list[str], folder: Path) -> None:
    """What CMakeLists.txt says, for a machine that has only a C compiler."""
    generated = folder / "generated"
    generated.mkdir(parents=True, exist_ok=True)
    include13, include12, nvml = headers
    generate = [python, str(ROOT / "native/api/generate.py"), "--headers", include13, "--headers", include12, "--nvml", nvml, "--out", str(generated)]
    _must(generate)
    listed = (ROOT / "native/api/outputs.cmake").read_text()
    outputs = {name: re.findall(r"[\w./-]+\.c\b", files) for name, files in re.findall(r"set\((API_\w+_C)\s+([^)]*)\)", listed)}
    flags = ["-std=gnu11", "-O2", "-g", "-fPIC", "-fvisibility=hidden", "-pthread", "-isystem", include13]
    for place in (generated, *(ROOT / "native" / name for name in ("api", "wire", "transport", "shim", "worker", ""))):
        flags += ["-I", str(place)]
    link = [*(ROOT / "native/wire").glob("*.c"), *(ROOT / "native/transport").rglob("*.c"), *(generated / f for f in outputs["API_COMMON_C"])]
    backends = [*(ROOT / "native/backend/soft").rglob("*.c"), *(ROOT / "native/backend/cuda").glob("*.c"), *(ROOT / "native/backend").glob("*.c")]
    shim = [file for room in ("session", "abi", "objects") for file in (ROOT / "native/shim" / room).rglob("*.c")]
    parts = {
        "libcuda.so.1": [*link, *shim, *(generated / f for f in outputs["API_SHIM_C"])],
        "libnvidia-ml.so.1": [*(ROOT / "native/shim/nvml").glob("*.c"), *(generated / f for f in outputs["API_NVML_C"])],
        "libgpuvirt_worker.so": [*link, *(ROOT / "native/worker").rglob("*.c"), *backends, *(generated / f for f in outputs["API_WORKER_C"])],
        "libgpuvirt_server.so": [*(ROOT / "native/server").glob("*.c"), ROOT / "native/wire/handshake.c"],
    }
    sources = sorted({s for files in parts.values() for s in files})
    objects = {source: folder / f"{i}.o" for i, source in enumerate(sources)}
    with ThreadPoolExecutor(os.cpu_count() or 2) as threads:
        list(threads.map(lambda s: _must([compiler, *flags, "-c", str(s), "-o", str(objects[s])]), sources))
    for name, files in parts.items():
        extra = ["-Wl,-z,nodelete", "-Wl,-Bsymbolic"] if name == "libcuda.so.1" else []
        out = ["-shared", "-pthread", f"-Wl,-soname,{name}", *extra, *(str(objects[f]) for f in files), "-ldl", "-lm", "-o", str(WORK / "lib" / name)]
        _must([compiler, *out])


def nvcc() -> str | None:
    """The machine's own nvcc, else the wheel's."""
    candidates = [shutil.which("nvcc"), "/usr/local/cuda/bin/nvcc", *map(str, ROOT.glob(".venv/nvcc/nvidia/cu13/bin/nvcc"))]
    return next((str(c) for c in candidates if c and Path(c).is_file()), None)


def frameworks() -> dict[str, str]:
    """For each framework found, the interpreter that has it."""
    found: dict[str, str] = {}
    for python in pythons():
        missing = lacks(python, {name: name for name in FRAMEWORKS})
        for name in FRAMEWORKS:
            if name not in missing and "a Python that starts" not in missing:
                found.setdefault(name, python)
    return found


@dataclass(frozen=True)
class Machine:
    """What was found; the parts take it from here."""

    chained: bool
    gpu: str  # in words
    python: str
    lib: Path
    how_built: str
    nvcc: str | None
    frameworks: dict[str, str]

    def words(self) -> dict[str, object]:
        kinds = {FRAMEWORKS[name]: python for name, python in self.frameworks.items()}
        system = f"{platform.system()} {platform.release()}, {os.cpu_count()} cores"
        return {"gpu": self.gpu, "system": system, "python": self.python, "libraries": self.how_built, "nvcc": self.nvcc, "frameworks": kinds}
