"""Loads commands.toml: what travels on the wire, as plain records for the emitters."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WIDTHS = {"u32": 4, "i32": 4, "f32": 4, "u64": 8}
C_TYPES = {"u32": "uint32_t", "i32": "int32_t", "f32": "float", "u64": "uint64_t"}


WORKER_KEYS = {"bytes", "device", "needs", "context", "stream", "find", "make", "destroy", "kernel", "call", "fails", "may_wait", "work", "saved"}
OBJECT_KEYS = {"destroy", "context", "bytes", "more", "by_hand", "most", "sum"}


class SpecError(Exception):
    """The table says something that cannot be."""


@dataclass(frozen=True)
class Field:
    """One field of a body. `offset` is where its scalar (for bytes and str: its u32 length) stands in the fixed part."""

    name: str
    type: str
    count: int
    offset: int

    @property
    def is_blob(self) -> bool:
        return self.type in ("bytes", "str")

    @property
    def width(self) -> int:
        return 4 if self.is_blob else WIDTHS[self.type] * self.count


@dataclass(frozen=True)
class Body:
    """The fields of one struct: a fixed part of `fixed` bytes (a multiple of 8), then the data of the blobs in order, each padded to 8."""

    name: str
    fields: tuple[Field, ...]
    fixed: int

    @property
    def blobs(self) -> tuple[Field, ...]:
        return tuple(f for f in self.fields if f.is_blob)


@dataclass(frozen=True)
class Work:
    """What the worker does with a command; see the head of commands.toml. `call`: the backend's function, and its arguments as they stand there."""

    saved: str
    bytes: str = ""
    device: bool = False
    needs: tuple[str, ...] = ()
    context: bool = False
    stream: str = ""
    find: tuple[tuple[str, str], ...] = ()
    make: tuple[str, str] | None = None
    destroy: tuple[str, str] | None = None
    kernel: bool = False
    call: tuple[str, tuple[str, ...]] | None = None
    fails: str = ""
    may_wait: bool = False
    work: bool = False

    @property
    def by_hand(self) -> bool:
        """Whether worker_do_X has to be written."""
        return self.call is None and self.destroy is None and not self.fence

    @property
    def fence(self) -> bool:
        """Whether the command is nothing but its completion mark."""
        return self.call is None and self.stream == "must" and not (self.find or self.work)


@dataclass(frozen=True)
class Object:
    """A kind of object; see the head of commands.toml. `more`: name and C type of what the worker keeps besides."""

    kind: str
    destroy: str
    context: bool = False
    bytes: str = ""
    more: tuple[tuple[str, str], ...] = ()
    by_hand: bool = False
    most: str = ""
    sum: tuple[tuple[str, str], ...] = ()

    @property
    def struct(self) -> str:
        return f"worker_{self.kind}"

    @property
    def table(self) -> str:
        """Where the worker has all of the kind, an expression of C."""
        return f"w->{self.kind}s" if self.by_hand else f"w->objects.{self.kind}s"

    @property
    def missing(self) -> str:
        """What the driver returns where there is none."""
        return "CUDA_ERROR_INVALID_CONTEXT" if self.kind == "context" else "CUDA_ERROR_INVALID_HANDLE"


@dataclass(frozen=True)
class Command:
    """A command of the client."""

    name: str
    number: int
    sync: bool
    body: Body
    reply: Body
    work: Work
    why: str = ""


@dataclass(frozen=True)
class Event:
    """What a worker sends."""

    name: str
    number: int
    body: Body


@dataclass
class CommandSpec:
    """The whole table, in its order."""

    objects: dict[str, Object] = field(default_factory=dict)
    commands: list[Command] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def names(self) -> list[tuple[str, int]]:
        """Every name on the wire and its number."""
        return [(c.name, c.number) for c in self.commands] + [(e.name, e.number) for e in self.events]


