"""The ledger: what a daemon must know again when it is started anew (store.py)."""
