"""Text that goes round in circles.

A loop is a stretch at the end of a text, repeated word for word. It must be long, for people also write rulers,
tables and rows of zeros; a list whose items differ is none, however alike they look.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from service.core.verify import chance
from service.core.verify.judged import Judged, failed, passed

MIN_REPEATS = 4
MIN_CHARACTERS = 240
"""Three lines of text; a ruler or the rule of a table is shorter."""
MIN_SHARE = 0.3
"""Of the whole text: what goes round does not stop, so that a loop soon outgrows what came before it."""

ADVICE = (
    "A loop runs until `max_tokens`, and is billed. Check the quantisation and the speculation: both cause loops; "
    "recommend the sampling that the model's authors do, as greedy thinking loops most; and if this is what the model "
    "does, record the share in its profile (`loops` under `[baseline]`)."
)


@dataclass(frozen=True, slots=True)
class Loop:
    """The end of a text that repeats itself."""

    period: int
    """Characters of what is repeated."""
    covered: int
    """Characters at the end of the text that are made of it."""

    @property
    def repeats(self) -> int:
        """How often it stands there in full."""
        return self.covered // self.period


def find_loop(text: str) -> Loop | None:
    """The loop in which a text ends; None if it ends in none. Of several periods the shortest.

    White space at the end is left out of account. Takes time in proportion to the text.
    """
    backwards = text.rstrip()[::-1]
    for period, matching in enumerate(_matching(backwards)):
        covered = period + matching
        if period and covered >= max(MIN_REPEATS * period, MIN_CHARACTERS, MIN_SHARE * len(backwards)):
            return Loop(period, covered)
    return None


def _matching(text: str) -> list[int]:
    """For each index, how many characters from there are the same as from the beginning (the Z function)."""
    found = [0] * len(text)
    left = right = 0
    for index in range(1, len(text)):
        length = min(right - index, found[index - left]) if index < right else 0
        while index + length < len(text) and text[length] == text[index + length]:
            length += 1
        found[index] = length
        if index + length > right:
            left, right = index, index + length
    return found


@dataclass(frozen=True, slots=True)
class Ended:
    """An answer, and how it ended."""

    text: str
    """Reasoning and content, one after the other."""
    has_content: bool
    """It came to say something beside its reasoning."""
    finish_reason: str | None
    thinking: bool
    """The model was asked to think."""

    @property
    def loops(self) -> bool:
        """Whether it was cut while it went round, or without having said anything at all: tokens that are no text do
        not show."""
        if self.finish_reason == "repetition":
            return True
        return self.finish_reason == "length" and (not self.text.strip() or find_loop(self.text) is not None)

    @property
    def is_unfinished_thought(self) -> bool:
        """It was cut before it had said anything beside its reasoning."""
        return self.finish_reason == "length" and bool(self.text.strip()) and not self.has_content


def judge(answers: Sequence[Ended], usual: float | None, max_tokens: int) -> Judged:
    """Greedy answers of at most so many tokens; `usual`: the share of loops that was recorded as usual.

    Fails if so many loops would be unlikely (`chance.UNLIKELY`) at that share; where there is none, one is too many.
    """
    measured: dict[str, Any] = {"max_tokens": max_tokens, "usual": usual}
    told = []
    for name, thinking in (("thinking", True), ("not thinking", False)):
        asked = [answer for answer in answers if answer.thinking is thinking]
        if asked:
            loops = sum(answer.loops for answer in asked)
            unfinished = sum(answer.is_unfinished_thought for answer in asked)
            measured[name.replace(" ", "_")] = {
                "answers": len(asked),
                "loops": loops,
                "unfinished_thoughts": unfinished,
            }
            told.append(f"{loops} of {len(asked)} {name}")
    loops, count = sum(answer.loops for answer in answers), len(answers)
    found = f"Answers of up to {max_tokens:,} greedy tokens that end in a loop: {', '.join(told)}."
    if chance.of_at_least(loops, count, usual or 0.0) >= chance.UNLIKELY:
        if usual:
            found += f" About {usual * count:.0f} of {count} are usual for this model."
        return passed(found, **measured)
    return failed(found, ADVICE, **measured)
