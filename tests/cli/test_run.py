"""`gpuvirt run` and `gpuvirt env`, up to the first CUDA call."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
from pathlib import Path

import pytest
from server.harness import FakeServer

from gpuvirt import paths
from gpuvirt.client import environment
from gpuvirt.client.environment import Variable, apply, variables
from gpuvirt.client.settings import Settings
from gpuvirt.transport.handshake import GREETING_SOFTWARE, Greeting
from gpuvirt.transport.pool import PoolAddress, PoolStatus
from gpuvirt.transport.token import Token

from .conftest import Gpuvirt

TOKEN = Token(bytes(16), bytes(32), bytes(32))
DEVICE_FILES = "" if environment.DEVICE_FILE.exists() else f":{paths.program(paths.DEVICE_FILES)}"
SHOW = "import os, json; print(json.dumps(dict(os.environ)))"


def test_what_the_program_sees(gpuvirt: Gpuvirt, server: FakeServer, lib_dir: Path) -> None:
    done = gpuvirt(
        "run", "--gpus", "2", "--memory", "512m", "--link", "tcp", "--stats=out.json", "--", "python3", "-c", SHOW,
        server=server, LD_PRELOAD=None, LD_LIBRARY_PATH="/opt/lib",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    env = json.loads(done.stdout)
    assert env["LD_PRELOAD"] == f"{lib_dir}/libcuda.so.1:{lib_dir}/libnvidia-ml.so.1:{paths.program(paths.COMPAT)}{DEVICE_FILES}"
    folders = env["LD_LIBRARY_PATH"].split(":")
    assert folders[0] == str(lib_dir) and folders[-1] == "/opt/lib"
    assert any((Path(folder) / "libcuda.so").resolve() == lib_dir / "libcuda.so.1" for folder in folders)
    assert env["GPUVIRT_POOL"] == server.url and env["GPUVIRT_LINK"] == "tcp" and env["GPUVIRT_GPUS"] == "2"
    assert env["GPUVIRT_MEMORY"] == str(512 << 20)
    assert env["GPUVIRT_STATS"] == str(Path("out.json").absolute())
    assert env["CUPY_COMPILE_WITH_PTX"] == "1"
    assert str(Path(env["TRITON_PTXAS_PATH"]).parent) in env["PATH"].split(":")
    assert "[shim]" in done.stderr  # it really is preloaded


def test_nothing_but_the_programs_output(gpuvirt: Gpuvirt, server: FakeServer) -> None:
    done = gpuvirt("run", "--", "sh", "-c", "printf out; exit 41", server=server)
    assert (done.returncode, done.stdout) == (41, "out")


def test_what_the_user_set_for_cupy_stays(gpuvirt: Gpuvirt, server: FakeServer) -> None:
    done = gpuvirt("run", "--", "sh", "-c", "echo $CUPY_COMPILE_WITH_PTX", server=server, CUPY_COMPILE_WITH_PTX="0")
    assert done.stdout == "0\n" and "CUPY" not in done.stderr
    printed = gpuvirt("env", server=server).stdout
    line = next(line for line in printed.splitlines() if "CUPY" in line)
    for before, after in (("CUPY_COMPILE_WITH_PTX=0;", "0"), ("", "1")):
        assert subprocess.run(["sh", "-c", f"{before} {line}; echo $CUPY_COMPILE_WITH_PTX"], capture_output=True, text=True).stdout == f"{after}\n"


@pytest.mark.slow
def test_the_users_flags_for_xla_stay(gpuvirt: Gpuvirt, server: FakeServer) -> None:
    """A flag that the user gives, and a file of flags; what they leave open is ours, once."""
    (line,) = [line for line in gpuvirt("env", server=server).stdout.splitlines() if "XLA_FLAGS" in line]

    def by_run(before: str | None) -> str:
        return gpuvirt("run", "--", "sh", "-c", 'echo "$XLA_FLAGS"', server=server, XLA_FLAGS=before).stdout.rstrip("\n")

    def by_shell(before: str | None) -> str:
        env = {"PATH": os.environ["PATH"]} | ({} if before is None else {"XLA_FLAGS": before})
        return subprocess.run(["sh", "-c", f'{line}; printenv XLA_FLAGS'], capture_output=True, text=True, env=env).stdout.rstrip("\n")

    ours = by_run(None)
    assert "--xla_gpu_autotune_level=0" in ours.split() and by_run("") == by_shell(None) == by_shell("") == by_run(ours) == ours
    assert by_run("--xla_gpu_autotune_level=4") == "--xla_gpu_autotune_level=4"
    assert by_run("--xla_gpu_enable_command_buffer=") == f"{ours} --xla_gpu_enable_command_buffer="
    assert by_shell("--xla_gpu_autotune_level=4") == f"{ours} --xla_gpu_autotune_level=4"  # the last one counts
    assert by_run("/my/flags") == by_shell("/my/flags") == "/my/flags"
    told = gpuvirt("run", "--", "true", server=server, XLA_FLAGS="--xla_dump_to=x").stderr
    assert "XLA_FLAGS" in told and "XLA_FLAGS" not in gpuvirt("run", "--", "true", server=server, XLA_FLAGS=ours).stderr


def test_software_gpus_are_said_to_be_such(gpuvirt: Gpuvirt, server: FakeServer) -> None:
    done = gpuvirt("run", "--", "true", server=server)
    assert [line for line in done.stderr.splitlines() if "software GPUs" in line and "CUPY_COMPILE_WITH_PTX" in line and "TRITON_PTXAS_PATH" in line]
    assert "gpuvirt" not in gpuvirt("run", "-q", "--", "true", server=server).stderr
    assert "gpuvirt" not in gpuvirt("run", "--", "true", server=server, GPUVIRT_QUIET="1").stderr


@pytest.mark.parametrize("software", [True, False])
def test_real_gpus_need_nothing_of_it(software: bool) -> None:
    greeting = Greeting(bytes(32), flags=GREETING_SOFTWARE * software)
    status = PoolStatus(PoolAddress("localhost", 7), "127.0.0.1", greeting, TOKEN)
    found = {v.name: v.value for v in variables(Settings(), status)}
    assert (paths.COMPAT in found["LD_PRELOAD"]) is software
    special = {"PATH", "XLA_FLAGS", "CUPY_COMPILE_WITH_PTX", "NUMBA_FORCE_CUDA_CC", "TRITON_PTXAS_PATH", "TRITON_DEFAULT_BACKEND"}
    assert special <= found.keys() or not software
    assert software or not [name for name in found if not name.startswith(("LD_", "GPUVIRT_"))]


@pytest.mark.parametrize("software", [True, False])
@pytest.mark.parametrize("there", [True, False])
def test_device_files_are_reported_where_there_are_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, software: bool, there: bool) -> None:
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(environment, "DEVICE_FILE", tmp_path / ("nvidia0" if there else "nvidia1"))
    status = PoolStatus(PoolAddress("localhost", 7), "127.0.0.1", Greeting(bytes(32), flags=GREETING_SOFTWARE * software), TOKEN)
    (preloaded,) = [v.value for v in variables(Settings(), status) if v.name == "LD_PRELOAD"]
    assert (paths.DEVICE_FILES in preloaded) is not there


def test_options_behind_the_command_are_the_commands(gpuvirt: Gpuvirt, server: FakeServer) -> None:
    for separator in ([], ["--"]):
        done = gpuvirt("run", "--gpus", "1", *separator, "echo", "--gpus", "--help", "--stats", server=server)
        assert done.stdout == "--gpus --help --stats\n", done.stderr


def test_bare_stats_takes_no_word(gpuvirt: Gpuvirt, server: FakeServer) -> None:
    done = gpuvirt("run", "--stats", "printenv", "GPUVIRT_STATS", server=server)
    assert done.stdout == "-\n", done.stderr


def test_verbose_tells_on_stderr(gpuvirt: Gpuvirt, server: FakeServer) -> None:
    done = gpuvirt("run", "-v", "--", "true", server=server)
    assert "gpuvirt: CUPY_COMPILE_WITH_PTX=1" in done.stderr and done.stdout == ""
    assert server.token.text() not in done.stderr


def test_program_not_found(gpuvirt: Gpuvirt, server: FakeServer) -> None:
    done = gpuvirt("run", "--", "/no/such/program", server=server)
    assert done.returncode == 127 and done.stderr.endswith("gpuvirt: /no/such/program: no such program\n")


def test_no_server(gpuvirt: Gpuvirt) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        url = f"tcp://127.0.0.1:{nobody.getsockname()[1]}"
    done = gpuvirt("run", "--pool", url, "--", "echo", "ran")
    assert done.returncode == 125 and done.stdout == ""
    assert done.stderr == f"gpuvirt: no GPU server at {url}: Connection refused; start one there with `gpuvirt serve`\n"


def test_wrong_token(gpuvirt: Gpuvirt, server: FakeServer) -> None:
    token = server.token.text()
    wrong = token[:40] + ("A" if token[40] != "A" else "B") + token[41:]
    done = gpuvirt("run", "--", "echo", "ran", server=server, GPUVIRT_TOKEN=wrong)
    assert done.returncode == 125 and done.stdout == "" and done.stderr.count("\n") == 1
    assert "token" in done.stderr and server.url in done.stderr and wrong not in done.stderr
    done = gpuvirt("run", "--", "echo", "ran", server=server, GPUVIRT_TOKEN="nonsense")
    assert done.returncode == 125 and done.stdout == "" and "not a token" in done.stderr


def test_more_than_the_pool_has(gpuvirt: Gpuvirt, server: FakeServer) -> None:
    """Said before the program starts."""
    done = gpuvirt("run", "--gpus", "3", "--", "echo", "ran", server=server)
    assert done.returncode == 125 and done.stdout == "" and "3 GPUs were asked for and this pool has 2 GPUs" in done.stderr
    done = gpuvirt("run", "--memory", "2g", "--", "echo", "ran", server=server)
    assert done.returncode == 125 and done.stdout == "" and "--memory" in done.stderr


def test_libraries_missing(gpuvirt: Gpuvirt, server: FakeServer) -> None:
    done = gpuvirt("run", "--", "echo", "ran", server=server, GPUVIRT_LIB_DIR="/nowhere")
    assert done.returncode == 125 and done.stdout == "" and done.stderr.count("\n") == 1 and "make setup" in done.stderr


def test_env_is_what_run_sets(gpuvirt: Gpuvirt, server: FakeServer, lib_dir: Path) -> None:
    done = gpuvirt("env", "--gpus", "2", "--stats", server=server)
    assert done.returncode == 0 and done.stderr == ""
    script = done.stdout + "\nenv -0"
    base = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": "/opt/lib"}
    shell = subprocess.run(["sh", "-c", script], capture_output=True, text=True, env=base, check=True)
    env = dict(pair.split("=", 1) for pair in shell.stdout.split("\0") if pair)
    assert env["LD_LIBRARY_PATH"].startswith(f"{lib_dir}:") and env["LD_LIBRARY_PATH"].endswith(":/opt/lib")
    assert env["LD_PRELOAD"] == f"{lib_dir}/libcuda.so.1:{lib_dir}/libnvidia-ml.so.1:{paths.program(paths.COMPAT)}{DEVICE_FILES}"
    assert Path(env["PATH"].split(":")[0], "ptxas").is_file() and env["PATH"].endswith(base["PATH"])
    assert env["GPUVIRT_GPUS"] == "2" and env["GPUVIRT_STATS"] == "-" and env["CUPY_COMPILE_WITH_PTX"] == "1"
    listed = {v["name"] for v in json.loads(gpuvirt("env", "--gpus", "2", "--stats", "--json", server=server).stdout)}
    assert listed <= env.keys() and {"LD_PRELOAD", "LD_LIBRARY_PATH", "GPUVIRT_POOL", "GPUVIRT_GPUS", "GPUVIRT_STATS"} <= listed


def test_an_interrupted_wait_is_no_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's sigtimedwait, interrupted until its time is over, gives what was in memory by chance."""
    from types import SimpleNamespace

    from gpuvirt.client import launcher

    monkeypatch.setattr(launcher.signal, "sigtimedwait", lambda *_: SimpleNamespace(si_signo=1 << 20, si_code=0))
    assert launcher.launch(["sh", "-c", "exit 3"], os.environ) == 3


