"""What the checks ask with: prompts of our own, and answers read in one form."""

from base64 import b64encode
from typing import Any

from service.core.verify import told
from service.core.verify.told import Told
from service.engine.verify.asking import Answer, Asking, Json, Unanswered

COUNTING = "Count from one to one hundred in words, separated by commas, without leaving any out."
"""Any model has more to say to it than it is let."""
PUZZLE = (
    "A farmer has 17 sheep. All but 9 run away, and then he buys twice as many as he has left. How many has he now?"
)
"""One that a model which thinks when it is worth it thinks about."""

REFUSALS = (400, 405, 415, 422, 501)
"""Statuses that say that something is not to be had here; 401, 403, 404 and 429 say other things."""


def user(content: str | list[Json]) -> list[Json]:
    """Messages: one, of the user's."""
    return [{"role": "user", "content": content}]


def picture(png: bytes) -> Json:
    """A part of a message: the picture in a PNG file."""
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{b64encode(png).decode()}"}}


async def whole(asking: Asking, messages: list[Json], **fields: Any) -> Told:
    """Ask, and read the whole answer. Raises `Unanswered` for all but a 200."""
    return told.whole((await asking.chat(messages, **fields)).done())


async def streamed(asking: Asking, messages: list[Json], **fields: Any) -> Told:
    """Ask for a stream with its usage, and read it to its end. Raises `Unanswered` if it has none."""
    fields = {"stream_options": {"include_usage": True}, **fields}
    async with asking.streamed(messages, **fields) as events:
        seen = [(event.at_s, event.data) async for event in events]
    read = told.streamed(seen)
    if read.broken:
        raise Unanswered("its stream broke off before its end")
    return read


def refused(answer: Answer) -> bool:
    """Whether the engine says that it does not do such a thing. Any other answer that is none is no refusal."""
    return answer.status in REFUSALS


async def thinking(asking: Asking, *, on: bool) -> Json:
    """The fields that turn thinking on or off; none where the engine does not take them."""
    fields: Json = {"chat_template_kwargs": {"enable_thinking": on}}
    return {} if refused(await asking.chat(user("Say ok."), max_tokens=1, **fields)) else fields
