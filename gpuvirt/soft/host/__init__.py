"""The host's side: machine code, caches, modules in contexts, the C engine."""
