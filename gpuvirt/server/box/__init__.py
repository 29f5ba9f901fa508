"""The box around a worker: what a worker that runs a stranger's code can still reach."""
