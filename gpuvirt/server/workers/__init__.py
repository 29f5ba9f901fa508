"""Workers, seen by the daemon: forked from a template, each given one session, watched until they end."""
