"""Who goes when there is no room, and who may begin when."""

from __future__ import annotations

import pytest

from gpuvirt.server.admission import Admission, address_group


class Port:
    """Connections by name, and who had to go."""

    def __init__(self, **how: float) -> None:
        self.admission = Admission(**how)  # type: ignore[arg-type]
        self.gone: list[str] = []
        self.places = {}

    def enter(self, name: str, address: str, now: float = 0.0) -> float:
        self.places[name] = self.admission.enter(address, now, lambda: self.gone.append(name))
        return self.places[name].start_at


def test_an_address_over_its_share_loses_its_own_oldest() -> None:
    port = Port(share=2, total=10)
    for name, address in (("honest", "b"), ("1", "a"), ("2", "a"), ("3", "a"), ("4", "a")):
        port.enter(name, address)
    assert port.gone == ["1", "2"]


def test_when_all_is_full_the_address_with_most_loses_one() -> None:
    port = Port(share=10, total=5)
    port.enter("honest", "b")
    for i in range(8):
        port.enter(f"a{i}", "a")
    port.enter("c", "c")
    assert "honest" not in port.gone and "c" not in port.gone
    assert port.gone == ["a0", "a1", "a2", "a3", "a4"]


def test_the_only_one_of_an_address_goes_last() -> None:
    port = Port(share=10, total=3)
    for name in "abcd":
        port.enter(name, name)
    assert port.gone == ["a"]  # none has two: somebody has to


def test_who_has_left_makes_room() -> None:
    port = Port(share=1, total=1)
    port.enter("1", "a")
    port.admission.leave(port.places["1"])
    port.admission.leave(port.places["1"])
    port.enter("2", "a")
    assert port.gone == [] and len(port.admission) == 1


def test_an_address_begins_as_fast_as_its_rate() -> None:
    port = Port(share=100, total=100, rate=10, burst=3)
    starts = [port.enter(str(i), "a", 100.0) for i in range(6)]
    assert starts == pytest.approx([100.0, 100.0, 100.0, 100.0, 100.1, 100.2], abs=1e-6)
    assert port.enter("b", "b", 100.0) == 100.0
    assert port.enter("later", "a", 105.0) == 105.0


def test_what_never_began_uses_up_no_rate() -> None:
    """Thousands a second of one address, nearly all dropped before their turn: the next one waits for those that are left, not for all."""
    port = Port(share=4, total=100, rate=10, burst=1)
    waits = [port.enter(str(i), "a", i / 1000) - i / 1000 for i in range(5000)]
    assert max(waits) < 1.0


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("127.0.0.1", "127.0.0.2", False),
        ("10.0.0.1", "10.0.0.1", True),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("2001:db8::1", "2001:db8::ffff:2", True),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
    ],
)
def test_addresses(one: str, other: str, same: bool) -> None:
    assert (address_group(one) == address_group(other)) is same
