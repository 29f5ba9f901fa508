"""Times as people write and read them."""

from __future__ import annotations

import pytest

from gpuvirt.durations import format_duration, parse_duration

SAID = {-1: "0 s", 0.4: "0 s", 119: "119 s", 120: "2 m", 7199: "120 m", 7200: "2 h", 47 * 3600: "47 h", 2.5 * 86400: "2 d"}


@pytest.mark.parametrize(("seconds", "text"), SAID.items())
def test_it_is_said_in_the_largest_unit(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_what_is_said_can_be_given() -> None:
    assert [parse_duration(text) for text in ("500ms", "10s", "2m", "12h", "30d")] == [0.5, 10, 120, 43200, 2592000]
    for text in ("", "10", "0s", "-1s", "1w", "99999999d"):
        with pytest.raises(ValueError, match="is no time"):
            parse_duration(text)
