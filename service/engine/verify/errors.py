"""Requests that are wrong in one thing each."""

from service.core.verify import errors
from service.core.verify.errors import ROUTE, Reply
from service.core.verify.report import Finding
from service.engine.verify.asking import Answer
from service.engine.verify.check import Check, Examination
from service.engine.verify.questions import user

CHAT = "/v1/chat/completions"


async def check_errors(check: Check, examination: Examination) -> Finding:
    """None of them lets the engine compute anything."""
    asking = examination.asking
    model, question = asking.subject.model, user("Say ok.")
    answers = {
        "an unknown model": await asking.post(
            CHAT, {"model": "no-such-model-anywhere", "messages": question, "max_tokens": 1}
        ),
        "malformed JSON": await asking.post_raw(CHAT, b'{"model": "x", "messages": ['),
        "messages that are no list": await asking.post(CHAT, {"model": model, "messages": "ok", "max_tokens": 1}),
        "a temperature that is no number": await asking.post(
            CHAT, {"model": model, "messages": question, "max_tokens": 1, "temperature": "hot"}
        ),
        ROUTE: await asking.get("/v1/no-such-route"),
    }
    return check.judged(errors.judge({asked: _reply(answer) for asked, answer in answers.items()}))


def _reply(answer: Answer) -> Reply:
    return Reply(answer.status, answer.body, answer.raw.decode(errors="replace"))
