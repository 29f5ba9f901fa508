"""Linking: several PTX modules become one, as the driver's linker (cuLink*) makes one image of several.

A module's private names are changed where two modules use the same one; a declaration is replaced by its definition, a weak definition by a
strong one or by the first.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from gpuvirt.soft.errors import LinkFailed, NoPtx, SoftError
from gpuvirt.soft.ptx.device_runtime import GRID_CALLS, GRID_PREFIX, LAUNCH_CALLS, LAUNCH_PREFIX
from gpuvirt.soft.ptx.image import host_members, is_host_code, ptx_of
from gpuvirt.soft.ptx.layout import DRIVERS_OWN, SYSCALLS
from gpuvirt.soft.ptx.module import Item, Module

_HEADER = re.compile(r"^[ \t]*\.(version|target|address_size)[^\n]*\n?", re.M)
_TOKEN = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:[^\"\\]|\\.)*\"|[A-Za-z_$%][\w$]*", re.S)
SHARED_NAMES = ("visible", "extern", "weak", "common")
NVVM = 5  # CUjitInputType


class Input(NamedTuple):
    """One input of a link. type: CUjitInputType, but what the data are is seen from them."""

    type: int
    name: str
    data: bytes


class _Part(NamedTuple):
    """A PTX text among the inputs. optional: a library's, which is taken when somebody needs it."""

    name: str
    text: str
    optional: bool = False


def _rename(text: str, names: dict[str, str]) -> str:
    """The text with identifiers replaced, not within comments and strings."""
    return _TOKEN.sub(lambda m: names.get(m.group(), m.group()), text) if names else text


def _private(module: Module) -> set[str]:
    """Names that only this module knows."""
    public = {i.name for i in module.items if i.linkage in SHARED_NAMES}
    return {i.name for i in module.items} - public


def _choose(defined: list[tuple[int, Item]], name: str, names: Sequence[str]) -> tuple[int, Item]:
    """Of several definitions of a name, the one that stays."""
    strong = [d for d in defined if d[1].linkage not in ("weak", "common")]
    if len(strong) > 1:
        raise LinkFailed(f"multiple definitions of '{name}', in '{names[strong[0][0]]}' and '{names[strong[1][0]]}'")
    return strong[0] if strong else defined[0]


def _header(modules: Sequence[Module]) -> str:
    """The target is that of the program's kernels, which tell it as their PTX version: CUB looks there for what it was compiled for. The CUDA device
    runtime, which nvcc links to any program of several pieces, has kernels, too, and is for the newest device: so the oldest one counts."""
    newest = max(modules, key=lambda m: m.version)

    def number(module: Module) -> tuple[int, str]:
        return int(re.sub(r"\D", "", module.target) or 0), module.target

    with_kernels = [m for m in modules if m.kernels]
    target = (min(with_kernels, key=number) if with_kernels else max(modules, key=number)).target
    return f".version {newest.version // 10}.{newest.version % 10}\n.target sm_{target}\n.address_size 64\n"


def merge(texts: Sequence[str], labels: Sequence[str] | None = None, whole: int | None = None) -> str:
    """One PTX module of several.

    Args:
        labels: what to call the texts in messages.
        whole: so many of the texts, the first ones, may use nothing that is defined nowhere; None: all. The others are a library's: much of it may
            need what only a driver has, and a kernel that comes to such a call fails when it is compiled.

    Raises:
        LinkFailed: a name is defined twice, or used and defined nowhere.
    """
    labels = labels or [f"input {i + 1}" for i in range(len(texts))]
    modules = [_read(text, label) for text, label in zip(texts, labels, strict=True)]
    _check_references(modules[:whole], modules, labels)
    if len(modules) == 1:
        return modules[0].text
    users = Counter(name for module in modules for name in {i.name for i in module.items})
    taken = set(users)
    renamed = []
    for number, module in enumerate(modules):
        names = {}
        for name in sorted(_private(module)):
            if users[name] > 1:
                fresh = f"{name}$link{number}"
                while fresh in taken:
                    fresh += "$"
                taken.add(fresh)
                names[name] = fresh
        renamed.append(Module(_rename(module.text, names)))

    every: dict[str, list[tuple[int, Item]]] = {}
    for number, module in enumerate(renamed):
        for item in module.items:
            if item.defined:
                every.setdefault(item.name, []).append((number, item))
    kept = {name: _choose(found, name, labels) for name, found in every.items()}

    parts = [_header(renamed)]
    for number, module in enumerate(renamed):
        pieces, position = [], 0
        for item in sorted(module.items, key=lambda i: i.start):
            stays = kept.get(item.name)
            if stays is None or stays == (number, item) or (not item.defined and item.kind == "func"):
                continue  # a function's declarations may stand beside its definition, and calls before it need one
            pieces.append(module.text[position : item.start])
            if item.defined and item.kind == "func":
                body = module.text.find("{", item.start, item.end)
                pieces.append(".extern " + module.text[item.start : body].removeprefix(f".{item.linkage}").strip() + ";\n")
            position = item.end
        pieces.append(module.text[position:])
        parts.append(_HEADER.sub("", "".join(pieces)))
    return "\n".join(parts)


