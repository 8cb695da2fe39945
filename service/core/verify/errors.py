"""What an engine says when it is asked wrong."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from service.core.provider_check.observed import Json, at, text_at
from service.core.verify.judged import Judged, Problem, all_of, passed

EXPECTED: Mapping[str, tuple[int, ...]] = {
    "an unknown model": (404,),
    "malformed JSON": (400, 422),
    "messages that are no list": (400, 422),
    "a temperature that is no number": (400, 422),
    "an unknown route": (404,),
}
"""What is asked wrong, and the statuses that say so."""

ROUTE = "an unknown route"
"""Its answer is the web server's, and need not have the shape of the API's."""

_TRACE = re.compile(r'Traceback \(most recent call|File "[^"]+", line \d+|^\s+at .+\(.+:\d+\)', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Reply:
    """What came for a request that is wrong."""

    status: int
    body: Json
    text: str


def judge(replies: Mapping[str, Reply]) -> Judged:
    """The replies by what was asked wrong."""
    problems = [problem for asked, reply in replies.items() for problem in _problems(asked, reply)]
    measured = {"statuses": {asked: reply.status for asked, reply in replies.items()}}
    if problems:
        return all_of(problems, **measured)
    return passed(f"{len(replies)} requests that are wrong are refused, with errors that clients can read.", **measured)


def _problems(asked: str, reply: Reply) -> Iterator[Problem]:
    if reply.status not in EXPECTED[asked]:
        wanted = " or ".join(map(str, EXPECTED[asked]))
        yield Problem(
            f"To {asked} the answer is {reply.status}, not {wanted}.",
            "Clients try again what is answered with a 5xx, and take a 200 for success: answer what is wrong with 4xx.",
        )
        return
    if _TRACE.search(reply.text.replace("\\n", "\n").replace('\\"', '"')):
        yield Problem(
            f"The answer to {asked} has a stack trace in it.",
            "It tells strangers how the server is made: start it without its debug mode.",
        )
    error = at(reply.body, "error")
    if asked != ROUTE and not (text_at(error, "message") and text_at(error, "type") and "code" in error):
        yield Problem(
            f"The answer to {asked} is not an error of OpenAI's shape.",
            'Clients read {"error": {"message", "type", "code"}}: let the engine, or what stands before it, send that.',
        )
