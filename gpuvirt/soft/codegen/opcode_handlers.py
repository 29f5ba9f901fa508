"""The table of opcodes: a function for each, registered by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuvirt.soft.codegen.emitter import Emitter
    from gpuvirt.soft.ptx.parser import Ins

Handler = Callable[["Emitter", "Ins"], None]
OPCODES: dict[str, Handler] = {}


def opcode(*names: str) -> Callable[[Handler], Handler]:
    """Registers the emitter function of one or more opcodes."""

    def register(handler: Handler) -> Handler:
        for name in names:
            OPCODES[name] = handler
        return handler

    return register
