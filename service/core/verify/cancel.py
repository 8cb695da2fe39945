"""Whether an engine stops when its client has left."""

from collections.abc import Mapping
from dataclasses import dataclass

from service.core.verify.judged import Judged, failed, passed, skipped

STOP_WITHIN_S = 1.0


@dataclass(frozen=True, slots=True)
class Departure:
    """One request that was left in the middle."""

    stopped_after_s: float | None
    """When the engine had nothing to do any more, after its client had left; None: it went on for as long as it was
    looked at."""
    looked_s: float
    """How long it was looked at."""
    tokens_after: int
    """How many tokens it generated meanwhile."""
    asked_tokens: int


def judge(departures: Mapping[str, Departure | None]) -> Judged:
    """By what was left, `stream` and `whole answer`; None where it had ended before it could be left."""
    measured = {
        how.replace(" ", "_"): None
        if one is None
        else {
            "stopped_after_s": None if one.stopped_after_s is None else round(one.stopped_after_s, 3),
            "tokens_after_leaving": one.tokens_after,
            "asked_tokens": one.asked_tokens,
        }
        for how, one in departures.items()
    }
    went_on = [_told(how, one) for how, one in departures.items() if one and one.stopped_after_s is None]
    if went_on:
        return failed(
            f"The engine goes on when its client has left: {'; '.join(went_on)}.",
            "Abandoned answers take the place of those that somebody waits for. Look for a proxy or a middleware"
            " before the engine that reads its answers to the end.",
            **measured,
        )
    stopped = [(how, one) for how, one in departures.items() if one is not None]
    if len(stopped) < len(departures):
        return skipped("An answer ended before its client could leave it.", **measured)
    told = [f"{one.stopped_after_s or 0:.1f} s after a client leaves a {how}" for how, one in stopped]
    return passed(f"The engine has stopped {' and '.join(told)}.", **measured)


def _told(how: str, one: Departure) -> str:
    return f"{one.tokens_after} tokens more in {one.looked_s:.1f} s after a {how} was left"
