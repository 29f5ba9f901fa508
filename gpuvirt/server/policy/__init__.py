"""Who gets which GPU, and when. `sharing` decides for the sessions of today, `machine` for leases that may have to wait."""

from gpuvirt.server.policy.sharing import Ended, Grant, Moved, Policy, Refuse, Wanted

__all__ = ["Ended", "Grant", "Moved", "Policy", "Refuse", "Wanted"]
