"""Linking: several PTX modules become one, as the driver's linker (cuLink*) makes one image of several.

What a module keeps to itself gets a name of its own where two modules use the same one; a declaration gives way to its definition, a weak
definition to a strong one or to the first.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from gpuvirt.soft.errors import LinkFailed
from gpuvirt.soft.image import ptx_of
from gpuvirt.soft.layout import SYSCALLS
from gpuvirt.soft.module import Item, Module

_HEADER = re.compile(r"^[ \t]*\.(version|target|address_size)[^\n]*\n?", re.M)
_TOKEN = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:[^\"\\]|\\.)*\"|[A-Za-z_$%][\w$]*", re.S)
SHARED_NAMES = ("visible", "extern", "weak", "common")


def _rename(text: str, names: dict[str, str]) -> str:
    """The text with identifiers replaced, not within comments and strings."""
    return _TOKEN.sub(lambda m: names.get(m.group(), m.group()), text) if names else text


def _private(module: Module) -> set[str]:
    """Names that only this module knows."""
    public = {i.name for i in module.items if i.linkage in SHARED_NAMES}
    return {i.name for i in module.items} - public


def _choose(defined: list[tuple[int, Item]], name: str) -> tuple[int, Item]:
    """Of several definitions of a name, the one that stays."""
    strong = [d for d in defined if d[1].linkage not in ("weak", "common")]
    if len(strong) > 1:
        raise LinkFailed(f"multiple definitions of '{name}', in inputs {strong[0][0] + 1} and {strong[1][0] + 1}")
    return strong[0] if strong else defined[0]


def _header(modules: Sequence[Module]) -> str:
    newest = max(modules, key=lambda m: m.version)
    target = max((m.target for m in modules), key=lambda t: (int(re.sub(r"\D", "", t) or 0), t))
    return f".version {newest.version // 10}.{newest.version % 10}\n.target sm_{target}\n.address_size 64\n"


def merge(texts: Sequence[str]) -> str:
    """One PTX module of several.

    Raises:
        LinkFailed: a name is defined twice, or used and defined nowhere.
    """
    modules = [Module(text) for text in texts]
    if len(modules) == 1:
        _check_references(modules[0])
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
    kept = {name: _choose(found, name) for name, found in every.items()}

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
    linked = "\n".join(parts)
    _check_references(Module(linked))
    return linked


def _check_references(module: Module) -> None:
    """Whatever is declared elsewhere and used here must be here."""
    defined = {i.name for i in module.items if i.defined}
    missing = [i for i in module.items if i.linkage == "extern" and i.name not in defined and i.name not in SYSCALLS]
    missing = [i for i in missing if not (i.kind == "variable" and module.variables[i.name].space == "shared")]
    for item in missing:
        outside = module.text[: item.start] + module.text[item.end :]
        if re.search(rf"(?<![\w$%]){re.escape(item.name)}(?![\w$])", outside):
            raise LinkFailed(f"undefined reference to '{item.name}'")


def link(images: Sequence[bytes]) -> bytes:
    """The image that comes of linking these (PTX or fatbins with PTX), as PTX text with its NUL.

    Raises:
        SoftError: one of them has no PTX, or they do not fit together.
    """
    if not images:
        raise LinkFailed("there is nothing to link")
    return merge([ptx_of(image) for image in images]).encode("latin-1") + b"\0"
