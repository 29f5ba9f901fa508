"""Batch jobs: programs of several ranks that begin when all of them have their GPUs, on this machine, in the background."""