def test_prefix_variables_are_not_doubled() -> None:
    variable = Variable("LD_PRELOAD", "/a:/b", "", prefix=True)
    assert variable.merged(None) == variable.merged("") == "/a:/b"
    assert variable.merged("/c /b:/a") == "/a:/b:/c"
    assert apply([variable], {"LD_PRELOAD": "/a:/b"})["LD_PRELOAD"] == "/a:/b"
    assert Variable("PATH", "/a", "", prefix=True).merged("/with a blank:/b") == "/a:/with a blank:/b"


def test_devices_and_ps(gpuvirt: Gpuvirt, server: FakeServer) -> None:
    found = json.loads(gpuvirt("devices", "--json", server=server).stdout)
    assert [(d["ordinal"], d["memory"], d["memory_used"], d["sessions"], d["server"], d["backend"]) for d in found] == [
        (0, 1 << 30, 0, 0, "testserver", "soft"),
        (1, 1 << 30, 0, 0, "testserver", "soft"),
    ]
    assert "testserver" in gpuvirt("devices", server=server).stdout
    assert json.loads(gpuvirt("ps", "--json", server=server).stdout) == []
    sock, welcome, _ = server.attach(program="prog", pid=12, user="me", host="here")
    (lease,) = json.loads(gpuvirt("ps", "--json", server=server).stdout)
    (session,) = lease["sessions"]
    assert (lease["state"], lease["named"], lease["program"], session["lease"]) == ("attached", False, "prog", lease["lease"])
    assert (session["program"], session["pid"], session["user"], session["host"]) == ("prog", 12, "me", "here")
    assert f"{welcome.session:016x}" == session["session"]
    assert "prog" in gpuvirt("ps", server=server, COLUMNS="200").stdout
    sock.close()


