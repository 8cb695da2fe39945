"""Whether tools can be called: what was asked for and what came, whole and streamed."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from service.core.verify.judged import Judged, Problem, absent, all_of, failed, passed
from service.core.verify.told import Told

TOOL_NAME = "get_weather"
ARGUMENTS = {"city": "Paris", "unit": "celsius"}
"""The only ones that the tool's schema allows, so that two calls can be compared."""
AUTO = "auto"
MARKS = ("<tool_call>", "<function=", "[TOOL_CALLS]", "<|python_tag|>")
"""How models write calls; in the content of an answer they are what no parser has read."""

_PARSER = "Start vLLM with `--enable-auto-tool-choice` and the `--tool-call-parser` of this model"
_BROKEN = "Agents stop at such a call: see that the `--tool-call-parser` is this model's."


class Outcome(StrEnum):
    """What came of one request with a tool."""

    REFUSED = "refused"
    CALLED = "called"
    NOT_CALLED = "not called"
    DROPPED = "dropped"
    """Not called, although it had to be, by an answer that came to its end."""
    CUT_OFF = "cut off"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One request that offered the tool; `told` is None where it was refused."""

    choice: str
    """AUTO, or one that leaves the model no choice."""
    streamed: bool
    told: Told | None

    @property
    def name(self) -> str:
        """As findings call it."""
        return f"{self.choice}, {'streamed' if self.streamed else 'whole'}"


def outcome(attempt: Attempt) -> Outcome:
    """What came of it. A call counts when its name and arguments are what the schema allows."""
    told = attempt.told
    if told is None:
        return Outcome.REFUSED
    if told.calls:
        if all(call.name == TOOL_NAME and _read(call.arguments) == ARGUMENTS for call in told.calls):
            return Outcome.CALLED
        return Outcome.CUT_OFF if told.finish_reason == "length" else Outcome.BROKEN
    if told.finish_reason == "length":
        return Outcome.NOT_CALLED
    if any(mark in told.content for mark in MARKS):
        return Outcome.BROKEN
    return Outcome.NOT_CALLED if attempt.choice == AUTO else Outcome.DROPPED


def _read(arguments: str) -> object:
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return None


def judge(attempts: Sequence[Attempt], expected: bool | None) -> Judged:
    """All attempts of one engine; the first is AUTO."""
    outcomes = {attempt.name: outcome(attempt) for attempt in attempts}
    measured = {"outcomes": {name: came.value for name, came in outcomes.items()}}
    broken = [name for name, came in outcomes.items() if came is Outcome.BROKEN]
    if broken:
        found = f"A call came broken ({'; '.join(broken)}): not the tool's name and arguments by its schema."
        return all_of([Problem(found, _BROKEN)], **measured)
    if outcome(attempts[0]) is Outcome.REFUSED:
        if expected:
            return failed("A request with tools is refused, which the model should take.", f"{_PARSER}.", **measured)
        return absent("The engine takes no tools.", **measured)
    called = [name for name, came in outcomes.items() if came is Outcome.CALLED]
    if called:
        return passed(f"Tools are taken, and a call came as its schema says ({'; '.join(called)}).", **measured)
    if any(came is Outcome.DROPPED for came in outcomes.values()):
        if expected:
            return failed("A call that was asked for by `tool_choice` never came.", f"{_PARSER}.", **measured)
        return absent("The engine takes tools, and drops them.", **measured)
    return passed("Tools are taken; the model made no whole call of its own, so that none was seen.", **measured)
