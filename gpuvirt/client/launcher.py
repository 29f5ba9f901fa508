"""Runs a program as a child: its terminal, its signals, its exit code are as if we were not there."""

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
LOOK_AGAIN = 0.2  # seconds

# Passed on when somebody sends them to us alone. What the terminal sends goes to the whole process group, and so to the program too.
FORWARDED = {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGCONT}


class NotStarted(GpuvirtError):
    """The program could not be started; `code` is what a shell would exit with."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


@contextlib.contextmanager
def reported(found: Connected) -> Iterator[dict[str, str]]:
    """Names what runs inside, and tells the server when that has ended: a program that was killed cannot say goodbye, and without this the server
    would wait for it to come back for as long as it waits for one whose connection was cut. A private pool ends by itself.

    Yields:
        What the program's environment needs in addition.
    """
    if found.private is not None:
        yield {}
        return
    name = secrets.token_bytes(LAUNCH_SIZE)
    try:
        yield {"GPUVIRT_LAUNCH": name.hex()}
    finally:
        with contextlib.suppress(GpuvirtError):  # then the server finds out by waiting
            report_ended(found.status, name)


def check_there(program: str) -> None:
    """Before anything is started for it: is there such a program?

    Raises:
        NotStarted: there is none.
    """
    if not (os.path.lexists(program) if os.sep in program else any(os.path.lexists(os.path.join(folder, program)) for folder in os.get_exec_path())):
        raise NotStarted(f"{program}: no such program", NOT_FOUND)


def launch(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs the program to its end and returns the exit code a shell would show: its own, or 128 and the signal's number.

    Raises:
        NotStarted: there is no such program, or it cannot be executed.
    """
    watched = FORWARDED | {signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    try:
        # Python ignores these two, and an ignored signal stays ignored over exec.
        pid = os.posix_spawnp(command[0], list(command), environment, setsigmask=before, setsigdef=[signal.SIGPIPE, signal.SIGXFSZ])
    except OSError as error:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if error.errno == errno.ENOENT:
            raise NotStarted(f"{command[0]}: no such program", NOT_FOUND) from None
        raise NotStarted(f"{command[0]} cannot be executed: {error.strerror}", NOT_EXECUTABLE) from None
    try:
        while True:
            # Another thread that does not block SIGCHLD may be given it, and then it is lost: so we also look now and then.
            info = signal.sigtimedwait(watched, LOOK_AGAIN)
            # And a wait that was interrupted until its time was over gives a number that nobody has set (Python 3.11).
            if info is None or info.si_signo == signal.SIGCHLD or info.si_signo not in watched:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
            elif info.si_code <= 0:  # sent by a process; the terminal's come from the kernel
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, info.si_signo)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
