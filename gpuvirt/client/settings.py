"""A program's settings, from options, the environment (GPUVIRT_<NAME>) and ~/.config/gpuvirt/config.toml, in this order of precedence."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuvirt import paths
from gpuvirt.capability import format_capability, parse_capability
from gpuvirt.client import links
from gpuvirt.durations import parse_duration
from gpuvirt.errors import GpuvirtError
from gpuvirt.sizes import parse_size
from gpuvirt.transport.handshake import LEASE_SIZE
from gpuvirt.transport.pool import FIND, PoolAddress, parse_choice

# Settings of a later version. They are refused, because a program that sets one would not get what it asks for.
LATER = ("idle", "for")
MAX_GPUS = 16
WAIT_MOST = 30 * 86400.0  # seconds
PRIORITY_MOST = 100
COMPUTE = 1000  # parts of one GPU's compute


@dataclass(frozen=True)
class Settings:
    """Resolved settings.

    Attributes:
        pool: the server; None means a private local pool.
        chosen_local: the private pool was asked for (`local`), and is not used just because no pool is set.
        gpus: how many; 0: as many as the lease has.
        memory: bytes per GPU, None: all of it.
        compute: thousandths of each GPU's compute, reserved; None: none, what nobody has reserved is shared.
        capability: the compute capability that software GPUs report, None: the server's.
        stats: None: no statistics; "-": one line on stderr; else the path of a file.
        token: text of the token, None: find one.
        quiet: `gpuvirt run` and `attach` print only errors of their own.
        lease: the id of the lease to work under, 16 bytes, None: none is named.
        no_wait: be refused instead of waiting for GPUs.
        wait: seconds to wait for GPUs at most, None: without a limit.
        priority: among those that wait, -100 to 100; higher ones are served first.
    """

    pool: PoolAddress | None = None
    chosen_local: bool = False
    gpus: int = 1
    memory: int | None = None
    compute: int | None = None
    link: str = "auto"
    capability: str | None = None
    stats: str | None = None
    token: str | None = None
    quiet: bool = False
    lease: bytes | None = field(default=None, repr=False)
    no_wait: bool = False
    wait: float | None = None
    priority: int = 0


def parse_link(text: str) -> str:
    """Checks the text of a link.

    Raises:
        ValueError: it is not valid; the error names the wrong part and shows a valid text.
    """
    links.parse(text)
    return text.strip() or "auto"


def parse_gpus(value: Any) -> int:
    """Checks a number of GPUs.

    Raises:
        ValueError: it is not a number from 1 to 16.
    """
    number = value if isinstance(value, int) and not isinstance(value, bool) else int(value) if str(value).isdecimal() else 0
    if not 1 <= number <= MAX_GPUS:
        raise ValueError(f"{value!r} is not a number of GPUs (1 to {MAX_GPUS})")
    return number


def _parse_bool(value: Any) -> bool:
    text = str(value).lower()
    if text in ("1", "true", "yes", "on"):
        return True
    if text in ("0", "false", "no", "off", ""):
        return False
    raise ValueError(f"{value!r} is neither yes nor no")


def _parse_stats(value: Any) -> str | None:
    if isinstance(value, bool) or str(value).lower() in ("1", "true", "0", "false", "", "-"):
        return "-" if value == "-" or _parse_bool(value) else None
    return os.path.abspath(os.path.expanduser(str(value)))


def _parse_memory(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else parse_size(str(value))


def parse_compute(value: Any) -> int:
    """Thousandths of a GPU's compute, from a part of it such as 0.25 or a text of that.

    Raises:
        ValueError: it is no part of a GPU, or no whole number of thousandths.
    """
    text = str(value).strip()
    match = None if isinstance(value, bool) else re.fullmatch(r"(\d?)(?:\.(\d{0,3})0*)?", text)
    found = int(match[1] or 0) * COMPUTE + int((match[2] or "").ljust(3, "0")) if match else 0
    if not 1 <= found <= COMPUTE:
        raise ValueError(f"{value!r} is no part of a GPU; write it like 0.5: more than 0, 1 at most, three decimals")
    return found


def format_compute(thousandths: int) -> str:
    """What `parse_compute` reads."""
    return f"{thousandths / COMPUTE:g}"


def parse_wait(value: Any) -> float:
    """Seconds to wait, from a number of them or a text.

    Raises:
        ValueError: it is neither, or longer than the wire can say.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    found = float(value) if number else parse_duration(str(value))
    if not 0.001 <= found <= WAIT_MOST:
        raise ValueError(f"{value!r} is no time to wait: 1ms to {WAIT_MOST // 86400:.0f}d")
    return found


def parse_priority(value: Any) -> int:
    """Checks a priority.

    Raises:
        ValueError: it is no whole number from -100 to 100.
    """
    try:
        found = None if isinstance(value, bool) else int(str(value))
    except ValueError:
        found = None
    if found is None or not -PRIORITY_MOST <= found <= PRIORITY_MOST:
        raise ValueError(f"{value!r} is no priority (-{PRIORITY_MOST} to {PRIORITY_MOST})")
    return found


