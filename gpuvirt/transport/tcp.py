"""The tcp transport's row: the connection of the handshake carries records, further ones carry payloads."""

from __future__ import annotations

from gpuvirt.transport import handshake as hs
from gpuvirt.transport.transport import ServerEnd, Transport

CHANNELS = 16  # TCP_CHANNELS_MAX
SEALS = True  # GV_TCP_SEALS

TCP = Transport("tcp", needs=hs.NEEDS_NETWORK, connections=CHANNELS, seals=SEALS, resumes=True, one_way_target=1.0, open=ServerEnd, travels=True)
