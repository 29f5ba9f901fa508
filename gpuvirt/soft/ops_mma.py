"""Matrix instructions."""

from __future__ import annotations
