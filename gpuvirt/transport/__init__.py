"""How the Python sides talk: the handshake in front of every connection, tokens, the control channel."""
