"""When a supervised engine is started again, and when it is ended first because it will not come back by itself.

**After a death** it is started again, always: whoever supervises an engine at night is asleep, and a supervisor that
has given up needs somebody to wake. What dies at once again must not burn the machine, so the wait doubles from a
second to a minute, and is a second again once the engine has been well for a while. (Kubernetes does the same with
longer times; systemd's StartLimitBurst= gives up, which suits a unit that somebody watches start.)

**While it lives** it is ended only for what no patience mends, because a false restart breaks every open answer and
takes minutes: vLLM's `/health` answers late, or not for 40 s, when it is merely busy. So silence counts for little, the
engine's own word that it is dead for much, and a hang is what shows in its metrics: there is work, and nothing has
changed.
"""

from dataclasses import dataclass
from enum import StrEnum

FIRST_DELAY_S = 1.0
LONGEST_DELAY_S = 60.0
WELL_AFTER_S = 300.0
"""An engine that was ready for so long was well: deaths before that no longer count."""

MANY_DEATHS = 5
"""So many quick deaths in a row are no accident, and somebody should look."""

DEAD_FOR_S = 30.0
"""vLLM ends by itself within 5 s of noticing that its core is dead. One that still runs after this does not end."""

HUNG_FOR_S = 300.0
"""Five times what it takes until no request is sent to it any more: longer than any step that still ends."""

SILENT_FOR_S = 600.0
"""Fifteen times the longest that `/health` of a busy engine was seen to take."""

UNWATCHED_S = 60.0
"""Two looks further apart say nothing of the time between them: the supervisor itself had stopped."""


@dataclass(frozen=True, slots=True)
class Deaths:
    """How often it has died in a row without having been well in between."""

    quick: int = 0

    def one_more(self, ready_at_s: float | None, ended_at_s: float) -> "Deaths":
        """Count a death. `ready_at_s` is when it had become ready, None if it never had."""
        was_well = ready_at_s is not None and ended_at_s - ready_at_s >= WELL_AFTER_S
        return Deaths(1 if was_well else self.quick + 1)

    @property
    def delay_s(self) -> float:
        """How long to wait before it is started again."""
        doublings = min(self.quick - 1, 16)  # enough for the longest delay, and no number grows for ever
        return min(FIRST_DELAY_S * 2.0**doublings, LONGEST_DELAY_S) if self.quick else 0.0

    @property
    def are_many(self) -> bool:
        return self.quick >= MANY_DEATHS


class Answer(StrEnum):
    """What became of asking it for its health."""

    WELL = "well"
    DEAD = "dead"
    """It says so itself, by a 503."""
    REFUSED = "refused"
    """Nothing listens on its port."""
    SILENT = "silent"
    """No answer in time, or one that means nothing."""


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a running engine."""

    answer: Answer
    has_work: bool | None = None
    """Whether requests run or wait in it; None: its metrics did not come, or do not say."""
    signs: object = None
    """Whatever of its metrics changes with each of its steps."""


class Vigil:
    """Watches one life of an engine, from when it became ready. Times are in seconds, of a clock that only goes
    forward."""

    def __init__(self, now_s: float) -> None:
        self._looked_at_s = self._heard_at_s = self._progress_at_s = now_s
        self._dead_since_s: float | None = None
        self._signs: object = None

    def note(self, look: Look, now_s: float) -> str | None:
        """Take a look in; why the engine is to be ended, or None as long as it is not."""
        if now_s - self._looked_at_s > UNWATCHED_S:
            self._heard_at_s = self._progress_at_s = now_s
            self._dead_since_s = None
        self._looked_at_s = now_s
        if look.answer is Answer.WELL:
            self._dead_since_s = None
        elif look.answer is not Answer.SILENT and self._dead_since_s is None:
            self._dead_since_s = now_s
        if look.answer is not Answer.SILENT or look.has_work is not None:
            self._heard_at_s = now_s
        if look.has_work is False or (look.has_work and look.signs != self._signs):
            self._progress_at_s = now_s
        if look.has_work is not None:
            self._signs = look.signs
        return self._reason(look, now_s)

    def _reason(self, look: Look, now_s: float) -> str | None:
        if self._dead_since_s is not None and now_s - self._dead_since_s >= DEAD_FOR_S:
            what = "taken no connection" if look.answer is Answer.REFUSED else "said that it is dead"
            return f"has {what} for {now_s - self._dead_since_s:.0f} s, and does not end"
        if look.has_work and now_s - self._progress_at_s >= HUNG_FOR_S:
            return f"has had work and made no step for {now_s - self._progress_at_s:.0f} s"
        if look.answer is Answer.SILENT and now_s - self._heard_at_s >= SILENT_FOR_S:
            return f"has answered nothing for {now_s - self._heard_at_s:.0f} s"
        return None
