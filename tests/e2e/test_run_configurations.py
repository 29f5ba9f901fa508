"""The same programs in every configuration: links, runtimes, fork, gpuvirt env, private pools, chained, across namespaces."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from e2e.harness import Server, assert_right, can_make_namespaces, clean_environment, run_line, run_program, start_server

from gpuvirt.demo import programs
from gpuvirt.demo.programs import Program

LINKS = ("tcp", "shm")
PROGRAMS = ("vector_add", "copies", "threads", "host_functions", "limits")


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("program", [PROGRAMS[0], *(pytest.param(p, marks=pytest.mark.slow) for p in PROGRAMS[1:])])
def test_program(pool: Server, build: Callable[..., Path], program: str, link: str) -> None:
    assert_right(run_program(pool, [build(program)], "--link", link, "--gpus", "2"))


@pytest.mark.slow
@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("mode", ["before", "after", "exec"])
def test_fork(pool: Server, build: Callable[..., Path], mode: str, link: str) -> None:
    assert_right(run_program(pool, [build("forks"), mode], "--link", link))


@pytest.mark.slow
def test_shared_cudart(pool: Server, build: Callable[..., Path]) -> None:
    """The runtime as a shared library, as Python packages have it."""
    from gpuvirt.demo.programs import find_nvcc

    folder = find_nvcc().parents[1] / "lib"
    program = build("vector_add", "-cudart", "none", f"-Xlinker=-rpath={folder}", f"-Xlinker={folder}/libcudart.so.13")
    assert_right(run_program(pool, [program]))


def test_auto_link_is_shared_memory_on_the_same_host(pool: Server, build: Callable[..., Path], tmp_path: Path) -> None:
    stats = tmp_path / "stats.json"
    assert_right(run_program(pool, [build("vector_add")], f"--stats={stats}"))
    figures = json.loads(stats.read_text())
    assert figures["transport"] == "shm"
    assert figures["launches"] == 1
    assert figures["backend"] == "soft"
    assert figures["server"] == pool.url
    assert 0 < figures["waits"] < figures["calls"]


def test_stats_do_not_follow_a_link(pool: Server, build: Callable[..., Path], tmp_path: Path) -> None:
    """Another user of the host can guess the name of the file that is written first, and leave a link there."""
    stats, mine = tmp_path / "stats.json", tmp_path / "mine"
    mine.write_text("kept")
    script = f'ln -s "{mine}" "{stats}.$$.tmp" && exec "{build("vector_add")}"'
    assert_right(run_program(pool, ["sh", "-c", script], f"--stats={stats}"))
    assert mine.read_text() == "kept"
    assert json.loads(stats.read_text())["launches"] == 1 and not stats.is_symlink()


def printed_environment(pool: Server, *options: str) -> dict[str, str]:
    """What `gpuvirt env` prints, as a shell would set it."""
    done = subprocess.run([*run_line(pool)[:-4], "env", "--pool", pool.url, *options], capture_output=True, text=True, check=True)
    script = done.stdout + "\nenv -0"
    shell = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=clean_environment(), check=True)
    return dict(pair.split("=", 1) for pair in shell.stdout.split("\0") if "=" in pair)


@pytest.mark.slow
@pytest.mark.parametrize("variable", ["LD_PRELOAD", "LD_LIBRARY_PATH"])
@pytest.mark.parametrize("link", LINKS)
def test_environment_by_hand(pool: Server, build: Callable[..., Path], variable: str, link: str) -> None:
    """Either variable alone is enough for a CUDA C++ program, without the launcher."""
    env = printed_environment(pool, "--link", link)
    env.pop({"LD_PRELOAD": "LD_LIBRARY_PATH", "LD_LIBRARY_PATH": "LD_PRELOAD"}[variable], None)
    done = subprocess.run([build("vector_add")], capture_output=True, text=True, env=env, timeout=60, check=False)
    assert_right(done)


@pytest.mark.slow
def test_environment_by_hand_cupy(pool: Server) -> None:
    env = printed_environment(pool)
    code = "import cupy; print(int((cupy.arange(1000) ** 2).sum()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=120, check=False)
    assert done.stdout == f"{sum(i * i for i in range(1000))}\n", done.stderr


@pytest.mark.slow
def test_two_processes_at_once(pool: Server, build: Callable[..., Path]) -> None:
    line = [*run_line(pool, "--gpus", "2"), str(build("copies"))]
    both = [subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment()) for _ in range(2)]
    for process in both:
        out, err = process.communicate(timeout=120)
        assert (process.returncode, out) == (0, "right\n"), err


@pytest.mark.slow
def test_visible_devices(pool: Server) -> None:
    code = "import cupy; print(cupy.cuda.runtime.getDeviceCount())"
    for visible, count in (("0", "1"), ("1,0", "2"), ("0,1", "2"), ("0,-1,1", "1")):
        done = run_program(pool, [sys.executable, "-c", code], "--gpus", "2", CUDA_VISIBLE_DEVICES=visible)
        assert done.stdout.strip() == count, done.stderr


def test_nothing_on_stdout_and_the_programs_exit_code(pool: Server) -> None:
    done = run_program(pool, [sys.executable, "-c", "import cupy, sys; cupy.zeros(3); sys.stdout.write('only this'); sys.exit(41)"])
    assert (done.returncode, done.stdout) == (41, "only this"), done.stderr


@pytest.mark.slow
def test_private_pool(build: Callable[..., Path]) -> None:
    """With no pool named, a private one is started, announced on stderr, and ended."""
    line = [sys.executable, "-P", "-m", "gpuvirt", "run", "--", str(build("vector_add"))]
    done = subprocess.run(line, capture_output=True, text=True, env=clean_environment(), timeout=120, check=False)
    assert_right(done)
    assert "local pool" in done.stderr


def test_trace(pool: Server, build: Callable[..., Path], tmp_path: Path) -> None:
    trace = tmp_path / "trace.log"
    assert_right(run_program(pool, [build("vector_add")], GPUVIRT_TRACE=str(trace)))
    text = trace.read_text()
    launch = [line for line in text.splitlines() if " cuLaunchKernel(" in line]
    assert launch and all("async" in line and "CUDA_SUCCESS" in line for line in launch)
    assert any("cuDeviceGetAttribute" in line and "local" in line for line in text.splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("link", LINKS)
def test_chained(chained: Server, build: Callable[..., Path], program: str, link: str) -> None:
    """Plumbing of the cuda backend: client, worker on our own shim, worker on strict software GPUs."""
    assert_right(run_program(chained, [build(program)], "--link", link, "--gpus", "2", timeout=240))


@pytest.mark.slow
def test_chained_fork(chained: Server, build: Callable[..., Path]) -> None:
    assert_right(run_program(chained, [build("forks"), "before"], timeout=240))


@pytest.fixture
def namespaces() -> Iterator[tuple[str, str]]:
    """Two network namespaces joined by a veth pair: 10.199.7.1 and 10.199.7.2."""
    if not can_make_namespaces():
        pytest.skip("network namespaces are not permitted here")
    names = (f"gpuvirt-a-{os.getpid()}", f"gpuvirt-b-{os.getpid()}")

    def ip(line: str) -> None:
        subprocess.run(["ip", *shlex.split(line)], check=True, capture_output=True)

    try:
        for name in names:
            ip(f"netns add {name}")
            ip(f"-n {name} link set lo up")
        ip(f"-n {names[0]} link add veth0 type veth peer name veth0 netns {names[1]}")
        for number, name in enumerate(names, 1):
            ip(f"-n {name} addr add 10.199.7.{number}/24 dev veth0")
            ip(f"-n {name} link set veth0 up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


@pytest.mark.slow
def test_across_network_namespaces(namespaces: tuple[str, str], build: Callable[..., Path], tmp_path: Path) -> None:
    """A server in one namespace, the program in another: a real network between them, and a token."""
    server = start_server(
        tmp_path, "--backend", "soft", "--gpus", "2", "--link", "tcp", prefix=["ip", "netns", "exec", namespaces[0]], listen="10.199.7.1:0"
    )
    try:
        stats = tmp_path / "stats.json"
        for program in ("vector_add", "copies"):
            line = ["ip", "netns", "exec", namespaces[1], *run_line(server, "--gpus", "2", f"--stats={stats}"), str(build(program))]
            assert_right(subprocess.run(line, capture_output=True, text=True, env=clean_environment(), timeout=120, check=False))
            assert json.loads(stats.read_text())["transport"] == "tcp"
    finally:
        server.stop()


@pytest.mark.slow
@pytest.mark.parametrize("link", LINKS)
def test_device_printf(pool: Server, build: Callable[..., Path], link: str) -> None:
    done = run_program(pool, [build("prints")], "--link", link)
    lanes = [f"lane {lane}: text 10.50 123456789012345 x     7|" for lane in range(2)]
    assert (done.returncode, done.stdout.splitlines()) == (0, [*lanes, "host"]), done.stderr


IN_TEST = ("cuda/tour.cu", "cupy/streams.py")


@pytest.mark.slow
@pytest.mark.parametrize("program", [pytest.param(p, marks=[] if p.name in IN_TEST else pytest.mark.wide, id=p.name) for p in programs.PROGRAMS])
def test_example_by_hand(pool: Server, program: Program, tmp_path: Path) -> None:
    """Every example without the launcher, with the variables that `gpuvirt env` prints."""
    examples = programs.find_examples(None)
    if program.name.endswith(".cu"):
        programs.build_cuda(examples / program.name, tmp_path / Path(program.name).stem)
    out = tmp_path / programs.output_name(program)
    line = programs.command(program, examples, tmp_path, 11, out)
    env = printed_environment(pool, "--gpus", "2")
    done = subprocess.run(line, capture_output=True, text=True, env=env, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert programs.check(program, 11, out) == []
