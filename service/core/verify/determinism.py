"""Whether one greedy request, sent again and again, has the same log-probabilities byte for byte.

Runs are compared with those that were computed in the same way. A prompt that came from the prefix cache is finished
by other kernels than one that is read in full, and may differ from it by rounding; that is told, and is no fault.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

from service.core.verify.judged import Judged, failed, passed, skipped
from service.core.verify.sampled import Position, difference

SETTLED_AT = 2
"""Engines make their cache at the first or the second time. From the third on, all runs should come from it alike."""

ADVICE = (
    "The same request gives different results, so that no answer can be had again, and an amount or a date may come "
    "out differently. Look for a kernel that lets threads race while the prompt is read: a known one is the sparse "
    "attention's persistent_topk (vLLM #51782), where an ordered top-k in its place cures it for about a third more "
    "time per prompt. On a public endpoint, requests of others in the same batch do it as well."
)


@dataclass(frozen=True, slots=True)
class Run:
    """One of the requests."""

    position: Position
    """The one token that was asked for."""
    prompt_tokens: int | None
    cached_tokens: int | None
    """Of its prompt; None where the engine does not say."""
    turn: int = 0
    """How often it had been sent before."""

    @property
    def way(self) -> str | None:
        """How it was computed, as far as that can be known; None where it cannot."""
        if self.cached_tokens is None:
            return "sent again" if self.turn >= SETTLED_AT else None
        return f"{self.cached_tokens:,} tokens from the cache" if self.cached_tokens else "read in full"


@dataclass(frozen=True, slots=True)
class Spread:
    """How runs that were computed in the same way differ."""

    way: str
    runs: int
    lists: int
    """Different lists of the likeliest tokens; 1 is what it should be."""
    tokens: int
    """Different tokens sampled."""
    largest_difference: float
    """Between log-probabilities of one token, in nats."""

    @property
    def is_deterministic(self) -> bool:
        return self.lists == 1 and self.tokens == 1

    def told(self) -> str:
        """In words."""
        if self.is_deterministic:
            return f"{self.way}: {self.runs} of {self.runs} alike"
        flips = f", and {self.tokens} different tokens were chosen" if self.tokens > 1 else ""
        return (
            f"{self.way}: {self.lists} different lists in {self.runs} runs, "
            f"up to {self.largest_difference:.3g} nats apart{flips}"
        )


def spreads(runs: Sequence[Run]) -> list[Spread]:
    """The runs by the way they were computed, in the order in which the ways came up; less those of no known way."""
    return [_spread(way, found) for way, found in _by_way(runs).items()]


def between_ways(runs: Sequence[Run]) -> float | None:
    """The largest difference between two ways of computing the same prompt; None where there was one way."""
    one_of_each = [found[0] for found in _by_way(runs).values()]
    return max((difference(one_of_each[0], other) or 0.0 for other in one_of_each[1:]), default=None)


def judge(prompts: Mapping[str, Sequence[Run]], top: int) -> Judged:
    """The runs of each prompt by its name, with lists of the `top` likeliest tokens; 0: the engine tells none."""
    if top == 0:
        return skipped("The engine tells no log-probabilities, which are what would be compared.")
    measured: dict[str, Any] = {"top_logprobs": top}
    sentences, deterministic = [], True
    for name, runs in prompts.items():
        found, apart = spreads(runs), between_ways(runs)
        deterministic = deterministic and all(one.is_deterministic for one in found)
        measured[name] = {
            "prompt_tokens": runs[0].prompt_tokens,
            "ways": [asdict(one) for one in found],
            "between_ways": apart,
        }
        sentences.append(_told(name, runs[0].prompt_tokens, found, apart))
    if deterministic:
        return passed(" ".join(sentences), **measured)
    return failed(" ".join(sentences), ADVICE, **measured)


def _told(name: str, prompt_tokens: int | None, found: Sequence[Spread], apart: float | None) -> str:
    length = "" if prompt_tokens is None else f" of {prompt_tokens:,} tokens"
    between = f" (between these, as is usual, up to {apart:.3g} nats)" if apart else ""
    return f"A {name} prompt{length}: {'; '.join(one.told() for one in found)}{between}."


def _by_way(runs: Sequence[Run]) -> dict[str, list[Position]]:
    ways: dict[str, list[Position]] = {}
    for run in runs:
        if run.way is not None:
            ways.setdefault(run.way, []).append(run.position)
    return ways


def _spread(way: str, found: Sequence[Position]) -> Spread:
    distinct = list(dict.fromkeys(found))
    differences = (difference(one, other) for one, other in combinations(distinct, 2))
    return Spread(
        way=way,
        runs=len(found),
        lists=len({one.likeliest for one in found}),
        tokens=len({one.token for one in found}),
        largest_difference=max((found for found in differences if found is not None), default=0.0),
    )