def _parse_lease(value: Any) -> bytes:
    try:
        id = bytes.fromhex(str(value))
    except ValueError:
        id = b""
    if len(id) != LEASE_SIZE:
        raise ValueError(f"{value!r} is no lease: {2 * LEASE_SIZE} hexadecimal digits, as `gpuvirt attach` sets them")
    return id


_PARSERS: dict[str, Callable[[Any], Any]] = {
    "pool": lambda value: parse_choice(str(value)),
    "local": _parse_bool,
    "gpus": parse_gpus,
    "memory": _parse_memory,
    "compute": parse_compute,
    "link": lambda value: parse_link(str(value)),
    "capability": lambda value: format_capability(parse_capability(str(value))),
    "stats": _parse_stats,
    "token": lambda value: str(value),
    "quiet": _parse_bool,
    "lease": _parse_lease,
    "no_wait": _parse_bool,
    "wait": parse_wait,
    "priority": parse_priority,
}
ENVIRONMENT_ONLY = ("lease",)


def resolve(options: Mapping[str, Any], environment: Mapping[str, str] | None = None, file: Path | None = None) -> Settings:
    """Combines options, environment and configuration file.

    Args:
        options: values of the command line or of a call, by the names of `Settings` and ``local``; None means not given.
        environment: None: this process's.
        file: the configuration file, None: `paths.config_file`.

    Raises:
        GpuvirtError: a value is not valid, or its name is unknown; the text names its source. Or the pool is to be found, and there is none.
    """
    layers = [
        {name: (value, f"--{name.replace('_', '-')}") for name, value in options.items() if value is not None},
        _from_environment(os.environ if environment is None else environment),
        _from_file(file or paths.config_file()),
    ]
    found: dict[str, Any] = {}
    for layer in layers:
        here: dict[str, Any] = {}
        for name, (value, source) in layer.items():
            if name in LATER:
                raise GpuvirtError(f"{source} is not in this version; remove it")
            if name not in _PARSERS or (name in ENVIRONMENT_ONLY and layer is not layers[1]):
                raise GpuvirtError(f"{source} is not a setting; see `gpuvirt run --help`")
            try:
                here[name] = _PARSERS[name](value)
            except (ValueError, GpuvirtError) as error:
                raise GpuvirtError(f"{source}: {error}") from None
        if here.get("local") and "pool" in here:
            raise GpuvirtError(f"{layer['pool'][1]} and {layer['local'][1]} contradict each other; give one of them")
        if here.get("no_wait"):  # as with a pool and --local
            if "wait" in here:
                raise GpuvirtError(f"{layer['no_wait'][1]} and {layer['wait'][1]} contradict each other; give one of them")
            here["wait"] = None
        elif "wait" in here:
            here["no_wait"] = False
        if "pool" in here or here.get("local"):  # a pool and --local are one setting: the layer with precedence decides both
            here.setdefault("local", False)
            here.setdefault("pool", None)
        else:
            here.pop("local", None)
        for name, value in here.items():
            found.setdefault(name, value)
    if "lease" in found and found.get("pool") != _pool_of(layers[1]):
        del found["lease"]  # another pool than the lease's was asked for
    if "lease" in found:
        found.setdefault("gpus", 0)
    local = bool(found.pop("local", False))
    if found.get("pool") == FIND:
        from gpuvirt.transport.discovery import find_pool  # not where a pool is named

        def say(text: str) -> None:
            if not found.get("quiet"):
                print(f"gpuvirt: {text}", file=sys.stderr)

        late = threading.Timer(1.0, say, ["looking for a pool that announces itself in this network"])
        late.start()
        try:
            name, found["pool"] = find_pool(found.get("token"))
        finally:
            late.cancel()
        say(f"found the pool of {name} at {found['pool'].url}")
    return Settings(chosen_local=local, **found)


def _pool_of(environment: Mapping[str, tuple[Any, str]]) -> PoolAddress | None:
    """The pool that the environment names, which was checked before."""
    return parse_choice(str(environment["pool"][0])) if "pool" in environment else None


def _from_environment(environment: Mapping[str, str]) -> dict[str, tuple[Any, str]]:
    names = [*_PARSERS, *LATER]
    return {name: (value, variable) for name in names if (value := environment.get(variable := f"GPUVIRT_{name.upper()}"))}


def _from_file(file: Path) -> dict[str, tuple[Any, str]]:
    try:
        text = file.read_text()
        import tomllib  # not where there is no file

        content = tomllib.loads(text)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise GpuvirtError(f"{file} cannot be read: {error}") from None
    return {name.replace("-", "_"): (value, f"{name} in {file}") for name, value in content.items()}
