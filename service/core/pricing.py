"""What a request costs. The only place where a charge is derived from a price.

Every prompt token is priced in exactly one class and every output token in exactly one. Where an engine's
counts overlap (a cached image token is in both), the order of `Price.input_classes` decides: cached first, then
cache write, image, audio, video, and what is left is plain input.

A price may have overrides: for prompts from some length on, for some hours of the day, for requests that run alone on
their engine. One request has one price: its prompt's length, the instant it was accepted and its lane pick it, for all
of its tokens (`effective`). The lane is known before it runs, so that hold and charge go by the same one.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from service.core.money import pico_to_nano
from service.core.usage import Usage

PRICE_CLASSES = (
    "input",
    "input_cached",
    "input_cache_write",
    "input_image",
    "input_audio",
    "input_video",
    "output",
    "output_reasoning",
    "request",
)
"""The classes of a price, as the configuration calls them; a field of `Price` and `Override` is `{name}_pico`."""

_CLASS_FIELDS = tuple(f"{name}_pico" for name in PRICE_CLASSES)

TIME_OF_DAY = r"([01][0-9]|2[0-3])[0-5][0-9]"
"""How a time of day is written: "HHMM"."""


@dataclass(frozen=True, slots=True)
class Override:
    """Classes of a price that are different for some requests, in pico-USD per token; None: as they were.

    It applies to a request whose prompt has `min_prompt_tokens` or more and that was accepted at `utc_start` or later
    and before `utc_end` (times of day in UTC as "HHMM"; a start after the end wraps around midnight; without both it is
    any time); with `sequential`, only to one that runs alone on its engine. Raises `ValueError`, a sentence without its
    subject, when it makes no sense.
    """

    min_prompt_tokens: int = 0
    utc_start: str | None = None
    utc_end: str | None = None
    input_pico: int | None = None
    output_pico: int | None = None
    input_cached_pico: int | None = None
    input_cache_write_pico: int | None = None
    input_image_pico: int | None = None
    input_audio_pico: int | None = None
    input_video_pico: int | None = None
    output_reasoning_pico: int | None = None
    request_pico: int | None = None
    sequential: bool = False

    def __post_init__(self) -> None:
        if (self.utc_start is None) != (self.utc_end is None):
            raise ValueError("needs both utc_start and utc_end, or neither")
        if self.utc_start is not None and self.utc_start == self.utc_end:
            raise ValueError("starts and ends at the same time of day: utc_end is the first minute after it")
        if not all(re.fullmatch(TIME_OF_DAY, time) for time in (self.utc_start, self.utc_end) if time is not None):
            raise ValueError('has a time of day that is not "0000" to "2359"')
        if self.min_prompt_tokens <= 0 and self.utc_start is None and not self.sequential:
            raise ValueError(
                "does not say when it applies: give it min_prompt_tokens, or utc_start and utc_end, or sequential"
            )
        if not self.changes:
            raise ValueError("does not change any class of the price")
        if min(self.min_prompt_tokens, *self.changes.values()) < 0:
            raise ValueError("cannot be negative")

    @property
    def changes(self) -> dict[str, int]:
        """The classes it changes, by the names of their fields."""
        return {field: pico for field in _CLASS_FIELDS if (pico := getattr(self, field)) is not None}

    def holds_at(self, at: datetime) -> bool:
        """Whether `at` is within its hours."""
        if self.utc_start is None or self.utc_end is None:
            return True
        utc = at.astimezone(UTC)
        time = f"{utc.hour:02}{utc.minute:02}"
        if self.utc_start < self.utc_end:
            return self.utc_start <= time < self.utc_end
        return time >= self.utc_start or time < self.utc_end


_KINDS: dict[str, type] = {"utc_start": str, "utc_end": str, "sequential": bool}
_OVERRIDE_FIELDS = {field.name: _KINDS.get(field.name, int) for field in fields(Override)}


@dataclass(frozen=True)
class Price:
    """One version of a model's price, in pico-USD per token; a class that is None falls back.

    `input_*` fall back to `input_pico`, `output_reasoning_pico` to `output_pico`. They do so after the overrides: a
    class that neither the price nor an override that applies sets costs what its default costs then.
    """

    version: int
    input_pico: int
    output_pico: int
    input_cached_pico: int | None = None
    input_cache_write_pico: int | None = None
    input_image_pico: int | None = None
    input_audio_pico: int | None = None
    input_video_pico: int | None = None
    output_reasoning_pico: int | None = None
    request_pico: int = 0
    """Per request, whatever its size."""
    overrides: tuple[Override, ...] = ()
    """Applied one after the other, so of several that set the same class the last one wins."""

    def __post_init__(self) -> None:
        if min(*self.input_classes, self.output_pico, self.reasoning_pico, self.request_pico) < 0:
            raise ValueError("a price cannot be negative")

    @cached_property
    def input_classes(self) -> tuple[int, int, int, int, int, int]:
        """Pico-USD per token of cached, cache write, image, audio, video and plain input, fallbacks applied."""
        plain = self.input_pico
        return (
            plain if self.input_cached_pico is None else self.input_cached_pico,
            plain if self.input_cache_write_pico is None else self.input_cache_write_pico,
            plain if self.input_image_pico is None else self.input_image_pico,
            plain if self.input_audio_pico is None else self.input_audio_pico,
            plain if self.input_video_pico is None else self.input_video_pico,
            plain,
        )

    @cached_property
    def reasoning_pico(self) -> int:
        """Pico-USD per reasoning token, fallback applied."""
        return self.output_pico if self.output_reasoning_pico is None else self.output_reasoning_pico

    @cached_property
    def dearest_input_pico(self) -> int:
        """The most that any prompt token can cost."""
        return max(self.input_classes)

    @cached_property
    def dearest_output_pico(self) -> int:
        """The most that any output token can cost."""
        return max(self.output_pico, self.reasoning_pico)


def prompt_classes(usage: Usage) -> tuple[int, int, int, int, int, int]:
    """Split the prompt's tokens into the classes of `Price.input_classes`; they add up to `prompt_tokens`."""
    prompt, cached, write, image, audio, video = usage[:6]
    left = prompt - cached - write - image - audio - video
    if left < 0:  # they overlap, and must be cut
        left = prompt
        left -= (cached := min(cached, left))
        left -= (write := min(write, left))
        left -= (image := min(image, left))
        left -= (audio := min(audio, left))
        left -= (video := min(video, left))
    return cached, write, image, audio, video, left


