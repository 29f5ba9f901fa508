"""Leases go from one host of a pool to another, with what works under them."""
