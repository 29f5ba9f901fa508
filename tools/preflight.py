"""Is this machine able to build gpuvirt? One line that names the remedy for whatever is missing, before anything is downloaded.

Runs under the system's Python, whatever its version: it must not use anything that an old one lacks.
"""

import os
import platform
import shutil
import sys

# What a step takes, rounded up: free disk it needs, and what it downloads, in MB.
STEPS = {
    "build": (900, 130, "the build tools and NVIDIA's header wheels"),
    "demo": (4000, 1150, "CuPy, NVRTC, cuBLAS, cuRAND and nvcc from wheels"),
    "test": (5000, 1800, "cuDNN, cuFFT, cuSOLVER, cuSPARSE, Numba, SciPy and the linters from wheels"),
    "torch": (6500, 3500, "PyTorch and Triton with CUDA 13's libraries from wheels"),
    "xla": (9000, 4500, "TensorFlow and JAX with CUDA 12's libraries from wheels"),
}


def problem(step):
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return "gpuvirt runs on x86-64 Linux; this is %s %s" % (platform.system(), platform.machine())
    if sys.version_info < (3, 11):
        return "gpuvirt needs Python 3.11 or newer, this is %s; name another one: make PYTHON=/path/to/python3.11" % platform.python_version()
    if not (shutil.which("gcc") or shutil.which("cc")) or not shutil.which("g++"):
        return "no C and C++ compiler found; install one: sudo apt-get install g++"
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        return "this Python cannot make virtual environments; install: sudo apt-get install python3-venv"
    need = STEPS[step][0]
    free = shutil.disk_usage(os.getcwd()).free // 1000000
    if free < need:
        return "%d MB are free here and %d MB are needed; make room or clone elsewhere" % (free, need)
    return None


def main():
    step = sys.argv[1] if len(sys.argv) > 1 else "build"
    found = problem(step)
    if found:
        print("gpuvirt: " + found, file=sys.stderr)
        return 1
    print("gpuvirt: about to download up to %d MB (%s), if they are not here yet" % STEPS[step][1:])
    return 0


if __name__ == "__main__":
    sys.exit(main())
