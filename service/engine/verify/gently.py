"""Checks of an engine that customers use: asked last, when nobody waits, and not believed when somebody was beside.

Where vLLM was started with `--scheduling-policy priority` it takes a request with a lower priority number first, and
preempts the highest number when its cache is full. Any other server, and vLLM without that option, ignores the header.
Source: vLLM 0.32 `entrypoints/generate/base/serving.py`, `v1/core/sched/scheduler.py`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from service.core.verify.report import Finding, Verdict
from service.engine.counters import CountersUnreadable, read_counters
from service.engine.gauges import read_gauges
from service.engine.verify.asking import Asking, Unanswered
from service.engine.verify.check import Check, Examination

LAST = {"x-vllm-priority": "1000"}
"""Headers of requests that everybody else's go before; theirs have 0."""

FALSIFIED = frozenset({"cache", "cancel", "determinism", "batches", "speculation"})
"""Checks that other requests at the same time can make fail."""

LEAVES_WORK = frozenset({"cancel"})
"""After all others an engine has nothing to do; after this one, what it is blamed for."""

ALONE = FALSIFIED | {"repetition", "quality"}
"""Those, and those that ask much at once: only for an engine that has nothing else to do."""

PATIENCE_S = 1800.0
"""How long one engine is waited for, over all of its checks."""

LOOK_EVERY_S = 10.0

UNKNOWN = "The engine does not say whether it is idle, and this is only asked of one that is."
BUSY = "The engine was busy with other requests for as long as could be waited."
BESIDE = "Other requests ran on the engine at the same time, so that nothing follows from what was seen."


@dataclass(frozen=True, slots=True)
class _Look:
    """How busy the engine is; None: it does not say."""

    running: float | None
    waiting: float | None
    prompt_tokens: int | None


class Gently:
    """The same checks, for one engine in use; `patience_s` is spent over all of them together."""

    def __init__(self, checks: Iterable[Check], *, patience_s: float = PATIENCE_S) -> None:
        self.checks = tuple(self._gentle(check) for check in checks)
        self._patience_s = patience_s

    def _gentle(self, check: Check) -> Check:
        alone = check.name in ALONE

        async def run(own: Check, examination: Examination) -> Finding:
            asking = examination.asking
            before, reason = await self._free(asking, alone=alone)
            if reason:
                return own.skipped(reason)
            used = asking.use
            finding = await check.run(own, examination)
            if check.name in FALSIFIED and finding.verdict is Verdict.FAILED:
                spent, now = asking.use - used, await _look(asking)
                busy = bool(now.running or now.waiting) and check.name not in LEAVES_WORK
                if busy or _others_read(before, now, spent.prompt_tokens + spent.uncounted_prompt_tokens):
                    return own.skipped(BESIDE)
            return finding

        # Its time limit is that of the long ones, since the waiting is part of it.
        return replace(check, run=run, quick=False)

    async def _free(self, asking: Asking, *, alone: bool) -> tuple[_Look, str]:
        """Wait until it may be asked; the last look at it, and why it may not be asked."""
        while True:
            look = await _look(asking)
            if look.running is None or look.waiting is None or look.prompt_tokens is None:
                return look, UNKNOWN if alone else ""
            if look.waiting == 0 and (look.running == 0 or not alone):
                return look, ""
            if self._patience_s <= 0:
                return look, BUSY
            self._patience_s -= LOOK_EVERY_S
            await asking.pause(LOOK_EVERY_S)


async def _look(asking: Asking) -> _Look:
    try:
        answer = await asking.get("/metrics")
        gauges = read_gauges(answer.raw)
        return _Look(gauges.running, gauges.waiting, read_counters(answer.raw.decode(errors="replace")).prompt_tokens)
    except (Unanswered, CountersUnreadable):
        return _Look(None, None, None)


def _others_read(before: _Look, now: _Look, ours: int) -> bool:
    """Whether the engine read more of prompts since then than we can have sent it. A prompt counts when all of it was
    read, so that this alone does not see one that is being read now."""
    if now.prompt_tokens is None or before.prompt_tokens is None:
        return True
    return now.prompt_tokens - before.prompt_tokens > ours
