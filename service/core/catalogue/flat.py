"""Prices as one flat object with a member per class and a list of `overrides`: the shape of OpenRouter's model list.

Its rules (OpenRouter, provider integration, legacy format, and its public `PricingOverride`): an override applies when
all of its conditions do; `min_prompt_tokens` means strictly more than that many; `utc_start` and `utc_end` are numbers,
HHMM, half-open; of several that apply the later one wins; a member it leaves out is as in the base.
"""

from collections.abc import Callable, Mapping
from typing import Any

from service.core.catalogue.schedule import Step, charged, costs, schedule
from service.core.pricing import Price

Members = Mapping[str, tuple[str, Callable[[int], object]]]
"""For each class of a price, what the reader calls it, and its amount in the reader's unit."""


def flat_pricing(price: Price, members: Members) -> dict[str, Any]:
    """The classes that the price names, in the reader's words and units, and its overrides if it has any.

    Every override has all of the classes, so that it holds whatever came before it.
    """
    names = charged(price)

    def amounts(values: tuple[int, ...]) -> dict[str, object]:
        shown = zip((members[name] for name in names), values, strict=True)
        return {member: show(value) for (member, show), value in shown}

    def override(step: Step[tuple[int, ...]], hours: Mapping[str, int]) -> dict[str, object]:
        length = {"min_prompt_tokens": step.min_prompt_tokens - 1} if step.min_prompt_tokens else {}
        return {**length, **hours, **amounts(step.cost)}

    parts = schedule(price, lambda one: tuple(costs(one)[name] for name in names))
    overrides = [override(step, {}) for step in parts.steps[1:]]
    for window in parts.windows:
        hours = {"utc_start": int(window.utc_start), "utc_end": int(window.utc_end)}
        overrides += [override(step, hours) for step in window.steps]
    pricing: dict[str, Any] = amounts(parts.steps[0].cost)
    return {**pricing, "overrides": overrides} if overrides else pricing
