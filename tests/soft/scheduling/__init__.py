"""Programs in which threads wait for one another, as sm_70 and later allow it. `python -m soft.scheduling CASE...` runs them and prints a line for each:
a case that hangs ends the process at its deadline, so they run apart from the tests (test_scheduling.py)."""

from __future__ import annotations

from soft.scheduling import clusters, convergence, locks, producer_consumer, programs
from soft.scheduling.cases import CASES, MISSING

__all__ = ["CASES", "MISSING", "clusters", "convergence", "locks", "producer_consumer", "programs"]
