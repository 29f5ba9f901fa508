"""Parser of a link's text (`--link`). native/transport/link_spec.c accepts the same texts; link_spec.h has the grammar."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpuvirt.transport.table import named

WRITE = "write auto, shm, tcp, tcp(channels=4), verbs(rails=2) or delay(rtt=30ms,rate=10gbit,tcp)"
WRITE_TCP = "write tcp(channels=4) or tcp(plain)"
WRITE_VERBS = "write verbs or verbs(rails=2)"
WRITE_DELAY = "write delay(rtt=30ms,rate=10gbit,tcp)"
VERBS = "verbs"
MAX_CHANNELS = 16
MAX_RAILS = 8
MAX_RTT_NS = 2 * 10**9
MIN_RATE, MAX_RATE = 10**4, 10**12
MAX_TEXT = 200
SHOWN = 40  # characters of the user's text that an error shows at most

_TIMES = {"us": 10**3, "ms": 10**6, "s": 10**9}
_RATES = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_QUANTITY = re.compile(r"([0-9]{1,9})(?:\.([0-9]{1,3}))?([^0-9.].*)")


@dataclass
class Link:
    """A parsed link.

    Attributes:
        kind: auto, or a transport's name.
        channels: number of bulk channels, 0: not given.
        plain: the link is not to be sealed.
        rails: pairs of ports that a verbs link uses at most, 0: not given.
        delayed: whether a delay wraps the link.
        rtt_ns: the delay's round-trip time in nanoseconds.
        rate_bps: the delay's rate in bits a second each way, 0: unlimited.
    """

    kind: str = "auto"
    channels: int = 0
    delayed: bool = False
    rtt_ns: int = 0
    rate_bps: int = 0
    plain: bool = False
    rails: int = 0


def parse(text: str) -> Link:
    """Parses a link's text; an empty text means auto.

    Raises:
        ValueError: the text is not a link; the message names the wrong part and shows a valid text.
    """
    # The C library tests bytes, not characters.
    raw = text.encode("utf-8", "surrogateescape")
    if len(raw) > MAX_TEXT:
        raise ValueError(f"a link's text has at most {MAX_TEXT} characters; {WRITE}")
    return _Parser("".join(chr(byte) if 32 <= byte < 127 else "?" for byte in raw)).parse()


class _Parser:
    """Tests the parts of a text in the same order as link_spec.c, so that both report the same error; change both together."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.link = Link()

    def parse(self) -> Link:
        self.spaces()
        if self.at == len(self.text):
            return self.link
        name = self.word()
        if name == "delay":
            self.delay()
        else:
            self.plain(name)
        self.spaces()
        if rest := self.text[self.at :]:
            raise ValueError(f"'{rest[:SHOWN]}' is too much behind the link; {WRITE}")
        return self.link

    def spaces(self) -> None:
        while self.text.startswith(" ", self.at):
            self.at += 1

    def word(self) -> str:
        """The characters up to the next space or punctuation; may be empty."""
        self.spaces()
        begin = self.at
        while self.at < len(self.text) and self.text[self.at] not in " (),=":
            self.at += 1
        found = self.text[begin : self.at]
        self.spaces()
        return found

    def sign(self, sign: str) -> bool:
        self.spaces()
        found = self.text.startswith(sign, self.at)
        self.at += found
        return found

    def plain(self, name: str) -> None:
        """Parses the rest of a link without a delay; its name has been read."""
        row = named(name)
        if row is None and name != "auto":
            raise ValueError(f"'{name[:SHOWN]}' is not a link; {WRITE}")
        self.link.kind = name
        if name == VERBS:
            self.verbs()
        elif row is not None and row.connections:
            if self.sign("("):
                self.tcp()
        elif self.text.startswith("(", self.at):
            raise ValueError(f"the link {name} has no settings; write {name}")

    def tcp(self) -> None:
        while True:
            name = self.word()
            if name == "channels":
                self.link.channels = self.count(self.link.channels, "tcp", name, MAX_CHANNELS, WRITE_TCP)
            elif name == "plain":
                if self.link.plain:
                    raise ValueError(f"tcp has two of plain; {WRITE_TCP}")
                self.link.plain = True
            else:
                raise ValueError(f"'{name[:SHOWN]}' is not a setting of tcp; {WRITE_TCP}")
            if not self.sign(","):
                break
        if not self.sign(")"):
            raise ValueError(f"the ) of tcp is missing after its settings; {WRITE_TCP}")

    def verbs(self) -> None:
        if self.link.delayed:
            raise ValueError(f"a verbs link is not delayed, for its bytes pass no socket; {WRITE_DELAY}")
        if not self.sign("("):
            return
        while True:
            name = self.word()
            if name != "rails":
                raise ValueError(f"'{name[:SHOWN]}' is not a setting of verbs; {WRITE_VERBS}")
            self.link.rails = self.count(self.link.rails, VERBS, name, MAX_RAILS, WRITE_VERBS)
            if not self.sign(","):
                break
        if not self.sign(")"):
            raise ValueError(f"the ) of verbs is missing after its settings; {WRITE_VERBS}")

    def count(self, given: int, link: str, name: str, most: int, write: str) -> int:
        """The value of a setting that counts; given: what it has already, 0: nothing."""
        if given:
            raise ValueError(f"{link} has two of {name}; {write}")
        if not self.sign("="):
            raise ValueError(f"{name} of {link} has no value; {write}")
        value = self.word()
        number = int(value) if value.isdecimal() else 0
        if not 1 <= number <= most:
            raise ValueError(f"'{value[:SHOWN]}' is not a number of {name} (1 to {most}); {write}")
        return number

    def delay(self) -> None:
        seen: set[str] = set()
        self.link.delayed = True
        if not self.sign("("):
            raise ValueError(f"delay does not say how long; {WRITE_DELAY}")
        while True:
            name = self.word()
            if not self.sign("="):
                break
            self.setting(name, seen)
            if not self.sign(","):
                raise ValueError(f"delay does not say which link it goes around; {WRITE_DELAY}")
        if not name:
            raise ValueError(f"delay does not say which link it goes around; {WRITE_DELAY}")
        if name == "delay":
            raise ValueError(f"a delay does not go around another one; {WRITE_DELAY}")
        if not seen:
            raise ValueError(f"delay has neither rtt nor rate before '{name[:SHOWN]}'; {WRITE_DELAY}")
        self.plain(name)
        if not self.sign(")"):
            raise ValueError(f"the ) of delay is missing after its link; {WRITE_DELAY}")

    def setting(self, name: str, seen: set[str]) -> None:
        if name not in ("rtt", "rate"):
            raise ValueError(f"'{name[:SHOWN]}' is not a setting of delay; {WRITE_DELAY}")
        if name in seen:
            raise ValueError(f"delay has two of {name}; {WRITE_DELAY}")
        seen.add(name)
        value = self.word()
        if name == "rtt":
            time = _quantity(value, _TIMES)
            if time is None or time > MAX_RTT_NS:
                raise ValueError(f"rtt='{value[:SHOWN]}' is not a time in us, ms or s, at most 2s; {WRITE_DELAY}")
            self.link.rtt_ns = time
        else:
            rate = _quantity(value, _RATES)
            if rate is None or not MIN_RATE <= rate <= MAX_RATE:
                raise ValueError(f"rate='{value[:SHOWN]}' is not a rate in bit, kbit, mbit or gbit, from 10kbit to 1000gbit; {WRITE_DELAY}")
            self.link.rate_bps = rate


def _quantity(text: str, units: dict[str, int]) -> int | None:
    """A number of up to nine digits and three decimals, times the value of its unit."""
    match = _QUANTITY.fullmatch(text)
    if not match or match[3] not in units:
        return None
    worth = units[match[3]]
    return int(match[1]) * worth + int((match[2] or "0").ljust(3, "0")) * worth // 1000
