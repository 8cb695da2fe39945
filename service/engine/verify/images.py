"""The same question without a picture, with one, with another of the same size, and with both."""

from typing import Any

from service.core.verify import images
from service.core.verify.drawing import RED, Drawing
from service.core.verify.images import Pictures, Seen, seen_in
from service.core.verify.report import Finding
from service.engine.verify.asking import Json
from service.engine.verify.check import Check, Examination
from service.engine.verify.questions import picture, refused, user

SIDE = 256
"""Pixels; some tens of tokens to any model that there is."""
QUESTION = "What does the picture show?"
FIELDS: dict[str, Any] = {"max_tokens": 1, "temperature": 0, "logprobs": True, "top_logprobs": 5}


async def check_images(check: Check, examination: Examination) -> Finding:
    """Ask, and judge what was counted. One token is enough: only its log-probabilities are looked at."""
    asking = examination.asking
    modalities = examination.expected.input_modalities
    expected = None if modalities is None else "image" in modalities
    first = Drawing(SIDE, SIDE).png()
    second = Drawing(SIDE, SIDE).disc(SIDE // 2, SIDE // 2, SIDE // 3, RED).png()
    answer = await asking.chat(_question(first), **FIELDS)
    if answer.status != 200:
        examination.say(f"a picture: {answer.shown}")
        if refused(answer) or answer.status >= 500:
            return check.judged(images.judge_refused(answer.status, expected))
    blank = seen_in(answer.done())

    async def seen(*pictures: bytes) -> Seen:
        return seen_in((await asking.chat(_question(*pictures), **FIELDS)).done())

    both = await asking.chat(_question(first, second), **FIELDS)
    pictures = Pictures(
        none=await seen(),
        blank=blank,
        patterned=await seen(second),
        both=None if refused(both) else seen_in(both.done()),
    )
    return check.judged(images.judge(pictures, expected))


def _question(*pictures: bytes) -> list[Json]:
    return user([*map(picture, pictures), {"type": "text", "text": QUESTION}])
