"""Sessions go from one worker to another: on this host, or on two."""
