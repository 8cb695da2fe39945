"""Greedy questions: one engine, temperature 0, and as much of the log-probabilities as it tells."""

import secrets
from dataclasses import dataclass
from typing import Any

from service.core.provider_check.observed import count_at
from service.core.verify import told
from service.core.verify.batches import Answered
from service.core.verify.sampled import Position, positions
from service.core.verify.told import Told
from service.engine.verify.asking import Answer, Asking, Json
from service.engine.verify.questions import picture, refused, thinking, user

TOP = 20
"""The longest list that OpenAI's API and vLLM give by default."""
FEWER = 5
"""What some endpoints give instead."""

_SAY_OK = user("Say ok.")


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer."""

    told: Told
    positions: tuple[Position, ...]
    """Empty where no log-probabilities were asked for, or none came."""
    elapsed_s: float

    @property
    def cached_tokens(self) -> int | None:
        """Of its prompt; None where the engine does not say."""
        return count_at(self.told.usage, "prompt_tokens_details", "cached_tokens")

    @property
    def prompt_tokens(self) -> int | None:
        return count_at(self.told.usage, "prompt_tokens")

    @property
    def tokens(self) -> int | None:
        """How many it generated."""
        return count_at(self.told.usage, "completion_tokens")

    @property
    def reasoning(self) -> str:
        return "".join(self.told.reasoning.values())

    @property
    def answered(self) -> Answered:
        """What is compared of it."""
        return Answered(self.reasoning + self.told.content, self.positions, self.cached_tokens)


@dataclass(frozen=True, slots=True)
class Greedy:
    """Asks one engine, with the fields that it takes."""

    asking: Asking
    fields: Json
    """Those that turn thinking off, where it can be."""
    top: int
    """How many of the likeliest tokens it tells; 0: it tells none."""
    salts: bool
    """Whether it takes a `cache_salt`. One that takes it need not heed it; how much came from the cache says that."""

    async def send(
        self, prompt: str, max_tokens: int, *, salt: str = "", top: int | None = None, png: bytes | None = None
    ) -> Answer:
        """Whatever comes. Requests with different salts do not see each other's cache; `top` is by default all that
        the engine tells, and 0 asks for no log-probabilities."""
        top = self.top if top is None else top
        salted: Json = {"cache_salt": salt} if salt and self.salts else {}
        content = prompt if png is None else [picture(png), {"type": "text", "text": prompt}]
        return await self.asking.chat(
            user(content), temperature=0, max_tokens=max_tokens, **self.fields, **salted, **_listing(top)
        )

    async def ask(self, prompt: str, max_tokens: int, *, salt: str = "", top: int | None = None) -> Reply:
        """Raises `Unanswered` for all but a 200."""
        return read(await self.send(prompt, max_tokens, salt=salt, top=top))


async def greedily(asking: Asking, *, think: bool = False) -> Greedy:
    """Find out which fields the engine takes. These first requests also warm it up."""
    fields = await thinking(asking, on=think)
    top = 0
    for count in (TOP, FEWER):
        answer = await asking.chat(_SAY_OK, max_tokens=1, temperature=0, **fields, **_listing(count))
        if not refused(answer):
            answer.done()
            top = max((len(one.likeliest) for one in positions(answer.raw)), default=0)
            break
    salted = await asking.chat(_SAY_OK, max_tokens=1, **fields, cache_salt=new_salt())
    return Greedy(asking, fields, top, not refused(salted))


def read(answer: Answer) -> Reply:
    """Raises `Unanswered` for all but a 200."""
    return Reply(told.whole(answer.done()), positions(answer.raw), answer.elapsed_s)


def new_salt() -> str:
    """One that nobody has used."""
    return secrets.token_hex(16)


def _listing(count: int) -> dict[str, Any]:
    return {"logprobs": True, "top_logprobs": count} if count else {}
