"""The exported functions over implementations that only record: forwarded arguments, calls refused before that, and the trace."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import c_build
import pytest

HERE = Path(__file__).parent
NOT_INITIALIZED, DEINITIALIZED, UNAVAILABLE, NOT_SUPPORTED = 3, 4, 46, 801
PER_THREAD = 2


class Driver:
    """The fake driver with its switches."""

    def __init__(self, path: Path) -> None:
        self.lib = ctypes.CDLL(str(path))

    def set(self, name: str, value: int) -> None:
        ctypes.c_int.in_dll(self.lib, f"fake_{name}").value = value

    def called(self) -> str:
        return (ctypes.c_char_p.in_dll(self.lib, "fake_called").value or b"").decode()

    def stream(self, name: str = "stream") -> int:
        return ctypes.c_void_p.in_dll(self.lib, f"fake_{name}").value or 0

    def log(self) -> str:
        return ctypes.string_at(ctypes.addressof(ctypes.c_char.in_dll(self.lib, "fake_log"))).decode()

    def look_up(self, name: bytes, version: int, flags: int = 0) -> tuple[int, int]:
        """Address and status."""
        out, status = ctypes.c_void_p(), ctypes.c_int(-1)
        rc = self.lib.cuGetProcAddress_v2(name, ctypes.byref(out), version, ctypes.c_uint64(flags), ctypes.byref(status))
        assert rc == 0
        return out.value or 0, status.value

    def address(self, symbol: str) -> int:
        return ctypes.cast(getattr(self.lib, symbol), ctypes.c_void_p).value or 0


@pytest.fixture
def driver(fake_driver: Path) -> Iterator[Driver]:
    loaded = Driver(fake_driver)
    yield loaded
    for name, value in {"result": 0, "broken": 0, "initialized": 1, "forked": 0, "version": 13000, "lost_text": 0}.items():
        loaded.set(name, value)


def lines(name: str) -> list[list[str]]:
    return [line.split() for line in (HERE / name).read_text().splitlines() if not line.startswith("#")]


def run_fresh(fake_driver: Path, code: str, **env: str) -> str:
    """Runs a few lines in a process of their own, where nothing has been called before."""
    prelude = "import ctypes, os\nlib = ctypes.CDLL({path!r})\ndef put(name, value): ctypes.c_int.in_dll(lib, 'fake_' + name).value = value\n"
    program = prelude.format(path=str(fake_driver)) + textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ, **env}, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


# ---- reaching an implementation ------------------------------------------------------------------------------------------


def test_result_and_arguments_pass_through(driver: Driver) -> None:
    address = ctypes.c_uint64()
    assert driver.lib.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(4096)) == 0
    assert (driver.called(), address.value) == ("impl_cuMemAlloc", 0x7F0012345000)
    driver.set("result", 2)
    assert driver.lib.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(4096)) == 2


@pytest.mark.parametrize(
    ("symbol", "implementation"),
    [
        ("cuCtxSynchronize", "impl_cuCtxSynchronize"),
        ("cuCtxSynchronize_v2", "impl_cuCtxSynchronize_v2"),
        ("cuCtxCreate", "impl_cuCtxCreate"),
        ("cuCtxCreate_v2", "impl_cuCtxCreate_v2"),
        ("cuCtxCreate_v4", "impl_cuCtxCreate_v4"),
        ("cuMemFree", "impl_cuMemFree"),
        ("cuMemFree_v2", "impl_cuMemFree"),
        ("cuEventElapsedTime_v2", "impl_cuEventElapsedTime"),
        ("cuStreamGetCaptureInfo_v3_ptsz", "impl_cuStreamGetCaptureInfo_v3"),
    ],
)
def test_which_implementation_serves_a_symbol(driver: Driver, symbol: str, implementation: str) -> None:
    null = ctypes.c_void_p()
    assert getattr(driver.lib, symbol)(null, null, null, null, null, null, null) == 0
    assert driver.called() == implementation


def test_each_call_is_counted_once(driver: Driver) -> None:
    count = driver.lib.fake_calls
    count.restype = ctypes.c_uint64
    before = count()
    for _ in range(10):
        driver.lib.cuCtxSynchronize()
    assert count() - before == 10


def test_per_thread_variants_change_stream_zero_only(driver: Driver) -> None:
    for given, seen in ((0, PER_THREAD), (1, 1), (0x5000, 0x5000)):
        driver.lib.cuStreamSynchronize_ptsz(ctypes.c_void_p(given))
        assert driver.stream() == seen
        driver.lib.cuStreamSynchronize(ctypes.c_void_p(given))
        assert driver.stream() == given


def test_per_thread_default_stream_lasts_for_the_call(driver: Driver) -> None:
    arguments = (ctypes.c_uint64(1), ctypes.c_void_p(), ctypes.c_size_t(1))
    driver.lib.cuMemcpyHtoD_v2_ptds(*arguments)
    assert driver.stream("default_stream") == PER_THREAD
    driver.lib.cuMemcpyHtoD_v2(*arguments)
    assert driver.stream("default_stream") == 1


def test_per_thread_launch_config_is_copied(driver: Driver) -> None:
    config = (ctypes.c_uint32 * 16)()  # grid, block, shared, pad, stream at byte 32
    stream = ctypes.c_uint64.from_buffer(config, 32)
    driver.lib.cuLaunchKernelEx_ptsz(ctypes.byref(config), None, None, None)
    assert driver.stream() == PER_THREAD
    assert stream.value == 0
    stream.value = 0x77
    driver.lib.cuLaunchKernelEx_ptsz(ctypes.byref(config), None, None, None)
    assert driver.stream() == 0x77


# ---- refusals ------------------------------------------------------------------------------------------------------------


def test_before_init(fake_driver: Path) -> None:
    code = """
        put("initialized", 0)
        number, text = ctypes.c_int(), ctypes.c_char_p()
        print(lib.cuMemFree_v2(ctypes.c_uint64(1)), lib.cuDeviceGetLuid(None, None, 0), lib.cuDriverGetVersion(ctypes.byref(number)), lib.cuInit(0),
              lib.cuGetErrorName(1, ctypes.byref(text)))
        put("initialized", 1)
        print(lib.cuMemFree_v2(ctypes.c_uint64(1)), lib.cuDeviceGetLuid(None, None, 0))
    """
    assert run_fresh(fake_driver, code).split() == ["3", "3", "0", "0", "0", "0", "801"]


def test_child_of_an_attached_parent(fake_driver: Path) -> None:
    code = """
        lib.cuCtxSynchronize()
        put("forked", 1)
        number, text, status = ctypes.c_int(), ctypes.c_char_p(), ctypes.c_int()
        pid = os.fork()
        if pid == 0:
            print(lib.cuCtxSynchronize(), lib.cuInit(0), lib.cuDeviceGetLuid(None, None, 0), lib.cuDriverGetVersion(ctypes.byref(number)),
                  lib.cuGetErrorString(3, ctypes.byref(text)),
                  lib.cuGetProcAddress_v2(b"cuInit", ctypes.byref(text), 12000, ctypes.c_uint64(0), ctypes.byref(status)), flush=True)
            os._exit(0)
        os.waitpid(pid, 0)
        print(lib.cuCtxSynchronize())
    """
    assert run_fresh(fake_driver, code).split() == ["3", "3", "3", "0", "0", "0", "0"]


def test_child_of_a_parent_that_never_attached(fake_driver: Path) -> None:
    code = """
        if os.fork() == 0:
            print(lib.cuInit(0), lib.cuCtxSynchronize(), flush=True)
            os._exit(0)
        os.wait()
    """
    assert run_fresh(fake_driver, code).split() == ["0", "0"]


def test_lost_server_stops_what_needs_it(driver: Driver) -> None:
    driver.set("broken", UNAVAILABLE)
    assert driver.lib.cuMemFree_v2(ctypes.c_uint64(1)) == UNAVAILABLE
    assert driver.lib.cuCtxSynchronize() == UNAVAILABLE
    assert driver.lib.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) == 0


def test_after_the_end(fake_driver: Path, tmp_path: Path, includes: list[Path]) -> None:
    """A library that is torn down after ours still calls."""
    late, program = tmp_path / "liblate.so", tmp_path / "program"
    (tmp_path / "late.c").write_text("""
        #include <stdio.h>
        #include <cuda.h>
        __attribute__((destructor)) static void end(void) { const char *text; printf("%d %d\\n", cuCtxSynchronize(), cuGetErrorName(4, &text)); }
    """)
    (tmp_path / "main.c").write_text("""
        #include <stdio.h>
        #include <cuda.h>
        int main(void) { printf("%d\\n", cuCtxSynchronize()); return 0; }
    """)
    # A library that does not depend on ours (the symbols are found at run time) and stands behind it is torn down after it.
    flags = [f"-I{folder}" for folder in includes]
    c_build.library(late, [tmp_path / "late.c"], flags=flags, libraries=["-Wl,-z,lazy"])
    libraries = [f"-Wl,-rpath,{fake_driver.parent}:{tmp_path},--no-as-needed", str(fake_driver), str(late)]
    c_build.program(program, [tmp_path / "main.c"], flags=flags, libraries=libraries)
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["0", str(DEINITIALIZED), "0"]


def test_unsupported_says_so_once(fake_driver: Path) -> None:
    code = """
        print(lib.cuDeviceGetLuid(None, None, 0), lib.cuDeviceGetLuid(None, None, 0), lib.cuDeviceGetFabricClusterUuid(None, 0))
        print(ctypes.string_at(ctypes.addressof(ctypes.c_char.in_dll(lib, "fake_log"))).decode())
    """
    out = run_fresh(fake_driver, code).splitlines()
    assert out[0].split() == ["801"] * 3
    assert out[1].startswith("cuDeviceGetLuid is not supported (LUIDs exist on Windows only)")
    assert out[2].startswith("cuDeviceGetFabricClusterUuid is not supported")
    assert len([line for line in out[1:] if line]) == 2


# ---- look-up -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "version", "flags", "symbol"),
    [
        ("cuMemAlloc", 2000, 0, "cuMemAlloc"),
        ("cuMemAlloc", 3020, 0, "cuMemAlloc_v2"),
        ("cuMemAlloc", 13000, 2, "cuMemAlloc_v2"),
        ("cuCtxCreate", 11030, 0, "cuCtxCreate_v2"),
        ("cuCtxCreate", 11040, 0, "cuCtxCreate_v3"),
        ("cuCtxCreate", 12050, 0, "cuCtxCreate_v4"),
        ("cuCtxGetDevice", 12080, 0, "cuCtxGetDevice"),
        ("cuCtxGetDevice", 13000, 0, "cuCtxGetDevice_v2"),
        ("cuCtxSynchronize", 12090, 0, "cuCtxSynchronize"),
        ("cuCtxSynchronize", 13000, 0, "cuCtxSynchronize_v2"),
        ("cuStreamGetCtx", 9020, 2, "cuStreamGetCtx_ptsz"),
        ("cuStreamGetCtx", 12050, 0, "cuStreamGetCtx_v2"),
        ("cuStreamGetCaptureInfo", 12020, 0, "cuStreamGetCaptureInfo_v2"),
        ("cuStreamGetCaptureInfo", 12030, 2, "cuStreamGetCaptureInfo_v3_ptsz"),
        ("cuMemcpyHtoD", 6000, 2, "cuMemcpyHtoD_v2"),
        ("cuMemcpyHtoD", 7000, 2, "cuMemcpyHtoD_v2_ptds"),
        ("cuMemcpyHtoD", 7000, 1, "cuMemcpyHtoD_v2"),
        ("cuGetProcAddress", 11030, 0, "cuGetProcAddress"),
        ("cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2"),
        ("cuProfilerStart", 4000, 0, "cuProfilerStart"),
    ],
)
def test_newest_form_that_the_version_has(driver: Driver, name: str, version: int, flags: int, symbol: str) -> None:
    assert driver.look_up(name.encode(), version, flags) == (driver.address(symbol), 0)


def test_everything_that_programs_look_up_is_found(driver: Driver) -> None:
    driver.set("version", 13050)
    wanted = [(name, int(version), int(flags)) for name, version, flags in lines("looked_up.txt")]
    assert len(wanted) > 400
    missing = [row for row in wanted if driver.look_up(row[0].encode(), row[1], row[2])[1] != 0]
    assert missing == []


def test_everything_that_programs_take_by_dlsym_is_there(driver: Driver) -> None:
    assert [name for (name,) in lines("taken_by_dlsym.txt") if not hasattr(driver.lib, name)] == []


def test_unknown_names(driver: Driver) -> None:
    for name in (b"", b"cuNothing", b"cuVDPAUGetDevice", b"cuMemAlloc_v2"):
        assert driver.look_up(name, 12000) == (0, 1)
        out = ctypes.c_void_p(1)
        assert driver.lib.cuGetProcAddress(name, ctypes.byref(out), 12000, ctypes.c_uint64(0)) == 500
        assert out.value is None


def test_too_old_a_version(driver: Driver) -> None:
    assert driver.look_up(b"cuGraphCreate", 9000) == (0, 2)


def test_server_decides_what_exists(driver: Driver) -> None:
    driver.set("version", 12000)
    assert driver.look_up(b"cuCtxCreate", 12000)[0] == driver.address("cuCtxCreate_v3")
    assert driver.look_up(b"cuKernelGetLibrary", 12000) == (0, 1)
    out = ctypes.c_void_p()  # versions above the server's are refused
    assert driver.lib.cuGetProcAddress_v2(b"cuInit", ctypes.byref(out), 12010, ctypes.c_uint64(0), None) == 1
    driver.set("version", 0)  # not attached yet: what the headers know
    assert driver.look_up(b"cuKernelGetLibrary", 13000)[1] == 0


@pytest.mark.parametrize("flags", [3, 4, 1 << 40])
def test_bad_flags(driver: Driver, flags: int) -> None:
    out = ctypes.c_void_p()
    assert driver.lib.cuGetProcAddress_v2(b"cuInit", ctypes.byref(out), 12000, ctypes.c_uint64(flags), None) == 1
    assert driver.lib.cuGetProcAddress_v2(None, ctypes.byref(out), 12000, ctypes.c_uint64(0), None) == 1


# ---- errors --------------------------------------------------------------------------------------------------------------


def test_error_names_and_texts(driver: Driver) -> None:
    def ask(function: str, code: int) -> tuple[int, str | None]:
        text = ctypes.c_char_p()
        rc = getattr(driver.lib, function)(code, ctypes.byref(text))
        return rc, text.value.decode() if text.value else None

    assert ask("cuGetErrorName", 0) == (0, "CUDA_SUCCESS")
    assert ask("cuGetErrorName", 700) == (0, "CUDA_ERROR_ILLEGAL_ADDRESS")
    assert ask("cuGetErrorName", 12345) == (1, None)
    assert ask("cuGetErrorString", 12345) == (1, None)
    assert ask("cuGetErrorString", 1) == (0, "invalid argument") and ask("cuGetErrorString", 719) == (0, "unspecified launch failure")
    rc, text = ask("cuGetErrorString", 919)  # of which only the header says something
    assert rc == 0 and text and "fabric" in text.lower()
    driver.set("lost_text", 1)
    assert ask("cuGetErrorString", UNAVAILABLE) == (0, "lost the GPU server")


# ---- trace ---------------------------------------------------------------------------------------------------------------


def test_trace(fake_driver: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.txt"
    code = """
        address = ctypes.c_uint64()
        lib.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(4096))
        name = ctypes.create_string_buffer(64)
        lib.cuDeviceGetName(name, 64, 0)
        lib.cuStreamSynchronize_ptsz(None)
        lib.cuDeviceGetLuid(None, None, 0)
        put("result", 2)
        lib.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(8192))
        put("broken", 46)
        lib.cuMemFree_v2(ctypes.c_uint64(16))
    """
    run_fresh(fake_driver, code, GPUVIRT_TRACE=str(trace))
    stamp = r"^\d+\.\d \d+ "
    said = [re.sub(stamp, "", re.sub(r" \d+\.\d$", "", line)) for line in trace.read_text().splitlines()]
    assert all(re.match(stamp, line) for line in trace.read_text().splitlines())
    said[4] = re.sub("dptr=0x[0-9a-f]+", "dptr=P", said[4])
    assert said == [
        "async cuMemAlloc_v2(dptr=->0x7f0012345000, bytesize=4096) = CUDA_SUCCESS",
        'local cuDeviceGetName(name="a ?fake??device", len=64, dev=0) = CUDA_SUCCESS',
        "sync cuStreamSynchronize_ptsz(hStream=0x2) = CUDA_SUCCESS",
        "unsupported cuDeviceGetLuid(...) = CUDA_ERROR_NOT_SUPPORTED",
        "async cuMemAlloc_v2(dptr=P, bytesize=8192) = CUDA_ERROR_OUT_OF_MEMORY",
        "async cuMemFree_v2(...) = CUDA_ERROR_DEVICE_UNAVAILABLE",
    ]


def test_trace_of_errors(fake_driver: Path) -> None:
    """GPUVIRT_TRACE=errors: a line for each call that fails, with the reason where one is known; none for what is not done yet."""
    code = """
        address, log = ctypes.c_uint64(), lambda: ctypes.string_at(ctypes.addressof(ctypes.c_char.in_dll(lib, "fake_log"))).decode()
        lib.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(4096))
        put("result", 600)
        lib.cuStreamQuery(None)
        print("before", repr(log()))
        put("result", 2)
        lib.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(8192))
        lib.cuMemFree_v2(ctypes.c_uint64(16))
        put("broken", 46)
        lib.cuMemFree_v2(ctypes.c_uint64(16))
        print(log())
    """
    before, alloc, free, refused = run_fresh(fake_driver, code, GPUVIRT_TRACE="errors").rstrip().splitlines()
    assert before == "before ''"
    assert re.fullmatch(r"thread \d+: cuMemAlloc_v2\(dptr=0x[0-9a-f]+, bytesize=8192\) answered CUDA_ERROR_OUT_OF_MEMORY: too much", alloc)
    assert re.fullmatch(r"thread \d+: cuMemFree_v2\(dptr=0x10\) answered CUDA_ERROR_OUT_OF_MEMORY", free), "the reason was another call's"
    assert re.fullmatch(r"thread \d+: cuMemFree_v2\(\.\.\.\) answered CUDA_ERROR_DEVICE_UNAVAILABLE", refused)


def test_trace_that_cannot_be_written(fake_driver: Path, tmp_path: Path) -> None:
    code = """
        print(lib.cuCtxSynchronize(), ctypes.string_at(ctypes.addressof(ctypes.c_char.in_dll(lib, "fake_log"))).decode())
    """
    assert "0 GPUVIRT_TRACE:" in run_fresh(fake_driver, code, GPUVIRT_TRACE=str(tmp_path / "no" / "such" / "folder"))


def test_names_that_no_header_declares(driver: Driver) -> None:
    """Bindings are linked against them (PyCUDA: OpenGL's); programs that look for them are told that they do not exist."""
    for name in ("cuGLInit", "cuGraphicsGLRegisterBuffer", "cuEGLStreamConsumerConnect", "cuVDPAUGetDevice", "cuMemGetAttribute_v2"):
        assert getattr(driver.lib, name)(1, 2, 3) == NOT_SUPPORTED
    assert driver.look_up(b"cuGLInit", 13000) == (0, 1)  # CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND
