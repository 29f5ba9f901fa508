"""What a map of recent entries forgets."""

from gpuvirt.server.recent import Recent


def test_the_oldest_is_forgotten() -> None:
    recent = Recent[str, int](2)
    recent["a"], recent["b"], recent["c"] = 1, 2, 3
    assert recent == {"b": 2, "c": 3}


def test_what_is_set_again_is_the_newest() -> None:
    recent = Recent[str, int](2)
    recent["a"], recent["b"] = 1, 2
    recent["a"] = 3
    recent["c"] = 4
    assert recent == {"a": 3, "c": 4}
