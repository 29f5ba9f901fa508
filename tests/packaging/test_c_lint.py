"""The static analyzer, further than the gate lets it go."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "c_lint.py"


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_analyzer_finds_nothing_deeper() -> None:
    done = subprocess.run([sys.executable, str(TOOL), "--deep"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
