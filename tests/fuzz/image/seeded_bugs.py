"""Checks whose absence the fuzzer of images must notice: each is a change of one source of the product, and how it shows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bug:
    """`old` stands once in native/`file`, and becomes `new`; the fuzzer's report then matches `shows`."""

    name: str
    file: str
    old: str
    new: str
    shows: str


BUGS = [
    Bug(
        "nobody looks which memory a mapping is of",
        "backend/soft/image.c",
        "gv_image_get(in, r->n_physicals ? r->n_physicals - 1 : 0)",
        "gv_image_get(in, UINT64_MAX)",
        "heap-buffer-overflow|SEGV|null pointer|misaligned address",  # whatever lies behind the array is taken for a pointer
    ),
    Bug(
        "pages are put wherever they are said to be",
        "backend/soft/image.c",
        "head[2] % SOFT_PAGE == 0 && soft_memory_valid(b, head[2], size)",
        "head[2] % SOFT_PAGE == 0",
        "SEGV|signal",
    ),
    Bug(
        "a stream of no context is made",
        "worker/image/restore.c",
        "int status = context && id > 1 ? w->ops->stream_create",
        "int status = id > 1 ? w->ops->stream_create",
        "SEGV|null pointer",
    ),
]
