"""Python's parser of links and the library's accept the same texts and report the same errors."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import c_build
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuvirt.client import links
from gpuvirt.client.settings import parse_link, resolve

from .conftest import Gpuvirt

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "tests/native/transport/link_texts.txt"
Library = Callable[[list[str]], list[str]]


def table() -> list[tuple[str, str]]:
    lines = [line for line in TABLE.read_text().splitlines() if line.startswith("|")]
    assert len(lines) > 60
    return [(text, meaning.strip()) for text, meaning in (line[1:].rsplit("|", 1) for line in lines)]


def by_python(text: str) -> str:
    try:
        link = links.parse(text)
    except ValueError as error:
        return f"error {error}"
    more = " plain" * link.plain + f" rails={link.rails}" * bool(link.rails)
    return f"{link.kind} {link.channels} {int(link.delayed)} {link.rtt_ns} {link.rate_bps}{more}"


@pytest.fixture(scope="module")
def by_library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    program = tmp_path_factory.mktemp("links") / "link_tool"
    sources = [*ROOT.glob("native/transport/**/*.c"), *ROOT.glob("native/wire/*.c"), ROOT / "tests/native/transport/link_tool.c"]
    c_build.program(program, sources, variant="address")

    def ask(texts: list[str]) -> list[str]:
        said = subprocess.run([program], input=b"".join(text.encode("utf-8", "surrogateescape") + b"\0" for text in texts), capture_output=True)
        assert said.returncode == 0, said.stderr.decode()
        return said.stdout.decode().splitlines()

    return ask


def test_table(by_library: Library) -> None:
    pairs = table()
    for (text, meaning), library in zip(pairs, by_library([text for text, _ in pairs]), strict=True):
        for said in (library, by_python(text)):
            assert said.startswith(meaning) if meaning.startswith("error") else said == meaning, text
        assert library == by_python(text)


def test_every_error_shows_a_right_text() -> None:
    for text, meaning in table():
        if meaning.startswith("error"):
            said = by_python(text)
            example = said.rpartition("; write ")[2]
            for part in re.split(r", (?=[a-z])| or ", example):
                links.parse(part)
            assert len(said) < 240  # GV_LINK_ERROR_TEXT


PIECES = ["auto", "shm", "tcp", "delay", "verbs", "channels", "rtt", "rate", "(", ")", ",", "=", " ", "30ms", "0.5s", "10gbit", "1.5mbit", "4"]
PIECES += ["plain", "verbs(", "rails", "tcp(plain", "9", ".", "delay(rtt=30ms,", "tcp(channels=4)", "us", "kbit", "x", "é", "\t", "\udcff"]


@pytest.mark.slow
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.lists(st.sampled_from(PIECES), max_size=9).map("".join), min_size=20, max_size=20))
def test_any_text(by_library: Library, texts: list[str]) -> None:
    assert by_library(texts) == [by_python(text) for text in texts]


def test_long_texts(by_library: Library) -> None:
    texts = ["tcp" + " " * 197, "tcp" + " " * 198, "x" * 5000, "é" * 101, "é" * 100]
    assert by_library(texts) == [by_python(text) for text in texts]
    assert [by_python(text)[:5] for text in texts] == ["tcp 0", "error", "error", "error", "error"]


def test_settings_keep_the_text() -> None:
    assert parse_link(" delay(rtt=30ms, tcp) ") == "delay(rtt=30ms, tcp)"
    assert parse_link(" ") == "auto"
    assert resolve({"link": "delay(rtt=1ms,shm)"}, {}, Path("/nonexistent")).link == "delay(rtt=1ms,shm)"


@pytest.mark.parametrize("link", ["tcp(channels=99)", "delay(rtt=5,tcp)", "udp"])
def test_a_bad_link_is_a_usage_error(gpuvirt: Gpuvirt, link: str) -> None:
    done = gpuvirt("run", "--link", link, "--", "true")
    assert done.returncode == 2
    assert by_python(link).removeprefix("error ")[:30] in done.stderr
