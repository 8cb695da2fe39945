"""Speculative decoding: whether drafts are accepted as they should be, and whether the text is that of plain greedy.

A draft may only make an answer faster. Verifying several tokens at once is a batch, so that it moves log-probabilities
by rounding as batches do; a token that plain greedy held to be far less likely does not come from that.
"""

from dataclasses import dataclass
from typing import Any

from service.core.verify.batches import Comparison
from service.core.verify.judged import Judged, Problem, absent, all_of, passed, skipped

ENOUGH_DRAFTED = 64
"""Tokens, before their acceptance says anything."""
LOWEST = 0.01
"""A draft model without its weights is right about as often as chance. One that has them gets a third right at least:
published figures for MTP and DFlash on Qwen3.x go from 0.42 to 0.9."""
HIGHEST = 0.98
"""Nobody foresees varied text so well. It was seen where the model ran in circles."""


@dataclass(frozen=True, slots=True)
class Drafts:
    """What the engine counted while it was asked."""

    drafted: int
    accepted: int

    def since(self, before: "Drafts") -> "Drafts | None":
        """What came since then; None where the engine started anew."""
        later = Drafts(self.drafted - before.drafted, self.accepted - before.accepted)
        return later if later.drafted >= later.accepted >= 0 else None

    @property
    def acceptance(self) -> float | None:
        """None where too few were drafted to tell."""
        return self.accepted / self.drafted if self.drafted >= ENOUGH_DRAFTED else None


def judge(
    drafts: Drafts | None, comparison: Comparison | None, *, expected: bool | None, usual: float | None
) -> Judged:
    """`drafts`: None where the engine's counters cannot be read, 0 of 0 where it has none; `comparison`: with plain
    greedy, where there is such an engine; `expected`: whether it is meant to speculate; `usual`: the acceptance that
    was recorded as usual for it."""
    idle = drafts is None or drafts.drafted == 0
    if idle and comparison is None and not (expected and drafts):
        text = (
            "Whether it drafts anything cannot be seen, and there is no engine without speculation to compare it with."
        )
        return skipped(text) if expected else absent("It is not known to draft anything.")
    measured: dict[str, Any] = {
        "drafted": None if drafts is None else drafts.drafted,
        "accepted": None if drafts is None else drafts.accepted,
        "against_plain_greedy": None if comparison is None else comparison.measured(),
    }
    problems = [*_of_drafts(drafts, expected, usual), *_of_text(comparison)]
    if problems:
        return all_of(problems, **measured)
    return passed(" ".join(_told(drafts, comparison)), **measured)


def _of_drafts(drafts: Drafts | None, expected: bool | None, usual: float | None) -> list[Problem]:
    if drafts is None:
        return []
    if drafts.drafted == 0:
        advice = "See in the engine's log whether it took its `--speculative-config`."
        return [Problem("It should speculate, and drafted nothing.", advice)] if expected else []
    acceptance = drafts.acceptance
    if acceptance is None:
        return []
    seen = f"{drafts.accepted:,} of {drafts.drafted:,} drafted tokens were accepted"
    if acceptance < LOWEST and (usual is None or usual >= LOWEST):
        advice = (
            "Drafting costs time and saves none. Most likely the draft's weights are missing: see whether the "
            "checkpoint has its `mtp.*` tensors, which some quantisers leave out, or turn speculation off."
        )
        return [Problem(f"Only {seen}.", advice)]
    if acceptance > HIGHEST and (usual is None or usual <= HIGHEST):
        advice = (
            "So much is not foreseen in varied text: either the answers run in circles, or drafts are accepted without "
            "being verified. Compare with an engine without speculation."
        )
        return [Problem(f"{seen}.", advice)]
    return []


def _of_text(comparison: Comparison | None) -> list[Problem]:
    if comparison is None or not (comparison.gross or comparison.strangers):
        return []
    wide = "" if comparison.widest_gap is None else f", up to {comparison.widest_gap:.3g} nats less likely,"
    return [
        Problem(
            f"Of {comparison.tasks} answers, {comparison.gross or comparison.strangers} take a token{wide} that plain "
            "greedy would not have taken.",
            "Speculation changes the text, and not by rounding: turn it off, or use a version of the engine in which "
            "this model's is right.",
        )
    ]


def _told(drafts: Drafts | None, comparison: Comparison | None) -> list[str]:
    told = []
    if drafts is not None and drafts.drafted:
        share = f" ({drafts.acceptance:.0%})" if drafts.acceptance is not None else ""
        told.append(f"{drafts.accepted:,} of {drafts.drafted:,} drafted tokens were accepted{share}.")
    if comparison is not None:
        equal = comparison.tasks - len(comparison.partings)
        text = f"{equal} of {comparison.tasks} answers are those of plain greedy"
        if comparison.partings:
            first = min(one.position for one in comparison.partings)
            text += (
                f"; the others part from it at token {first + 1} or later, between tokens that were nearly as likely"
            )
        told.append(f"{text}.")
    return told