def _read(text: str, name: str) -> Module:
    try:
        return Module(text)
    except SoftError as error:
        error.args = (f"input '{name}': {error}",)
        raise


def _declared(module: Module) -> list[Item]:
    """What the module declares as defined elsewhere. A declaration of dynamic shared memory looks the same and has no definition."""
    found = [i for i in module.items if i.linkage == "extern" and not i.defined and i.name not in SYSCALLS]
    return [i for i in found if not (i.kind == "variable" and module.variables[i.name].space == "shared")]


def _used(module: Module, item: Item) -> bool:
    outside = module.text[: item.start] + module.text[item.end :]
    return re.search(rf"(?<![\w$%]){re.escape(item.name)}(?![\w$])", outside) is not None


def _missing(users: Sequence[Module], modules: Sequence[Module]) -> list[tuple[int, Item]]:
    """What the users (the first of the modules) declare and use and no module defines, with the number of the module that uses it."""
    defined = {i.name for module in modules for i in module.items if i.defined}
    return [(n, i) for n, module in enumerate(users) for i in _declared(module) if i.name not in defined and _used(module, i)]


def _check_references(users: Sequence[Module], modules: Sequence[Module], names: Sequence[str]) -> None:
    """Checks that every external symbol that is used is defined."""
    missing = [(n, item) for n, item in _missing(users, modules) if not item.name.startswith(DRIVERS_OWN)]
    if missing:
        raise LinkFailed("; ".join(dict.fromkeys(f"undefined reference to '{item.name}' in '{names[n]}'" for n, item in missing)))


def _parts(given: Input) -> list[_Part]:
    """The PTX of one input.

    Raises:
        SoftError: it has none; the message names the input.
    """
    try:
        if given.type == NVVM:
            raise NoPtx("it is NVVM or LTO code; the software GPU links PTX only")
        if is_host_code(given.data):
            return [_Part(f"{given.name}({member})", text, optional=True) for member, text in host_members(given.data)]
        return [_Part(given.name, ptx_of(given.data))]
    except SoftError as error:
        error.args = (f"input '{given.name}' cannot be linked: {error}",)
        raise


def _wanted(parts: Sequence[_Part]) -> list[_Part]:
    """The parts without those of libraries that nobody needs, as linkers do it: a library's member is linked when it defines a missing symbol."""
    chosen = [part for part in parts if not part.optional]
    rest = [(part, _read(part.text, part.name)) for part in parts if part.optional]
    modules = [_read(part.text, part.name) for part in chosen] if rest else []
    found = True
    while rest and found:
        found = False
        names = {item.name for _, item in _missing(modules, modules)}
        for part, module in rest:
            if names & {i.name for i in module.items if i.defined and i.linkage in SHARED_NAMES}:
                chosen.append(part)
                modules.append(module)
                rest.remove((part, module))
                found = True
                break
    return chosen


def link(inputs: Sequence[Input]) -> bytes:
    """The image that comes of linking these (PTX, fatbins with PTX, host objects and libraries that hold such), as PTX text with its NUL.

    Raises:
        SoftError: one of them has no PTX, or they do not fit together.
    """
    parts = [part for given in inputs for part in _parts(given)]
    for prefix, calls in ((GRID_PREFIX, GRID_CALLS), (LAUNCH_PREFIX, LAUNCH_CALLS)):
        if any(prefix in part.text for part in parts):
            parts.append(_Part("the driver", calls, optional=True))
    parts = _wanted(parts)
    if not parts:
        raise LinkFailed("there is nothing to link")
    return merge([part.text for part in parts], [part.name for part in parts], sum(not part.optional for part in parts)).encode("latin-1") + b"\0"