def test_tokens(gpuvirt: Gpuvirt, server: FakeServer) -> None:
    """Without --pool on the state folder, with it over the control channel: the same store."""
    there = {"GPUVIRT_STATE": server.env["GPUVIRT_STATE"], "XDG_RUNTIME_DIR": server.env["XDG_RUNTIME_DIR"]}
    shown = gpuvirt("token", "show", **there)
    assert shown.stdout == server.token.text() + "\n"
    made = gpuvirt("token", "create", "alice", **there).stdout.strip()
    assert gpuvirt("token", "show", "alice", **there).stdout.strip() == made
    assert gpuvirt("devices", server=server, GPUVIRT_TOKEN=made).returncode == 0
    listed = gpuvirt("token", "list", "--json", "--pool", server.url, server=server)
    assert [t["name"] for t in json.loads(listed.stdout)] == ["default", "alice"] and made not in listed.stdout
    assert gpuvirt("token", "revoke", "alice", "--pool", server.url, server=server).returncode == 0
    done = gpuvirt("devices", server=server, GPUVIRT_TOKEN=made)
    assert done.returncode == 125 and "token" in done.stderr
    done = gpuvirt("token", "revoke", "alice", **there)
    assert done.returncode == 125 and "no token is called 'alice'" in done.stderr


