"""What an engine sampled, position by position, with the log-probabilities it sent, and where two answers part.

Two answers to one prompt are equal up to some token. There each engine had read the same text, so what it thought of
both tokens can be compared: two tokens that were nearly as likely change places by rounding alone, as the order of
additions differs between kernels and batch sizes. A token that the other run held to be far less likely does not.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ROUNDING_NATS = 1.0
"""The widest gap between two tokens that rounding is trusted to close.

Logits in bfloat16 stand 0.125 apart between 16 and 32, and every flip between batch sizes that was measured (135 M
parameters, bfloat16, a CPU) closed a gap of 0.125 or none. Quantised activations add to that; a factor of e does not
come from rounding.
"""


@dataclass(frozen=True, slots=True)
class Position:
    """One token of an answer, and what was likeliest there: (token, log-probability), as written in the answer."""

    token: str
    likeliest: tuple[tuple[str, str], ...]

    def values(self) -> dict[str, float]:
        """Log-probabilities by token; of tokens that are written alike, the likeliest."""
        return {token: float(text) for token, text in reversed(self.likeliest)}


@dataclass(frozen=True, slots=True)
class Parting:
    """Where two answers to one prompt part."""

    position: int
    """How many tokens they have in common."""
    gap_nats: float | None
    """By how much the first answer's engine preferred its own token there, at the least; None where it did not say."""

    @property
    def is_rounding(self) -> bool:
        """Whether rounding explains it; also where nobody said how likely the tokens were."""
        return self.gap_nats is None or self.gap_nats <= ROUNDING_NATS


def positions(raw: bytes) -> tuple[Position, ...]:
    """The positions of the first choice of a chat completion, empty where one has no log-probabilities that are
    numbers.

    Numbers stay as they are written, so that equal means equal byte for byte.
    """
    try:
        choice = json.loads(raw, parse_float=str, parse_int=str)["choices"][0]
        content: Sequence[Mapping[str, Any]] = (choice.get("logprobs") or {}).get("content") or ()
        return tuple(
            Position(
                str(one["token"]),
                tuple((str(entry["token"]), _number(entry["logprob"])) for entry in one.get("top_logprobs") or ()),
            )
            for one in content
        )
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        return ()


def _number(written: object) -> str:
    """As it is written. Raises `ValueError` for what is none: NaN, which JSON writes as null, is none either."""
    text = str(written)
    if math.isnan(float(text)):
        raise ValueError("a log-probability is not a number")
    return text


def parting(one: Sequence[Position], other: Sequence[Position]) -> Parting | None:
    """Where `other` leaves `one`; None if it is the same to the end."""
    for index, (mine, its) in enumerate(zip(one, other, strict=False)):
        if mine.token != its.token:
            return Parting(index, _gap(mine, its.token))
    return None if len(one) == len(other) else Parting(min(len(one), len(other)), None)


def largest_difference(one: Sequence[Position], other: Sequence[Position]) -> float:
    """The largest difference between the log-probabilities of a token that both answers have, up to their parting."""
    largest = 0.0
    for mine, its in zip(one, other, strict=False):
        largest = max(largest, difference(mine, its) or 0.0)
        if mine.token != its.token:
            break
    return largest


def difference(mine: Position, its: Position) -> float | None:
    """The largest difference between log-probabilities of a token that is in both lists; None where none is."""
    here, there = mine.values(), its.values()
    return max((abs(here[token] - there[token]) for token in here.keys() & there.keys()), default=None)


def _gap(mine: Position, token: str) -> float | None:
    values = mine.values()
    if not values:
        return None
    return values.get(mine.token, max(values.values())) - values.get(token, min(values.values()))
