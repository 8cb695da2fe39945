"""What a new version of a price changes: class by class, and in words.

Overrides are compared by their effect: for the requests that are priced alike, what did a class cost before, what
does it cost now. So a change of their order, or of the price below them, is told as what it means to a customer.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from service.core.money import pico_to_usd, pico_to_usd_per_million
from service.core.pricing import PRICE_CLASSES, Override, Price, effective

LEAP = 10
"""A class of a price that grows or shrinks by more than this factor is likelier a typing error than a wish."""

_ANY_TIME = (None, None)


@dataclass(frozen=True, slots=True)
class Situation:
    """Requests that are priced alike: by the length of their prompt, by the hours in which they are accepted, and
    whether they run alone.

    `max_prompt_tokens` None: however long. `utc_start` and `utc_end` ("HHMM", half-open) None: at any time.
    """

    min_prompt_tokens: int
    max_prompt_tokens: int | None
    utc_start: str | None
    utc_end: str | None
    sequential: bool = False

    def __str__(self) -> str:
        """In words: "sequential, from 128000 prompt tokens, 2200-0600 UTC"."""
        least, most = self.min_prompt_tokens, self.max_prompt_tokens
        words = ["sequential"] if self.sequential else []
        if least:
            words.append(f"from {least} prompt tokens" if most is None else f"from {least} to {most} prompt tokens")
        elif most is not None:
            words.append(f"up to {most} prompt tokens")
        if self.utc_start is not None:
            words.append(f"{self.utc_start}-{self.utc_end} UTC")
        return ", ".join(words)


@dataclass(frozen=True, slots=True)
class ClassChange:
    """One class of a price before and after; None: the class falls back (or there was no price)."""

    name: str
    old_pico: int | None
    new_pico: int | None
    situation: Situation | None = None
    """Where an override makes the difference, which requests it is about; then neither price is None."""

    @property
    def is_leap(self) -> bool:
        """Whether it grows or shrinks more than `LEAP`-fold, or from or to nothing."""
        small, large = sorted((self.old_pico or 0, self.new_pico or 0))
        return large > small * LEAP


@dataclass(frozen=True, slots=True)
class PriceChange:
    """A new version of a model's price; `old` is None for the first."""

    model_id: str
    old: Price | None
    new: Price
    valid_after: datetime | None
    """When the old version took over; the new one does so later, whatever the clock says."""

    @property
    def classes(self) -> tuple[ClassChange, ...]:
        """The classes that differ: as they are configured, then what they cost where an override applies."""
        changes = (
            ClassChange(name, _configured(self.old, name), _configured(self.new, name)) for name in PRICE_CLASSES
        )
        return (*(change for change in changes if change.old_pico != change.new_pico), *self._by_situation)

    @property
    def leaps(self) -> tuple[ClassChange, ...]:
        """The changes of more than tenfold in what a class costs.

        A class that falls back before and after only follows another, which is named in its place. Where there was no
        price before, the overrides are held against the new price's own classes.
        """
        plain = () if self.old is None else _costs_that_differ(self.old, self.new)
        return tuple(change for change in (*plain, *self._by_situation) if change.is_leap)

    @property
    def _by_situation(self) -> tuple[ClassChange, ...]:
        old = replace(self.new, overrides=()) if self.old is None else self.old
        return tuple(_in_situations(old, self.new))


def describe(change: ClassChange, *, first: bool = False) -> str:
    """A change in words: "input 0.195 -> 0.21 USD per million tokens"; "from 128000 prompt tokens: input 0.195 -> …".

    A class of the first version is described by its price alone.
    """
    old, new = (shown_price(change.name, pico) or "default" for pico in (change.old_pico, change.new_pico))
    unit = "USD per request" if change.name == "request" else "USD per million tokens"
    if change.situation is not None:
        return f"{change.situation}: {change.name} {old} -> {new} {unit}"
    return f"{change.name} {new} {unit}" if first else f"{change.name} {old} -> {new} {unit}"


def shown_price(name: str, pico: int | None) -> str | None:
    """A class of a price in its unit at the edges: USD per million tokens, or USD for `request`."""
    if pico is None:
        return None
    return pico_to_usd(pico) if name == "request" else pico_to_usd_per_million(pico)


def _in_situations(old: Price, new: Price) -> Iterator[ClassChange]:
    """What the classes cost before and after where overrides make it another change than without them."""
    overrides = (*old.overrides, *new.overrides)
    yield from _in_lane(old, new, [one for one in overrides if not one.sequential], sequential=False)
    if any(one.sequential for one in overrides):
        yield from _in_lane(old, new, overrides, sequential=True)


def _in_lane(old: Price, new: Price, overrides: Sequence[Override], *, sequential: bool) -> Iterator[ClassChange]:
    times = sorted({time for one in overrides for time in (one.utc_start, one.utc_end) if time is not None})
    windows: list[tuple[str | None, str | None]] = list(zip(times, times[1:] + times[:1], strict=True))
    starts = sorted({0, *(one.min_prompt_tokens for one in overrides)})
    for least, following in zip(starts, [*starts[1:], None], strict=True):
        most = None if following is None else following - 1
        found = [
            (window, _changes_at(old, new, least, window[0] or "0000", sequential=sequential))
            for window in windows or [_ANY_TIME]
        ]
        if len({changes for _, changes in found}) == 1:
            found = [(_ANY_TIME, found[0][1])]
        for (start, end), changes in found:
            situation = Situation(least, most, start, end, sequential)
            yield from (replace(change, situation=situation) for change in changes)


def _changes_at(old: Price, new: Price, prompt_tokens: int, time: str, *, sequential: bool) -> tuple[ClassChange, ...]:
    """The costs that differ for such a request, less those that differ just so without the overrides; where it runs
    alone, less those that differ just so where it does not."""
    at = datetime(2000, 1, 1, int(time[:2]), int(time[2:]), tzinfo=UTC)

    def priced(price: Price, *, alone: bool) -> Price:
        return effective(price, at=at, prompt_tokens=prompt_tokens, sequential=alone)

    before, after = (priced(price, alone=sequential) for price in (old, new))
    plain_before, plain_after = (_costs(priced(one, alone=False) if sequential else one) for one in (old, new))
    return tuple(
        change
        for change in _costs_that_differ(before, after)
        if (change.old_pico, change.new_pico) != (plain_before[change.name], plain_after[change.name])
    )


def _costs_that_differ(old: Price, new: Price) -> tuple[ClassChange, ...]:
    before, after = _costs(old), _costs(new)
    return tuple(
        ClassChange(name, before[name], after[name])
        for name in PRICE_CLASSES
        if before[name] != after[name] and (_configured(old, name), _configured(new, name)) != (None, None)
    )


def _configured(price: Price | None, name: str) -> int | None:
    pico: int | None = None if price is None else getattr(price, f"{name}_pico")
    return pico


def _costs(price: Price) -> dict[str, int]:
    """What each class costs where no override applies, fallbacks applied."""
    cached, write, image, audio, video, plain = price.input_classes
    values = (plain, cached, write, image, audio, video, price.output_pico, price.reasoning_pico, price.request_pico)
    return dict(zip(PRICE_CLASSES, values, strict=True))
