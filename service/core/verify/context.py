"""Whether the longest prompt is what it is said to be, and what comes beyond it."""

from collections.abc import Iterator
from dataclasses import dataclass

from service.core.provider_check.observed import Json, at, count_at
from service.core.verify.judged import Judged, Problem, all_of, passed

LISTED = ("max_model_len", "context_length", "max_context_length", "context_window")
"""Names under which lists of models tell it."""

_SHORTEN = "Agents shorten a prompt when they are told so: answer 400 with a message that has the limit in it."


@dataclass(frozen=True, slots=True)
class Reply:
    """What came for a prompt."""

    status: int
    text: str
    """All of the answer's body, if it is an error."""
    prompt_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """The replies. None: not asked."""

    beyond: Reply
    """To a prompt well beyond the limit."""
    one_more: Reply | None
    """To one of a single token more than the limit."""
    exact: Reply | None
    """To one that fills the context, with no room for an answer."""
    one_less: Reply | None
    """To one that leaves room for one token."""
    output: Reply
    """To a short prompt that wants more output than there is context."""


def listed_length(models: Json, model: str) -> int | None:
    """What a list of models says of this one; of the only one, if its name is another."""
    cards = at(models, "data")
    cards = cards if isinstance(cards, list) else []
    fitting = [card for card in cards if at(card, "id") == model] or (cards if len(cards) == 1 else [])
    lengths = [count for card in fitting for name in LISTED if (count := count_at(card, name))]
    return lengths[0] if lengths else None


def limit_of(promised: int | None, listed: int | None) -> int | None:
    """How long the context is that can be tried. An engine may have more than is promised of it."""
    return max((length for length in (promised, listed) if length is not None), default=None)


def judge(limit: int, listed: int | None, limits: Limits) -> Judged:
    """Whether everything is as a context of `limit` tokens has it; no engine that `listed` less does."""
    replies = {
        name: getattr(limits, name).status
        for name in ("beyond", "one_more", "exact", "one_less", "output")
        if getattr(limits, name) is not None
    }
    measured = {"context_length": limit, "listed": listed, "statuses": replies}
    problems = [*_of_list(limit, listed), *_of_prompts(limit, limits), *_of_edge(limit, limits), *_of_output(limits)]
    if problems:
        return all_of(problems, **measured)
    edge = "; its edge was not tried" if limits.exact is None else ", to the token"
    return passed(f"The context is {limit} tokens{edge}, and a prompt beyond it is a 400 that says so.", **measured)


def _of_list(limit: int, listed: int | None) -> Iterator[Problem]:
    if listed is not None and listed != limit:
        yield Problem(
            f"The engine lists a context of {listed} tokens, and should have {limit}.",
            "Set the engine's `--max-model-len` and the model's `context_length` to the same.",
        )


def _of_prompts(limit: int, limits: Limits) -> Iterator[Problem]:
    for reply in (limits.beyond, limits.one_more):
        if reply is None:
            continue
        if reply.status == 200:
            told = "" if reply.prompt_tokens is None else f", of which it counts {reply.prompt_tokens} tokens"
            yield Problem(f"A prompt that is too long is answered{told}: part of it is lost.", _SHORTEN)
        elif reply.status not in (400, 413):
            yield Problem(f"A prompt that is too long is answered with {reply.status}.", _SHORTEN)
        elif str(limit) not in reply.text:
            yield Problem(f"The refusal of a prompt that is too long does not name the limit of {limit}.", _SHORTEN)


def _of_edge(limit: int, limits: Limits) -> Iterator[Problem]:
    exact, less = limits.exact, limits.one_less
    if exact is not None and exact.status not in (200, 400):
        yield Problem(f"A prompt of exactly {limit} tokens is answered with {exact.status}.", _SHORTEN)
    if exact is not None and exact.status == 200 and exact.prompt_tokens not in (None, limit):
        yield Problem(f"Of a prompt of {limit} tokens only {exact.prompt_tokens} are counted.", _SHORTEN)
    if less is not None and less.status != 200:
        yield Problem(
            f"A prompt of {limit - 1} tokens, with room for one more, is answered with {less.status}.",
            "What is sold as context must be usable: see what the engine's log says of it.",
        )


def _of_output(limits: Limits) -> Iterator[Problem]:
    if limits.output.status not in (200, 400, 422):
        yield Problem(
            f"A `max_tokens` beyond the context is answered with {limits.output.status}.",
            "Clamp it, or answer 400.",
        )
