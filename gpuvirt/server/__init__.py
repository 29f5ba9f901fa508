"""The daemon `gpuvirt serve` and its workers."""