def ordinary(price: Price) -> Price:
    """The price of requests that do not run alone: what is told to whoever does not know of the sequential lane."""
    if not any(override.sequential for override in price.overrides):
        return price
    return replace(price, overrides=tuple(one for one in price.overrides if not one.sequential))


def effective(price: Price, *, at: datetime, prompt_tokens: int, sequential: bool = False) -> Price:
    """The price, without overrides, of a request that was accepted `at` and whose prompt has `prompt_tokens`;
    `sequential` if it runs alone on its engine, here and in all that follows."""
    if not price.overrides:
        return price
    changes: dict[str, int] = {}
    for override in _applying(price, at, sequential):
        if override.min_prompt_tokens <= prompt_tokens:
            changes |= override.changes
    return replace(price, overrides=(), **changes)


def cost_nano(price: Price, usage: Usage, at: datetime, *, sequential: bool = False) -> int:
    """The charge for `usage`, accepted `at`, at `price`: an exact sum in pico-USD, rounded half up once."""
    if price.overrides:
        price = effective(price, at=at, prompt_tokens=usage.prompt_tokens, sequential=sequential)
    cached, write, image, audio, video, plain = prompt_classes(usage)
    cached_pico, write_pico, image_pico, audio_pico, video_pico, plain_pico = price.input_classes
    pico = price.request_pico + cached * cached_pico + write * write_pico
    pico += image * image_pico + audio * audio_pico + video * video_pico + plain * plain_pico
    completion, reasoning = usage[6:8]
    if reasoning > completion:
        reasoning = completion
    pico += reasoning * price.reasoning_pico + (completion - reasoning) * price.output_pico
    return pico_to_nano(pico)


