"""The compiler's half, which has nothing to do: the target is one that Triton's own CUDA compiler takes."""

from __future__ import annotations

from typing import Any

from triton.backends.compiler import BaseBackend


class Compiler(BaseBackend):  # type: ignore[misc]
    """Takes no target."""

    @staticmethod
    def supports_target(target: Any) -> bool:
        return False

    def _never(self, *_args: Any) -> Any:
        raise NotImplementedError("this backend compiles nothing")

    hash = parse_options = add_stages = load_dialects = get_module_map = pack_metadata = get_codegen_implementation = _never