@pytest.mark.slow
def test_rights_of_tokens(gpuvirt: Gpuvirt, server: FakeServer) -> None:
    """Given on the state folder and over the control channel, listed by both, refused by name; a token that is over is refused with the time."""
    there = {"GPUVIRT_STATE": server.env["GPUVIRT_STATE"], "XDG_RUNTIME_DIR": server.env["XDG_RUNTIME_DIR"], "COLUMNS": "200"}
    rights = ["--user", "eva", "--gpus", "1", "--weight", "0.5", "--priority", "2", "--memory", "64m"]
    first = gpuvirt("token", "create", "eva-1", *rights, "--expires", "30d", **there).stdout.strip()
    assert gpuvirt("token", "create", "eva-2", "--user", "eva", "--expires", "1ms", "--pool", server.url, server=server).returncode == 0
    listed = json.loads(gpuvirt("token", "list", "--json", "--pool", server.url, server=server).stdout)[-2:]
    assert [[t[k] for k in ("name", "user", "gpus", "weight", "priority", "memory")] for t in listed] == [
        [name, "eva", 1, 0.5, 2, 64 << 20] for name in ("eva-1", "eva-2")
    ]
    assert 2.59e6 < listed[0]["expires"] - listed[0]["created"] < 2.6e6 and 0 < listed[1]["expires"] - listed[1]["created"] < 0.1
    shown = gpuvirt("token", "list", **there).stdout
    assert "eva-2" in shown and "(over)" in shown and "never" in shown and "0.5" in shown
    wrong = gpuvirt("token", "create", "eva-3", "--user", "eva", "--gpus", "2", "--pool", server.url, server=server)
    assert wrong.returncode == 125 and "with gpus 1; leave --gpus out" in wrong.stderr
    over = gpuvirt("token", "show", "eva-2", **there).stdout.strip()
    for verb in (["devices"], ["run", "--", "true"]):
        done = gpuvirt(*verb, server=server, GPUVIRT_TOKEN=over)
        assert done.returncode == 125 and "this token has expired, at 2" in done.stderr, done
    done = gpuvirt("run", "--gpus", "2", "--", "true", server=server, GPUVIRT_TOKEN=first)
    assert done.returncode == 125 and "this token may have 1 at a time" in done.stderr
    for name in ("eva-1", "eva-2"):
        assert gpuvirt("token", "revoke", name, **there).returncode == 0


@pytest.mark.parametrize("link", ["auto", "tcp"])
def test_doctor(gpuvirt: Gpuvirt, server: FakeServer, link: str) -> None:
    done = gpuvirt("doctor", "--json", server=server, GPUVIRT_LINK=link)
    found = {r["check"]: r for r in json.loads(done.stdout)}
    for check in ("libcuda.so.1", "libnvidia-ml.so.1", "libgpuvirt_worker.so", "pool", "wire version", "token", "control channel", "link"):
        assert found[check]["status"] == "ok", found[check]
    assert done.returncode == 0
    assert re.search("auto (takes|would take) shm", found["link"]["text"]) and "client and server are on the same host" in found["link"]["text"]


def test_doctor_wrong_token(gpuvirt: Gpuvirt, server: FakeServer) -> None:
    token = server.token.text()
    done = gpuvirt("doctor", "--json", server=server, GPUVIRT_TOKEN=token[:40] + ("A" if token[40] != "A" else "B") + token[41:])
    found = {r["check"]: r for r in json.loads(done.stdout)}
    assert done.returncode == 1 and found["token"]["status"] == "fail" and "gpuvirt token show" in found["token"]["remedy"]
