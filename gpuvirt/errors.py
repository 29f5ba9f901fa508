"""The one exception that a user is meant to see as a line."""

from __future__ import annotations


class GpuvirtError(Exception):
    """Something that gpuvirt itself could not do. Its text is one line that says what happened and what to do about it.

    The command line prints it as ``gpuvirt: TEXT`` and exits with 125.
    """
