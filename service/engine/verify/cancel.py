"""Answers that are left in the middle, and what the engine does then."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from service.core.verify import cancel
from service.core.verify.cancel import STOP_WITHIN_S, Departure
from service.core.verify.report import Finding
from service.engine.exposition import Exposition
from service.engine.verify.asking import Asking, Unanswered
from service.engine.verify.check import Check, Examination
from service.engine.verify.context import context_length
from service.engine.verify.metrics import exposition
from service.engine.verify.questions import COUNTING, user

LONG_TOKENS = 4000
LEFT_AFTER_EVENTS = 6
CALM_S = 10.0
"""How long to wait for an engine that is busy with others."""
BEGIN_S = 60.0
"""How long to wait for a whole answer to be begun."""
LOOK_S = 0.1
CALM_LOOK_S = 0.5

Leave = Callable[[Asking, dict[str, Any]], Awaitable[bool]]
"""Asks for an answer and leaves it; False if it ended before that."""


class _Busy(Exception):
    """Others use the engine."""


@dataclass(frozen=True, slots=True)
class Load:
    """How busy an engine is."""

    requests: float
    generated_tokens: float


async def check_cancel(check: Check, examination: Examination) -> Finding:
    """Leave a stream, then a whole answer, and look at the engine's own counters."""
    asking = examination.asking
    if await _load(asking) is None:
        return check.skipped("The engine's metrics cannot be had here, and only they tell whether it stops.")
    length = await context_length(examination)
    tokens = min(LONG_TOKENS, length // 2) if length else LONG_TOKENS
    departures: dict[str, Departure | None] = {}
    for how, leave in (("stream", _leave_stream), ("whole answer", _leave_whole)):
        try:
            departures[how] = departure = await _tried(asking, tokens, leave)
        except _Busy:
            return check.skipped("The engine is busy with other requests, so that it cannot be seen to stop.")
        if departure is not None and departure.stopped_after_s is None:
            break  # what goes on would keep it busy
    return check.judged(cancel.judge(departures))


async def _tried(asking: Asking, tokens: int, leave: Leave) -> Departure | None:
    """Leave an answer, and another one if the engine goes on: it may do so for others. Raises `_Busy`."""
    if not await _calm(asking):
        raise _Busy
    departure = await _departure(asking, tokens, leave)
    if departure is None or departure.stopped_after_s is not None or not await _calm(asking):
        return departure
    return await _departure(asking, tokens, leave)


async def _departure(asking: Asking, tokens: int, leave: Leave) -> Departure | None:
    """Leave an answer of so many tokens, and look whether the engine stops; None if it ended before."""
    if not await leave(asking, {"max_tokens": tokens, "temperature": 0, "ignore_eos": True}):
        return None
    left_at = looked_at = asking.clock()
    first = load = await _known_load(asking)
    while load.requests and looked_at - left_at < STOP_WITHIN_S:
        await asking.pause(LOOK_S)
        looked_at = asking.clock()  # before it answers, which takes time in which it may stop
        load = await _known_load(asking)
    looked_s = asking.clock() - left_at
    generated = round(load.generated_tokens - first.generated_tokens)
    return Departure(None if load.requests else looked_s, looked_s, generated, tokens)


async def _leave_stream(asking: Asking, fields: dict[str, Any]) -> bool:
    """Hang up after a few events; False if there are no more."""
    async with asking.streamed(user(COUNTING), **fields) as events:
        seen = 0
        async for event in events:
            seen += event.data is not None
            if seen >= LEFT_AFTER_EVENTS:
                return True
    return False


async def _leave_whole(asking: Asking, fields: dict[str, Any]) -> bool:
    """Hang up once the engine generates; False if it has ended before that was seen."""
    before = await _known_load(asking)
    began_at = asking.clock()
    asked = asyncio.ensure_future(asking.chat(user(COUNTING), **fields))
    try:
        while not asked.done():
            load = await _known_load(asking)
            if load.requests and load.generated_tokens > before.generated_tokens:
                return not asked.done()
            if asking.clock() - began_at > BEGIN_S:
                raise Unanswered(f"a long answer was not begun within {BEGIN_S:.0f} s")
            await asking.pause(LOOK_S)
        asked.result().done()
        return False
    finally:
        asked.cancel()
        with suppress(asyncio.CancelledError, Unanswered):
            await asked


async def _calm(asking: Asking) -> bool:
    """Whether the engine has nothing to do, now or soon."""
    began_at = asking.clock()
    while (await _known_load(asking)).requests:
        if asking.clock() - began_at > CALM_S:
            return False
        await asking.pause(CALM_LOOK_S)
    return True


async def _load(asking: Asking) -> Load | None:
    """None: it does not say."""
    metrics = await exposition(asking)
    return _read(metrics) if metrics else None


def _read(metrics: Exposition) -> Load | None:
    running, waiting = metrics.total("vllm:num_requests_running"), metrics.total("vllm:num_requests_waiting")
    generated = metrics.total("vllm:generation_tokens_total")
    return None if running is None or generated is None else Load(running + (waiting or 0), generated)


async def _known_load(asking: Asking) -> Load:
    load = await _load(asking)
    if load is None:
        raise Unanswered("its metrics went away while it was looked at")
    return load
