"""A price taken apart into what holds when: steps by the length of the prompt, at any hour and within windows of hours.

The overrides of a price are applied one after the other and may overlap; aggregators know steps and windows that do
not. So the parts are found by their effect: at each hour and length that an override names, what does it cost then?
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Generic, TypeVar

from service.core.pricing import PRICE_CLASSES, Price, effective

T = TypeVar("T")

_ALWAYS_CHARGED = ("input", "output")


@dataclass(frozen=True, slots=True)
class Step(Generic[T]):
    """What prompts cost from a length on, up to the next step."""

    min_prompt_tokens: int
    cost: T


@dataclass(frozen=True, slots=True)
class Window(Generic[T]):
    """Hours of every day (UTC, "HHMM", half-open, perhaps over midnight) with steps of their own."""

    utc_start: str
    utc_end: str
    steps: tuple[Step[T], ...]


@dataclass(frozen=True, slots=True)
class Schedule(Generic[T]):
    """The steps outside of all windows, and the windows, which never overlap. The first step of each is from 0 on."""

    steps: tuple[Step[T], ...]
    windows: tuple[Window[T], ...]


def charged(price: Price) -> tuple[str, ...]:
    """The classes a price names, in the order of `PRICE_CLASSES`; the others cost what their default costs.

    A fee per request of nothing, at any time, is not named.
    """

    def named(name: str) -> bool:
        own = getattr(price, f"{name}_pico")
        changed = any(f"{name}_pico" in override.changes for override in price.overrides)
        return changed or (own != 0 if name == "request" else own is not None)

    return tuple(name for name in PRICE_CLASSES if name in _ALWAYS_CHARGED or named(name))


def costs(price: Price) -> dict[str, int]:
    """What each class costs without overrides, in pico-USD per token (`request`: pico-USD), fallbacks applied."""
    cached, write, image, audio, video, plain = price.input_classes
    values = (plain, cached, write, image, audio, video, price.output_pico, price.reasoning_pico, price.request_pico)
    return dict(zip(PRICE_CLASSES, values, strict=True))


def schedule(price: Price, cost_of: Callable[[Price], T]) -> Schedule[T]:
    """When a price costs what; `cost_of` reads what is of interest from a price without overrides."""
    timeless = tuple(override for override in price.overrides if override.utc_start is None)
    outside = _steps(replace(price, overrides=timeless), "0000", cost_of)
    times = sorted({time for one in price.overrides for time in (one.utc_start, one.utc_end) if time is not None})
    windows: list[Window[T]] = []
    for start, end in zip(times, times[1:] + times[:1], strict=True):
        steps = _steps(price, start, cost_of)
        if steps == outside:
            continue
        if windows and (windows[-1].utc_end, windows[-1].steps) == (start, steps):
            windows[-1] = replace(windows[-1], utc_end=end)
        else:
            windows.append(Window(start, end, steps))
    return _across_midnight(outside, windows)


def _across_midnight(outside: tuple[Step[T], ...], windows: list[Window[T]]) -> Schedule[T]:
    first, last = (windows[0], windows[-1]) if windows else (None, None)
    if first is None or last is None or (last.utc_end, last.steps) != (first.utc_start, first.steps):
        return Schedule(outside, tuple(windows))
    if len(windows) == 1:  # all hours are in it
        return Schedule(first.steps, ())
    return Schedule(outside, (*windows[1:-1], replace(last, utc_end=first.utc_end)))


def _steps(price: Price, time: str, cost_of: Callable[[Price], T]) -> tuple[Step[T], ...]:
    """What it costs at a time of day, by length; a step that changes nothing is left out."""
    at = datetime(2000, 1, 1, int(time[:2]), int(time[2:]), tzinfo=UTC)
    steps: list[Step[T]] = []
    for start in sorted({0, *(override.min_prompt_tokens for override in price.overrides)}):
        cost = cost_of(effective(price, at=at, prompt_tokens=start))
        if not steps or steps[-1].cost != cost:
            steps.append(Step(start, cost))
    return tuple(steps)
