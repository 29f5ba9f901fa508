"""A pool of many hosts: one scheduler, and on each host a daemon that is a member."""
