"""The client's Python code: settings, a program's environment, the launcher, in-process activation."""
