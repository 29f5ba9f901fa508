"""`gpuvirt attach` and `detach` at a terminal, with a stand-in for workers: shells, prompts, variables, and what becomes of the lease."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from server.harness import FakeServer, environment, start_fake, wait_until
from terminal import Terminal

GPUVIRT = [sys.executable, "-P", "-m", "gpuvirt"]
Attach = Callable[..., Terminal]


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeServer]:
    """Four GPUs; a lease that nobody renews would outlast any test."""
    started = start_fake(tmp_path_factory.mktemp("four"), gpus=4, gpu_memory=1 << 30, name="testserver", grace=1000)
    yield started
    started.stop()


@pytest.fixture
def env(tmp_path: Path, lib_dir: Path, four: FakeServer) -> dict[str, str]:
    found = environment(tmp_path) | {"GPUVIRT_LIB_DIR": str(lib_dir), "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    kept = {name: value for name, value in found.items() if name not in ("PS1", "PROMPT_COMMAND", "ENV", "ZDOTDIR")}
    return kept | {"GPUVIRT_POOL": four.url, "GPUVIRT_TOKEN": four.token.text(), "SHELL": "/bin/bash", "TERM": "dumb"}


@pytest.fixture
def attach(env: dict[str, str], tmp_path: Path) -> Iterator[Attach]:
    """Shells that were attached, at a prompt."""
    started: list[Terminal] = []

    def start(*options: str, prompt: str = r"\(gpuvirt:\d\) ", **more: str) -> Terminal:
        started.append(Terminal([*GPUVIRT, "attach", *options], env | more, tmp_path))
        started[-1].expect(prompt)
        return started[-1]

    yield start
    for terminal in started:
        terminal.close()


def leases(server: FakeServer) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.ask("ps")["leases"]
    return found


def nothing_left(server: FakeServer) -> None:
    wait_until(lambda: leases(server) == [] and server.ask("ps")["sessions"] == [])


def value(terminal: Terminal, name: str) -> str:
    found = re.search(r"<([^$>]+)>", terminal.run(f'echo "<${name}>"'))
    assert found, terminal.shown
    return found[1]


def agents_of(home: Path) -> list[int]:
    """Agents of this user's, by their HOME."""
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = [(folder / name).read_bytes().split(b"\0") for name in ("cmdline", "environ") if folder.name.isdecimal()]
            if words and b"gpuvirt.client.agent" in words[0] and f"HOME={home}".encode() in words[1]:
                found.append(int(folder.name))
    return found


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "sh"])
def test_a_shell_of_the_users_own(attach: Attach, four: FakeServer, tmp_path: Path, shell: str) -> None:
    """A mark in front of the user's own prompt, the user's files as ever, gpuvirt's variables whatever they set, and the shell's exit code."""
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"{shell} is not installed")
    rc = "export GPUVIRT_GPUS=9 MINE=read\n"
    more: dict[str, str] = {}
    if shell == "bash":
        (tmp_path / ".bashrc").write_text(rc + "PROMPT_COMMAND='PS1=\"mine> \"'\n")
    elif shell == "zsh":
        (tmp_path / "z").mkdir()
        (tmp_path / ".zshenv").write_text(f"ZDOTDIR={tmp_path}/z\n")
        (tmp_path / "z" / ".zshrc").write_text(rc + "PROMPT='mine> '\n")
    elif shell == "fish":
        (tmp_path / "config" / "fish").mkdir(parents=True)
        (tmp_path / "config" / "fish" / "config.fish").write_text(
            "set -gx GPUVIRT_GPUS 9\nset -gx MINE read\nfunction fish_prompt\necho -n 'mine> '\nend\nfunction fish_greeting\nend\n"
        )
    else:
        (tmp_path / "shrc").write_text(rc + "PS1='mine> '\n")
        more["ENV"] = str(tmp_path / "shrc")
    terminal = attach("--gpus", "2", prompt=r"\(gpuvirt:2\) mine> ", SHELL="/bin/strange" if shell == "sh" else path, **more)
    terminal.status = "$status" if shell == "fish" else "$?"
    assert "this shell has 2 GPUs of tcp://127.0.0.1" in terminal.shown and "detach" in terminal.shown
    (lease,) = leases(four)
    assert (lease["state"], lease["named"], lease["devices"], lease["program"]) == ("idle", True, [0, 1], "gpuvirt attach")
    shown = terminal.run('echo "<$GPUVIRT_GPUS $MINE $GPUVIRT_LEASE $GPUVIRT_POOL $LD_PRELOAD $_GPUVIRT_AGAIN>"')
    assert "<2 read " in shown and f" {four.url} " in shown and "libcuda.so.1" in shown
    terminal.expect(r"\(gpuvirt:2\) mine> ")
    assert "(gpuvirt:2) (gpuvirt:2)" not in terminal.shown
    terminal.run("false")
    terminal.type("exit 37")
    assert terminal.end() == 37
    nothing_left(four)


