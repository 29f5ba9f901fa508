"""The client's Python side: settings, the environment of a program, the launcher, in-process activation."""
