"""The daemon's file descriptors: as many as the system allows, and most of them out of strangers' reach."""

from __future__ import annotations

import resource

STRANGERS = 4  # connections that have proved nothing get at most one in so many descriptors


def raise_limit() -> int:
    """Raises the limit of open files to the hard one; returns what it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):
            pass  # the system has a lower bound of its own
    return soft if soft != resource.RLIM_INFINITY else 1 << 20


def for_strangers(limit: int, wanted: int, each: int = 1) -> int:
    """How many connections without a proof may be open at the same time on one port.

    Args:
        limit: what `raise_limit` returned.
        wanted: how many would be good.
        each: descriptors that one takes.
    """
    return max(8, min(wanted, limit // STRANGERS // 2 // each))  # two ports
