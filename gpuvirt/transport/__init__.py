"""Connections as Python processes see them: the table of transports, the handshake, tokens, the control channel."""
