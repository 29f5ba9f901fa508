"""What `gpuvirt top` shows, one frame after the other: a server's answers, and between two of them how fast its sessions' figures grow."""

from __future__ import annotations

from typing import Any

RATES = ("commands", "answers", "cut_ns", "launches", "bytes_in", "bytes_out", "turns_s")


class Frames:
    """Makes a frame of each answer to ``top`` (gpuvirt/server/observe/answers.py) in turn.

    A frame is the answer, with ``rates`` in each session: by figure, how much it has grown a second since the last frame. In a session's first frame
    that is since it began. A figure that its worker has not told, now or in the last frame, has none. ``network`` is the share of that time that was
    lost to the network: a round trip for each answer that was waited for, and while the connection was cut; of several threads it may be above 1.
    ``turns_s`` is there where GPUs' compute is shared by turns: the share of that time during which it was the session's turn, of its GPUs together.
    """

    def __init__(self) -> None:
        self._at = 0.0
        self._last: dict[str, dict[str, Any]] = {}

    def next(self, answer: dict[str, Any]) -> dict[str, Any]:
        """The frame of the next answer."""
        sessions = [{**session, "rates": self._rates(session, answer["at"])} for session in answer["sessions"]]
        self._at, self._last = answer["at"], {session["session"]: session for session in answer["sessions"]}
        return {**answer, "sessions": sessions}

    def _rates(self, session: dict[str, Any], at: float) -> dict[str, float]:
        last = self._last.get(session["session"])
        before, since = (last, self._at) if last is not None else (dict.fromkeys(RATES, 0), session["started"])
        if at <= since:
            return {}
        rates = {name: max(0, session[name] - before[name]) / (at - since) for name in RATES if name in session and name in before}
        if rates.keys() >= {"answers", "cut_ns"} and "rtt_ns" in session:
            rates["network"] = (rates["answers"] * session["rtt_ns"] + rates["cut_ns"]) / 1e9
        return rates