def lay_out(struct: str, fields: dict[str, str]) -> Body:
    """Places each field at its natural alignment, in the order of the table."""
    placed = []
    offset = 0
    for name, text in fields.items():
        match = re.fullmatch(r"(u32|i32|f32|u64|bytes|str)(?:\[(\d+)\])?", text)
        if not match or (match[2] and match[1] in ("bytes", "str")):
            raise SpecError(f"{struct}.{name}: no such field type: {text}")
        count = int(match[2] or 1)
        align = WIDTHS.get(match[1], 4)
        offset = -(-offset // align) * align
        item = Field(name, match[1], count, offset)
        placed.append(item)
        offset += item.width
    return Body(struct, tuple(placed), -(-offset // 8) * 8)


def field_of_call(argument: str) -> str:
    """The field that an argument of `call` names."""
    return argument.rpartition(" ")[2]


def load_object(kind: str, entry: dict[str, Any]) -> Object:
    """One row of the objects."""
    if unknown := entry.keys() - OBJECT_KEYS:
        raise SpecError(f"object.{kind}: unknown key: {sorted(unknown)}")
    more = tuple(entry.get("more", {}).items())
    if "destroy" not in entry or [t for _, t in more if t not in C_TYPES and not re.fullmatch(r"u8\[\w+\]", t)]:
        raise SpecError(f"object.{kind}: an object has a `destroy`, and what is kept besides is a number, or bytes: u8[N]")
    sums = tuple(entry.get("sum", {}).items())
    if missing := [name for name, _ in sums if name not in dict(more)]:
        raise SpecError(f"object.{kind}: what is summed is kept: {missing}")
    by_hand, most = entry.get("by_hand", False), entry.get("most", "")
    return Object(kind, entry["destroy"], entry.get("context", False), entry.get("bytes", ""), more, by_hand, most, sums)


def single(name: str, key: str, entry: dict[str, Any]) -> tuple[str, str] | None:
    """The one field and kind of `make` and `destroy`."""
    found = tuple(entry.get(key, {}).items())
    if len(found) > 1:
        raise SpecError(f"command.{name}: `{key}` is of one object")
    return found[0] if found else None


def load_work(name: str, entry: dict[str, Any], body: Body, reply: Body, objects: dict[str, Object]) -> Work:
    """What stands in the table about the worker, checked against the command's fields."""
    fields = {f.name: f for f in body.fields}
    answers = {f.name for f in reply.fields}

    def wrong(what: str) -> SpecError:
        return SpecError(f"command.{name}: {what}")

    if not re.match(r"(no|todo|image): \S", entry.get("saved", "")):
        raise wrong('`saved` says what a session\'s image keeps of it: "image: what", "no: why not" or "todo: what"')
    call = re.fullmatch(r"(\w+)\((.*)\)", entry.get("call", ""))
    if "call" in entry and not call:
        raise wrong(f"no call: {entry['call']}")
    work = Work(
        saved=entry["saved"],
        bytes=entry.get("bytes", ""),
        device=entry.get("device", False),
        needs=tuple(entry.get("needs", ())),
        context=entry.get("context", False),
        stream=entry.get("stream", ""),
        find=tuple(entry.get("find", {}).items()),
        make=single(name, "make", entry),
        destroy=single(name, "destroy", entry),
        kernel=entry.get("kernel", False),
        call=(call[1], tuple(call[2].split(", "))) if call else None,
        fails=entry.get("fails", ""),
        may_wait=entry.get("may_wait", False),
        work=entry.get("work", False),
    )
    if work.stream not in ("", "must", "may"):
        raise wrong(f"no such way to have a stream: {work.stream}")
    pairs = [*work.find, *filter(None, [work.make, work.destroy])]
    named = [f for f, _ in pairs] + ["stream"] * bool(work.stream) + ["device"] * work.device + ["kernel"] * work.kernel
    named += [work.bytes, "bulk"] if work.bytes else []
    if missing := [f for f in named if f not in fields]:
        raise wrong(f"no such field: {missing}")
    if strange := [kind for _, kind in pairs if kind not in objects]:
        raise wrong(f"no such kind of object: {strange}")
    news = [field_of_call(a) for a in (work.call[1] if work.call else ()) if a.startswith("new ")]
    if news != ([work.make[0]] if work.make else []):
        raise wrong("what `make` names is what the call makes: new FIELD")
    made = objects[work.make[1]] if work.make else None
    if made and (made.context or made.kind == "stream") and not work.context:
        raise wrong(f"a {made.kind} is made in a context")
    if made and made.bytes and made.bytes not in fields:
        raise wrong(f"no such field: {made.bytes}")
    if work.destroy and (work.call or work.find or entry["class"] == "sync"):
        raise wrong("`destroy` is all that its command does, and nobody waits for it")
    if work.kernel and ("module", "module") not in work.find:
        raise wrong("a kernel is one of the module's that the command names")
    known = {"backend"} | ({"context"} if work.context else set()) | ({"stream"} if work.stream == "must" else set())
    known |= {"device_context"} if work.device else set()
    for argument in work.call[1] if work.call else ():
        place = answers if argument.startswith(("out ", "inout ")) else known | fields.keys()
        if argument.startswith("struct "):
            continue
        if field_of_call(argument) not in place or (argument.startswith("inout ") and field_of_call(argument) not in fields):
            raise wrong(f"the call names what is not there: {argument}")
    return work


def load(path: Path) -> CommandSpec:
    """Reads and checks the table: unknown keys, repeated numbers and a sync command without its reason are refused."""
    table = tomllib.loads(path.read_text())
    spec = CommandSpec()
    for kind, entry in table.pop("object", {}).items():
        spec.objects[kind] = load_object(kind, entry)
    for name, entry in table.pop("command").items():
        unknown = entry.keys() - {"number", "class", "why", "fields", "reply"} - WORKER_KEYS
        if unknown or entry["class"] not in ("sync", "async"):
            raise SpecError(f"command.{name}: unknown key or class: {sorted(unknown) or entry['class']}")
        sync = entry["class"] == "sync"
        if sync != ("why" in entry) or (not sync and "reply" in entry):
            raise SpecError(f"command.{name}: a sync command needs a why; an async one has neither a why nor a reply")
        body = lay_out(f"gv_cmd_{name}", entry["fields"])
        reply = lay_out(f"gv_reply_{name}", entry.get("reply", {}))
        work = load_work(name, entry, body, reply, spec.objects)
        spec.commands.append(Command(name, entry["number"], sync, body, reply, work, entry.get("why", "")))
    for name, entry in table.pop("event").items():
        if unknown := entry.keys() - {"number", "fields"}:
            raise SpecError(f"event.{name}: unknown key: {sorted(unknown)}")
        spec.events.append(Event(name, entry["number"], lay_out(f"gv_evt_{name}", entry["fields"])))
    if table:
        raise SpecError(f"{path.name}: neither object, command nor event: {sorted(table)}")
    numbers = {number for _, number in spec.names()}
    if len(numbers) != len(spec.names()) or not all(0 < n < 65536 for n in numbers):
        raise SpecError(f"{path.name}: numbers must be unique and fit 16 bits")
    if len({name for name, _ in spec.names()}) != len(spec.names()):
        raise SpecError(f"{path.name}: a command and an event share a name")
    return spec