def test_programs_join_the_lease(attach: Attach, four: FakeServer, env: dict[str, str]) -> None:
    """By the variables, by `gpuvirt run` and by `gpuvirt env` elsewhere; not with another number of GPUs. Nested shells are refused."""
    terminal = attach("--gpus", "2", "--memory", "64m")
    gpuvirt = " ".join(GPUVIRT)
    (lease,) = leases(four)
    id = value(terminal, "GPUVIRT_LEASE")
    assert id not in str(lease) and f"GPUVIRT_LEASE={id}" in terminal.run(f"{gpuvirt} env")
    sock, welcome, _ = four.attach(lease=bytes.fromhex(id), gpus=2)
    with sock:
        assert f"{welcome.session:016x}" in leases(four)[0]["sessions"] and leases(four)[0]["state"] == "attached"
        shown = terminal.run(f"COLUMNS=250 {gpuvirt} ps | cat")
        assert "gpuvirt attach" in shown and "attached" in shown and f"{welcome.session:016x}" in shown
    elsewhere = env | {"GPUVIRT_LEASE": id, "GPUVIRT_GPUS": "2", "GPUVIRT_MEMORY": "64m"}

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        line = [*GPUVIRT, "run", "-q", *options, "--", "env"]
        return subprocess.run(line, env=elsewhere, capture_output=True, text=True, timeout=200, check=False)

    done = run()
    assert done.returncode == 0 and f"GPUVIRT_LEASE={id}\n" in done.stdout, done.stderr
    done = run("--gpus", "1")
    assert done.returncode == 125 and "has 2 GPUs" in done.stderr
    done = run("--gpus", "1", "--pool", f"tcp://localhost:{four.port}")  # another pool than the lease's
    assert done.returncode == 0 and "GPUVIRT_LEASE=\n" in done.stdout, done.stderr
    shown = terminal.run(f"{gpuvirt} attach")
    assert "EXIT 125" in shown and "has GPUs of" in shown
    terminal.type("exit")
    assert terminal.end() == 0
    nothing_left(four)


def test_detach(attach: Attach, four: FakeServer, tmp_path: Path) -> None:
    """Gives the GPUs back, also from under a program; the shell goes on, and can attach again."""
    terminal = attach("--gpus", "4")
    gpuvirt = " ".join(GPUVIRT)
    id = value(terminal, "GPUVIRT_LEASE")
    sock, _, _ = four.attach(lease=bytes.fromhex(id), gpus=4)
    assert "1 program lost them" in terminal.run(f"{gpuvirt} detach")
    sock.settimeout(100)
    assert sock.recv(1) == b""
    sock.close()
    nothing_left(four)
    for verb in ("run -- true", "detach"):
        shown = terminal.run(f"{gpuvirt} {verb}")
        assert "EXIT 125" in shown and "the lease of these GPUs has ended" in shown
    terminal.type(f"{gpuvirt} attach --gpus 1")
    terminal.expect(r"\(gpuvirt:1\) ")
    assert [lease["devices"] for lease in leases(four)] == [[0]]
    terminal.type("exit")
    nothing_left(four)
    assert terminal.run("echo back") and terminal.shown.count("EXIT 0") >= 2
    terminal.type("exit")
    assert terminal.end() == 0


def test_two_shells_have_different_gpus(attach: Attach, four: FakeServer) -> None:
    first, second = attach("--gpus", "2"), attach("--gpus", "2")
    assert [lease["devices"] for lease in leases(four)] == [[0, 1], [2, 3]]
    for terminal in (first, second):
        terminal.type("exit")
        terminal.end()
    nothing_left(four)


def test_a_shell_that_is_killed(attach: Attach, four: FakeServer, tmp_path: Path) -> None:
    terminal = attach()
    assert len(agents_of(tmp_path)) == 1
    os.kill(terminal.pid, signal.SIGKILL)
    assert terminal.end() == -signal.SIGKILL
    nothing_left(four)
    wait_until(lambda: agents_of(tmp_path) == [])


@pytest.mark.slow
def test_an_agent_that_is_killed(attach: Attach, tmp_path: Path) -> None:
    """The shell goes on; the server takes the GPUs back when nobody has renewed the lease, which the agent has done for longer than it lasts."""
    server = start_fake(tmp_path / "server", gpus=2, gpu_memory=1 << 30, grace=0)
    try:
        terminal = attach("--gpus", "2", GPUVIRT_POOL=server.url, GPUVIRT_TOKEN=server.token.text())
        time.sleep(7)
        assert [lease["state"] for lease in leases(server)] == ["idle"]
        (agent,) = agents_of(tmp_path)
        os.kill(agent, signal.SIGKILL)
        nothing_left(server)
        assert "the lease of these GPUs has ended" in terminal.run(" ".join([*GPUVIRT, "run", "--", "true"]))
    finally:
        server.stop()
    terminal.type("exit")
    assert terminal.end() == 0


