"""The descriptor store: a process beside a daemon, which outlives it and holds what the next daemon needs to go on with its sessions.

systemd has the same for its services (FDSTORE). Here it is the daemon's own, so that it works without. All is in memory: nothing of a session's keys
comes to a disk. process.py is the store, store.py the daemon's side of it.
"""