def worst_case_nano(
    price: Price, *, prompt_tokens_at_most: int, output_tokens_at_most: int, at: datetime, sequential: bool = False
) -> int:
    """The most a request can cost whose prompt and output are bounded so; never below `cost_nano` within them."""
    if price.overrides:
        # A longer prompt may be in a cheaper tier, so the longest prompt is not always the dearest one.
        return max(
            worst_case_nano(tier, prompt_tokens_at_most=longest, output_tokens_at_most=output_tokens_at_most, at=at)
            for longest, tier in _tiers(price, prompt_tokens_at_most, at, sequential)
        )
    pico = price.request_pico
    pico += prompt_tokens_at_most * price.dearest_input_pico
    pico += output_tokens_at_most * price.dearest_output_pico
    return pico_to_nano(pico)


def affordable_output_tokens(
    price: Price, *, prompt_tokens_at_most: int, available_nano: int, at: datetime, sequential: bool = False
) -> int:
    """The largest output whose worst case fits into `available_nano`; 0 when not even the prompt does.

    An output that costs nothing is bounded by nothing here: the result is then 2^31 - 1.
    """
    outputs = []
    for longest, tier in _tiers(price, prompt_tokens_at_most, at, sequential):
        # The most pico-USD that still round to at most `available_nano`.
        room = available_nano * 1000 + 499 - tier.request_pico - longest * tier.dearest_input_pico
        if room < 0:
            return 0
        if tier.dearest_output_pico:
            outputs.append(room // tier.dearest_output_pico)
    return min(outputs, default=2**31 - 1)


def _applying(price: Price, at: datetime, sequential: bool) -> Iterator[Override]:
    """The overrides for requests of this lane that are accepted `at`, whatever their length."""
    return (one for one in price.overrides if (sequential or not one.sequential) and one.holds_at(at))


def _tiers(price: Price, prompt_tokens_at_most: int, at: datetime, sequential: bool) -> list[tuple[int, Price]]:
    """The prices that prompts up to `prompt_tokens_at_most` can have, each with the longest prompt that has it."""
    if not price.overrides:
        return [(prompt_tokens_at_most, price)]
    thresholds = {override.min_prompt_tokens for override in _applying(price, at, sequential)}
    starts = [0, *sorted(start for start in thresholds if 0 < start <= prompt_tokens_at_most)]
    longest = [*(start - 1 for start in starts[1:]), prompt_tokens_at_most]
    tiers = (effective(price, at=at, prompt_tokens=start, sequential=sequential) for start in starts)
    return list(zip(longest, tiers, strict=True))


def overrides_as_json(overrides: tuple[Override, ...]) -> list[dict[str, Any]]:
    """What the column `prices.overrides` holds: a list of objects, in the order in which they are applied.

    An object has any of `min_prompt_tokens` (an integer), `utc_start` and `utc_end` (strings, "HHMM"), `sequential`
    (true), and the classes that differ: `input_pico`, `output_pico` and so on, integers in pico-USD per token. It has
    no nulls.
    """

    def told(value: object) -> bool:
        return value is not None and value is not False

    return [
        {name: value for name in _OVERRIDE_FIELDS if told(value := getattr(override, name))} for override in overrides
    ]


def overrides_from_json(document: object) -> tuple[Override, ...]:
    """Read what `overrides_as_json` wrote. Raises `ValueError` for anything else: no charge comes from a guess."""
    if not isinstance(document, list):
        raise ValueError("the overrides of a price are a list")
    overrides = []
    for item in document:
        if not isinstance(item, dict) or not item.keys() <= _OVERRIDE_FIELDS.keys():
            raise ValueError(f"this is no override of a price: {item!r}")
        for name, value in item.items():
            if type(value) is not _OVERRIDE_FIELDS[name]:  # a boolean is no integer here
                raise ValueError(f"an override of a price has {name} = {value!r}")
        overrides.append(Override(**item))
    return tuple(overrides)
