"""Runs a program as a child process, with the terminal, signals and exit code that it would have without the launcher."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import signal
from collections.abc import Iterator, Mapping, Sequence

from gpuvirt.client.connect import Connected
from gpuvirt.errors import GpuvirtError
from gpuvirt.transport.handshake import LAUNCH_SIZE
from gpuvirt.transport.pool import report_ended

NOT_FOUND = 127
NOT_EXECUTABLE = 126
POLL_SECONDS = 0.2

# Forwarded when a process sends them to the launcher. The terminal sends its signals to the whole process group, which includes the program.
FORWARDED = {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGCONT}


class NotStarted(GpuvirtError):
    """The program could not be started; `code` is the exit code that a shell would use."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


@contextlib.contextmanager
def reported(found: Connected) -> Iterator[dict[str, str]]:
    """Gives the launch a name and reports its end to the server. Without the report, the server would keep the session of a program that was killed
    for the grace period, as if its connection had been cut. A private pool needs no report: it ends with the launcher.

    Yields:
        Variables to add to the program's environment.
    """
    if found.private is not None:
        yield {}
        return
    name = secrets.token_bytes(LAUNCH_SIZE)
    try:
        yield {"GPUVIRT_LAUNCH": name.hex()}
    finally:
        with contextlib.suppress(GpuvirtError):  # then the session ends after the grace period
            report_ended(found.status, name)


def check_there(program: str) -> None:
    """Checks, before a pool is started, that the program exists.

    Raises:
        NotStarted: it does not.
    """
    if not (os.path.lexists(program) if os.sep in program else any(os.path.lexists(os.path.join(folder, program)) for folder in os.get_exec_path())):
        raise NotStarted(f"{program}: no such program", NOT_FOUND)


def launch(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs the program to its end and returns the exit code that a shell would show: its own, or 128 plus the signal's number.

    Raises:
        NotStarted: there is no such program, or it cannot be executed.
    """
    watched = FORWARDED | {signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    try:
        # Python ignores these two signals, and exec would keep them ignored.
        pid = os.posix_spawnp(command[0], list(command), environment, setsigmask=before, setsigdef=[signal.SIGPIPE, signal.SIGXFSZ])
    except OSError as error:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if error.errno == errno.ENOENT:
            raise NotStarted(f"{command[0]}: no such program", NOT_FOUND) from None
        raise NotStarted(f"{command[0]} cannot be executed: {error.strerror}", NOT_EXECUTABLE) from None
    try:
        while True:
            # The kernel may deliver SIGCHLD to another thread that does not block it; so the child is also polled.
            info = signal.sigtimedwait(watched, POLL_SECONDS)
            # An interrupted wait whose time is over returns an undefined signal number (Python 3.11).
            if info is None or info.si_signo == signal.SIGCHLD or info.si_signo not in watched:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
            elif info.si_code <= 0:  # sent by a process, not by the kernel for the terminal
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, info.si_signo)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
