"""What a daemon decides about its workers' box when it starts: whether there is one, and whether tenants get users of their own."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from gpuvirt.errors import GpuvirtError
from gpuvirt.server.box import features, files

log = logging.getLogger("gpuvirt.server")

# Users that nobody else gives out: above the range that systemd keeps for containers, below those that some programs take for negative numbers.
FIRST_USER = 1879048192
USERS = 65536
HELPER_USER = FIRST_USER + USERS  # as which compilers run, for all tenants


@dataclass(frozen=True)
class Choice:
    """Attributes:
    boxed: whether workers put themselves into a box.
    users: whether each tenant's workers get a user of their own.
    """

    boxed: bool
    users: bool = False

    def worker_options(self) -> list[str]:
        """For the worker's command line."""
        return ["--box", "auto" if self.boxed else "off", "--helper-user", str(HELPER_USER if self.users else 0)]


def choose(mode: str, secret: list[Path], driver: Path | None = None, driver_is_client: bool = False) -> Choice:
    """Decides by what the kernel has, and says once what is missing.

    Args:
        mode: one of `options.BOX_MODES`.
        secret: folders that workers must not read.
        driver: the real driver; its devices must be open to tenants' users.
        driver_is_client: it is gpuvirt's own, which reads this user's tokens.

    Raises:
        GpuvirtError: "required", and the box would have a hole.
    """
    if mode == "off":
        log.warning("workers run without a box: whoever has a token can do what this user can")
        return Choice(False)
    holes = features.missing()
    holes += [f"{folder} lies inside a folder that workers read; set another one" for folder in files.exposed(secret)]
    if holes and mode == "required":
        raise GpuvirtError(f"--box required: {'; '.join(holes)}")
    for hole in holes:
        log.warning("the workers' box has a hole: %s", hole)
    return Choice(True, os.geteuid() == 0 and not driver_is_client and _users_possible(driver))


def _users_possible(driver: Path | None) -> bool:
    needed = [folder for folder in files.code() if folder.exists()]
    closed = [path for path in needed if not _open_to_others(path)]
    if driver is not None:
        closed += [path for path in Path("/dev").glob("nvidia[0-9c]*") if path.is_char_device() and path.stat().st_mode & 0o006 != 0o006]
    if closed:
        log.warning("tenants get no users of their own, because other users cannot open %s", closed[0])
    return not closed


def _open_to_others(path: Path) -> bool:
    """Whether any user may list and read a folder, or read a file."""
    path = path.resolve()
    wanted = 0o005 if path.is_dir() else 0o004
    return path.stat().st_mode & wanted == wanted and all(above.stat().st_mode & 0o001 for above in path.parents)