def test_commands_from_a_pipe(four: FakeServer, env: dict[str, str], tmp_path: Path) -> None:
    """Nothing but what the commands say on stdout, and the last one's exit code."""
    script = 'echo "$GPUVIRT_GPUS"; exit 3'
    done = subprocess.run([*GPUVIRT, "attach", "--gpus", "2"], input=script, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert (done.returncode, done.stdout) == (3, "2\n"), done.stderr
    nothing_left(four)
    done = subprocess.run([*GPUVIRT, "attach", "--gpus", "5"], input=script, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert (done.returncode, done.stdout) == (125, "") and "this pool has 4 GPUs" in done.stderr
    wait_until(lambda: agents_of(tmp_path) == [])


def test_variables_for_a_process_that_runs(four: FakeServer, env: dict[str, str]) -> None:
    """An IDE, or the shell that evaluates them: the lease ends with that process."""
    ide = subprocess.Popen(["sleep", "1000"])
    done = subprocess.run(
        [*GPUVIRT, "attach", "--print", "--pid", str(ide.pid), "--gpus", "3"], env=env, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0 and done.stderr == "", done.stderr
    shell = subprocess.run(["sh", "-c", f"{done.stdout}\necho $GPUVIRT_LEASE $GPUVIRT_GPUS"], env=env, capture_output=True, text=True, check=True)
    id, gpus = shell.stdout.split()[-2:]
    assert gpus == "3" and [lease["devices"] for lease in leases(four)] == [[0, 1, 2]]
    sock, _, _ = four.attach(lease=bytes.fromhex(id), gpus=0)
    ide.kill()
    ide.wait()
    sock.settimeout(100)
    assert sock.recv(1) == b""
    sock.close()
    nothing_left(four)
    gone = subprocess.run([*GPUVIRT, "attach", "--print", "--pid", str(ide.pid)], env=env, capture_output=True, text=True, timeout=200, check=False)
    assert gone.returncode == 125 and f"process {ide.pid} cannot be watched" in gone.stderr


@pytest.mark.slow
def test_a_private_pool_lives_with_the_shell(attach: Attach, env: dict[str, str], tmp_path: Path) -> None:
    terminal = attach("--local", "--gpus", "2", GPUVIRT_TOKEN="")
    assert "a private local pool" in terminal.shown
    gpuvirt = " ".join(GPUVIRT)
    shown = terminal.run(f"{gpuvirt} ps --json")
    (lease,) = json.loads(shown[shown.index("[\r\n") : shown.rindex("]") + 1])
    assert (lease["state"], lease["devices"]) == ("idle", [0, 1])
    url = value(terminal, "GPUVIRT_POOL")
    assert "EXIT 0" in terminal.run(f"{gpuvirt} detach")
    assert "the lease of these GPUs has ended" in terminal.run(f"{gpuvirt} run -- true")
    terminal.type("exit")
    terminal.end()
    wait_until(lambda: agents_of(tmp_path) == [])
    done = subprocess.run([*GPUVIRT, "ps", "--pool", url], env=env, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 125 and "no GPU server" in done.stderr


@pytest.mark.parametrize(
    ("line", "variables", "code", "text"),
    [
        (["attach", "--print"], {}, 2, "--pid"),
        (["attach", "--pid", "1"], {}, 2, "--print"),
        (["detach"], {}, 125, "not attached"),
        (["attach"], {"GPUVIRT_LEASE": "xyz"}, 125, "is no lease"),
        (["run", "--", "true"], {"GPUVIRT_LEASE": "00"}, 125, "is no lease"),
    ],
)
def test_wrong_usage(env: dict[str, str], line: list[str], variables: dict[str, str], code: int, text: str) -> None:
    done = subprocess.run([*GPUVIRT, *line], env=env | variables, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == code and text in done.stderr and done.stdout == ""


@pytest.mark.slow
def test_attaching_waits(env: dict[str, str], tmp_path: Path) -> None:
    """It says its place, gives up in time or at once, and has the GPU when it is free; who stops waiting leaves the queue."""
    server = start_fake(tmp_path / "one", gpus=1, gpu_memory=1 << 30, grace=0)
    there = env | {"GPUVIRT_POOL": server.url, "GPUVIRT_TOKEN": server.token.text()}
    line = [*GPUVIRT, "attach", "--memory", "1g"]

    def begin(*options: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen([*line, *options], stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=there, cwd=tmp_path)

    having, _, _ = server.attach(gpus=1, memory=1 << 30)
    refused = begin("--no-wait")
    assert "it would be at place 1 of 1" in refused.communicate(timeout=100)[1] and refused.returncode == 125
    late = begin("--wait", "1s")
    said = late.communicate(timeout=100)[1]
    assert late.returncode == 125 and f"waiting for 1 GPU of {server.url}: place 1 of 1" in said and "as long as it wanted to" in said
    stopped = begin()
    assert stopped.stderr is not None and "place 1 of 1" in stopped.stderr.readline()
    stopped.kill()
    stopped.communicate()
    wait_until(lambda: len(leases(server)) == 1)
    patient = begin()
    assert patient.stderr is not None and "place 1 of 1" in patient.stderr.readline()
    having.close()
    said, _ = patient.communicate("echo it has $GPUVIRT_GPUS\n", timeout=100)
    assert (patient.returncode, said) == (0, "it has 1\n")
    nothing_left(server)
    server.stop()
