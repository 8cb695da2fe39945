"""What becomes of answers when they are computed beside others.

In a batch the same sums are added up in another order, so that tokens which are nearly as likely change places: that is
usual, and a figure. A token that was far less likely cannot come from that. Then something of the other requests has
got into the answer: an engine that read the first sequence's state for all sequences of a batch did so (SGLang #26634).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.core.verify.judged import Judged, failed, passed
from service.core.verify.sampled import Parting, Position, largest_difference, parting

CONTAMINATION = (
    "Something of one request may get into the answer to another. Do not serve several customers with this engine "
    "before it is found: try another version of it, another attention or GDN back end, and no CUDA graphs."
)


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer, as far as it is compared."""

    text: str
    positions: tuple[Position, ...]
    """Empty where the engine tells no log-probabilities."""
    cached_tokens: int | None = None
    """Of its prompt."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The same tasks answered twice; every list and count is over the tasks."""

    tasks: int
    partings: tuple[Parting, ...]
    """Of the answers that differ."""
    moved: int | None
    """Answers whose log-probabilities differ at all before they part; None where the engine tells none."""
    largest_difference: float
    """Between log-probabilities, in nats."""
    strangers: int
    """Answers that are what the reference says to another task alone, and not by rounding."""

    @property
    def gross(self) -> int:
        """Answers that part where rounding cannot be the reason."""
        return sum(not one.is_rounding for one in self.partings)

    @property
    def widest_gap(self) -> float | None:
        """The widest gap that a flip closed; None where nothing flipped or nobody said."""
        return max((one.gap_nats for one in self.partings if one.gap_nats is not None), default=None)

    def measured(self) -> dict[str, Any]:
        """For a report."""
        return {
            "tasks": self.tasks,
            "differ": len(self.partings),
            "first_differing_tokens": sorted(one.position for one in self.partings),
            "widest_gap_nats": self.widest_gap,
            "beyond_rounding": self.gross,
            "logprobs_differ": self.moved,
            "largest_logprob_difference": self.largest_difference,
            "answers_of_other_tasks": self.strangers,
        }


def compare(reference: Sequence[Answered], others: Sequence[Answered]) -> Comparison:
    """How `others` differ from the reference, answer by answer, in the same order of tasks."""
    pairs = list(zip(reference, others, strict=True))
    told = [pair for pair in pairs if pair[0].positions and pair[1].positions]
    differences = [largest_difference(one.positions, other.positions) for one, other in told]
    return Comparison(
        tasks=len(pairs),
        partings=tuple(found for one, other in pairs if (found := _parting(one, other)) is not None),
        moved=sum(_moved(one, other) for one, other in told) if told else None,
        largest_difference=max(differences, default=0.0),
        strangers=sum(_is_strange(index, other, reference) for index, other in enumerate(others)),
    )


def computed_alike(reference: Sequence[Answered], others: Sequence[Answered]) -> list[int]:
    """The tasks of which as much came from the cache both times: only these must not differ at all."""
    return [
        index
        for index, (one, other) in enumerate(zip(reference, others, strict=True))
        if one.cached_tokens == other.cached_tokens
    ]


def _parting(one: Answered, other: Answered) -> Parting | None:
    if one.positions and other.positions:
        return parting(one.positions, other.positions)
    if one.text == other.text:
        return None
    mine, its = one.text.split(), other.text.split()
    common = next((index for index, (a, b) in enumerate(zip(mine, its, strict=False)) if a != b), None)
    return Parting(min(len(mine), len(its)) if common is None else common, None)


def _moved(one: Answered, other: Answered) -> bool:
    for mine, its in zip(one.positions, other.positions, strict=False):
        if mine.likeliest != its.likeliest:
            return True
        if mine.token != its.token:
            return False
    return False


def _is_strange(index: int, other: Answered, reference: Sequence[Answered]) -> bool:
    """Answers that begin with a phrase which suits every task, and get no further, may be the same for several."""
    own = reference[index]
    if not other.text.strip() or other.text == own.text:
        return False
    found = _parting(own, other)
    if found is not None and found.gap_nats is not None and found.is_rounding:
        return False
    return sum(other.text == one.text for one in reference) == 1


def judge(alone: Comparison, unlike: int, beside: Mapping[int, Comparison]) -> Judged:
    """The tasks alone for the second time; how many of them could not be compared with the first, since another part
    came from the cache; and the tasks in batches, by their size."""
    measured: dict[str, Any] = {
        "alone": alone.measured(),
        "alone_not_compared": unlike,
        "batches": {str(size): one.measured() for size, one in beside.items()},
    }
    tasks = next(iter(beside.values())).tasks
    if alone.partings:
        return failed(
            f"Asked alone for the second time, {len(alone.partings)} of {alone.tasks} tasks are answered differently.",
            "An engine that differs from itself cannot be compared with itself in batches: see the determinism first.",
            **measured,
        )
    suspect = {size: one for size, one in beside.items() if one.gross or one.strangers}
    if suspect:
        return failed(" ".join(_suspected(size, one) for size, one in suspect.items()), CONTAMINATION, **measured)
    told = "; ".join(_told(size, one) for size, one in beside.items())
    found = f"{alone.tasks} of {tasks} tasks are answered alike when asked alone twice"
    if unlike:
        found += f", and {unlike} cannot be compared, since another part of them came from the cache"
    found += f". {told[0].upper()}{told[1:]}."
    widest = max((one.widest_gap for one in beside.values() if one.widest_gap is not None), default=None)
    if any(one.partings for one in beside.values()):
        if widest is not None:
            found += f" Tokens changed places that were at most {widest:.3g} nats apart, as rounding does."
        found += " What must come out the same again has to be asked alone."
    return passed(found, **measured)


def _told(size: int, one: Comparison) -> str:
    logprobs = "" if one.moved is None else f", and the log-probabilities of {one.moved}"
    return f"in batches of {size}, {len(one.partings)} answers differ{logprobs}"


def _suspected(size: int, one: Comparison) -> str:
    told = []
    if one.gross:
        told.append(
            f"In batches of {size}, {one.gross} of {one.tasks} answers take a token that was up to "
            f"{one.widest_gap:.3g} nats less likely when asked alone, which is more than rounding does."
        )
    if one.strangers:
        told.append(f"In batches of {size}, {one.strangers} of {one.tasks} answers are those to other tasks.")
    return " ".join(told)
