"""The ports of a daemon that are not the data port: ZeroMQ behind a proxy that bounds who may connect."""
