"""The exception whose text is shown to the user."""

from __future__ import annotations


class GpuvirtError(Exception):
    """An error of gpuvirt itself. Its text is one line: what happened, and what to do about it.

    The command line prints it as ``gpuvirt: TEXT`` and exits with 125.
    """
