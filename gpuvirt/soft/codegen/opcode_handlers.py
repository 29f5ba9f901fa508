"""The functions that emit opcodes. A row of the opcode table names its function; here the two are brought together."""

from __future__ import annotations

from collections.abc import Callable

from gpuvirt.soft.codegen.context import Context
from gpuvirt.soft.ptx.opcodes import OPCODES, TableError
from gpuvirt.soft.ptx.parser import Ins

Handler = Callable[[Context, Ins], None]
HANDLERS: dict[str, Handler] = {}  # by opcode
_functions: dict[str, Handler] = {}  # as the table names them


def emits(function: Handler) -> Handler:
    """Marks a function of gpuvirt.soft.ops as one that a row of the table names."""
    _functions[f"{function.__module__.rpartition('.')[2]}:{function.__name__}"] = function
    return function


def bind() -> None:
    """Once all of gpuvirt.soft.ops is imported: finds each row's function.

    Raises:
        TableError: a row names a function that is not there, or a function is named by no row.
    """
    named = {row.handler: row.name for row in OPCODES.values() if row.handler}
    missing = [f"{name} ({function})" for function, name in named.items() if function not in _functions]
    if missing:
        raise TableError(f"opcodes without their functions: {', '.join(missing)}")
    idle = sorted(set(_functions) - set(named))
    if idle:
        raise TableError(f"functions that no opcode names: {', '.join(idle)}")
    HANDLERS.update((row.name, _functions[row.handler]) for row in OPCODES.values() if row.handler)


__all__ = ["HANDLERS", "Handler", "bind", "emits"]
