"""What this kernel and this account have for the box; what is missing is told to the user."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass

from gpuvirt.server.box import bpf, kernel, landlock


@dataclass(frozen=True)
class Feature:
    """One part of the box. `essential`: without it the box has a hole; else another part has the same, or less is bounded."""

    name: str
    there: bool
    text: str
    essential: bool = True


def features() -> list[Feature]:
    """All parts of the box, with what is there or what its absence means."""
    version = landlock.abi()
    release = platform.release()
    if not kernel.known_machine():
        no_files = no_calls = f"not for {platform.machine()}"
    else:
        no_files = f"Linux {release} has no Landlock, or it is switched off: workers can read and write all files of the server's user"
        no_calls = f"Linux {release} has no seccomp filters: workers can start programs, open connections and send signals"
    found = [
        Feature("files", version >= 1, f"Landlock, version {version}" if version else no_files),
        Feature("system calls", bpf.available(), "seccomp" if bpf.available() else no_calls),
    ]
    if version:
        older = [text for since, text in ((4, "network"), (6, "signals and abstract sockets")) if version < since]
        text = f"Landlock has no rules for {' and '.join(older)} before a later Linux: seccomp alone denies them" if older else "Landlock and seccomp"
        found.append(Feature("network and signals", not older, text, essential=False))
    return [*found, _user()]


def _user() -> Feature:
    if os.geteuid() == 0:
        return Feature("user", True, "each tenant's workers run as a user of their own", essential=False)
    return Feature("user", False, "only root's server gives workers users of their own: they run as the server's user", essential=False)


def missing() -> list[str]:
    """Why the box has holes here; empty when it has none."""
    return [feature.text for feature in features() if feature.essential and not feature.there]
