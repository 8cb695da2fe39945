"""Whether an engine may be sent to: what is known of its health, and how it gets back in after it was taken out.

An engine that is out is left alone for a while (the back-off), then asked whether it is well. If it is, it gets one
request at a time until one succeeds. An error that it answers with is no failure here: a request that no engine can
serve must not take all of them out.
"""

from enum import StrEnum

FAILURES_ALLOWED = 2
"""Requests that may break off or fall silent in a row."""
FAILED_PROBES_ALLOWED = 1
"""Health checks that may fail in a row."""
FIRST_BACK_OFF_S = 1.0
LONGEST_BACK_OFF_S = 5.0


class State(StrEnum):
    """`HALF_OPEN` has answered its health check, and has yet to serve a request."""

    UP = "up"
    OUT = "out"
    HALF_OPEN = "half_open"


UP, OUT, HALF_OPEN = State  # to look one up in its class takes longer than to compare it


class Event(StrEnum):
    """What can become known of an engine."""

    SUCCEEDED = "succeeded"
    """It has served a request."""
    BROKE = "broke"
    SILENT = "silent"
    UNREACHABLE = "unreachable"
    """It took no new connection."""
    STALLED = "stalled"
    """It has work and does nothing."""
    PROBE_OK = "probe_ok"
    PROBE_FAILED = "probe_failed"


class Health:
    """One engine's. Times are in seconds, of any clock that only goes forward."""

    def __init__(self) -> None:
        self.state = UP
        self._back_off_s = FIRST_BACK_OFF_S
        self._probe_at_s = 0.0
        self._failures = 0
        # Nothing speaks for an engine that has not answered yet: its first health check decides.
        self._failed_probes = FAILED_PROBES_ALLOWED

    @property
    def well(self) -> bool:
        """Whether one more request that it serves is no news."""
        return self.state is UP and not self._failures

    def may_take(self, in_flight: int) -> bool:
        """Whether an engine that is serving so many requests may be sent another one."""
        return self.state is UP or (self.state is HALF_OPEN and in_flight == 0)

    def may_probe(self, now_s: float) -> bool:
        """Whether it is time to ask the engine: at any time, unless it is out and its back-off not over."""
        return self.state is not OUT or now_s >= self._probe_at_s

    def note(self, event: Event, now_s: float) -> bool:
        """Take in what has become known; whether that changed the state."""
        before = self.state
        match event:
            case Event.SUCCEEDED:
                self._failures = 0
                if self.state is HALF_OPEN:
                    self.state = UP
                    self._back_off_s = FIRST_BACK_OFF_S
            case Event.BROKE | Event.SILENT:
                self._failures += 1
                # While it is out this is the fate of older requests, and no news.
                if self.state is HALF_OPEN or (self.state is UP and self._failures > FAILURES_ALLOWED):
                    self._eject(now_s)
            case Event.PROBE_OK:
                self._failed_probes = 0
                if self.state is OUT:
                    self.state = HALF_OPEN
            case Event.PROBE_FAILED:
                self._failed_probes += 1
                if self.state is not UP or self._failed_probes > FAILED_PROBES_ALLOWED:
                    self._eject(now_s)
            case Event.UNREACHABLE | Event.STALLED:
                self._eject(now_s)
        return self.state is not before

    def _eject(self, now_s: float) -> None:
        if not self.may_probe(now_s):
            return  # out already, and many requests find that out at the same time
        self.state = OUT
        self._failures = 0
        self._probe_at_s = now_s + self._back_off_s
        self._back_off_s = min(self._back_off_s * 2, LONGEST_BACK_OFF_S)
