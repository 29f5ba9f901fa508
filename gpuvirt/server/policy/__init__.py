"""Who gets which GPU, and when: a pure machine (machine.py)."""
