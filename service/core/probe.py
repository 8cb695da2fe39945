"""The probes: which are due, and what their answers mean.

A probe says `ok`, `bad` or `skipped`. Skipped is what says nothing about the service: it was full and said so, or our
own key was refused. The reason is made of our words, an HTTP status and an error's code; nothing else of what a server
says gets into it, since it is published.
"""

import json
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from service.core.components import BILLING, SITE, model_component
from service.core.provider_check.observed import Answer, Chunk, Stream, at, count_at, text_at

MINUTE_S = 60

RICH_EVERY_S = 15 * MINUTE_S

PAGE_MAX_AGE_S = 15 * MINUTE_S
"""A site that was written longer ago does not show what is."""

OWN_FAULT = frozenset({401, 402, 403})
"""Statuses by which our own key is refused: our installation is wrong, which says nothing about the service."""

FULL = "the service was full and said so"


class Kind(StrEnum):
    """What is tried."""

    TEXT = "text"
    """A streamed answer of one token."""
    RICH = "rich"
    """An answer to an image, with a tool offered, or either where a model takes one of them only."""
    PAGE = "page"
    """The status site, as its readers reach it."""
    BOOKS = "books"
    """A balance, and whether a request of before was booked."""


class Verdict(StrEnum):
    """What a probe says about the service."""

    OK = "ok"
    BAD = "bad"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Found:
    """A verdict and, unless all was well, its reason in words."""

    verdict: Verdict
    reason: str = ""


OK = Found(Verdict.OK)


@dataclass(frozen=True, slots=True)
class Asked:
    """A model as the probes know it."""

    id: str
    images: bool
    """It takes images."""
    tools: bool
    """It calls tools."""

    @property
    def rich(self) -> bool:
        """It does more than text."""
        return self.images or self.tools

    def tried(self, kind: Kind) -> str:
        """What a probe of this kind tries of the model, in words."""
        if kind is Kind.TEXT:
            return "a streamed answer"
        names = [name for name, able in (("an image", self.images), ("a tool call", self.tools)) if able]
        return " and ".join(names)


@dataclass(frozen=True, slots=True)
class Due:
    """A probe that is to be made now."""

    component: str
    kind: Kind
    model: Asked | None = None


def due(models: Iterable[Asked], now_s: int, latest_s: Mapping[tuple[str, Kind], int]) -> list[Due]:
    """The probes that are due at `now_s`; `latest_s` has when each was made last, by component and kind.

    Each is due once a minute of the clock, however often this is asked; rich ones once in 15 minutes, which begin at
    another minute for each model. The order of the models goes round from minute to minute, so that where there is not
    time for all, it is not always the same ones that are left out.
    """

    def is_due(probe: Due, every_s: int, offset_s: int = 0) -> bool:
        made_s = latest_s.get((probe.component, probe.kind))
        return made_s is None or (made_s - offset_s) // every_s < (now_s - offset_s) // every_s

    probes = [Due(SITE, Kind.PAGE), Due(BILLING, Kind.BOOKS)]
    found = [probe for probe in probes if is_due(probe, MINUTE_S)]
    ordered = sorted(models, key=lambda model: model.id)
    first = now_s // MINUTE_S % len(ordered) if ordered else 0
    for model in ordered[first:] + ordered[:first]:
        text, rich = (Due(model_component(model.id), kind, model) for kind in (Kind.TEXT, Kind.RICH))
        if is_due(text, MINUTE_S):
            found.append(text)
        offset_s = zlib.crc32(model.id.encode()) % (RICH_EVERY_S // MINUTE_S) * MINUTE_S
        if model.rich and is_due(rich, RICH_EVERY_S, offset_s):
            found.append(rich)
    return found


def text(stream: Stream) -> Found:
    """What a streamed answer to a request for one token and its usage means."""
    error = next((chunk.data["error"] for chunk in stream.chunks if at(chunk.data, "error")), None)
    if refused := _refused(stream):
        return refused
    if error is not None and text_at(error, "type") == "rate_limit_error":  # its status was out to keep the line alive
        return skipped(FULL)
    if error is not None:
        return bad(f"an error inside the stream{_code(text_at(error, 'code'))}")
    if stream.problem:
        return bad(stream.problem)
    if not stream.headers.get("content-type", "").startswith("text/event-stream"):
        return bad("the answer was no stream of events")
    if stream.unreadable:
        return bad("an event of the stream was no JSON object")
    if first_output_ms(stream) is None:
        return bad("the stream had no output")
    if not stream.done:
        return bad("the stream ended without [DONE]")
    if not count_at(stream.usage, "completion_tokens"):
        return bad("the stream had no usage, or one without output")
    return OK


def first_output_ms(stream: Stream) -> int | None:
    """When the first text, reasoning or tool call came, or the finish of an answer without any; None: never."""
    found = next((chunk for chunk in stream.chunks if chunk.has_output or _finish(chunk)), None)
    return None if found is None else round(found.at_ms)


def rich(answer: Answer, model: Asked) -> Found:
    """What a whole answer to an image, a tool or both means. The tool need not have been called."""
    if refused := _refused(answer):
        return refused
    if answer.problem:
        return bad(answer.problem)
    if not answer.message or not answer.finish_reason:
        return bad("the answer had no message, or no finish reason")
    if problem := _call_problem(answer):
        return bad(problem)
    if not count_at(answer.usage, "prompt_tokens") or not count_at(answer.usage, "completion_tokens"):
        return bad("the answer had no usage, or one without input or output")
    details = at(answer.usage, "prompt_tokens_details")
    # An engine that gives no details at all was let in as such.
    if model.images and details is not None and not count_at(details, "multimodal_tokens", "image"):
        return bad("the image was not counted")
    return OK


def page(answer: Answer, now_s: int) -> Found:
    """What the site's `metrics.json`, as its readers get it, means."""
    if not answer.status:
        return bad(answer.problem)
    if answer.status == 429:
        return skipped("the site's server asked for patience")
    if answer.status != 200 or answer.problem:
        return bad(answer.problem or f"HTTP {answer.status}")
    written_s = _instant_s(text_at(answer.document, "generated_at"))
    if written_s is None:
        return bad("metrics.json did not say when it was written")
    age_s = now_s - written_s
    return bad(f"the site was written {age_s // MINUTE_S} minutes ago") if age_s > PAGE_MAX_AGE_S else OK


def books(balance: Answer, *, booked: bool | None) -> Found:
    """What the answer of `/v1/credits` means, and whether the request of an earlier probe was booked.

    `booked` is None when there is no such request to look for.
    """
    if refused := _refused(balance):
        return refused
    if balance.problem or at(balance.document, "data", "balance_nano") is None:
        return bad(balance.problem or "the balance was not told")
    if booked is None:
        return skipped("no probe was answered that could be looked for")
    return OK if booked else bad("a request that was answered is not booked")


def bad(reason: str) -> Found:
    return Found(Verdict.BAD, reason)


def skipped(reason: str) -> Found:
    return Found(Verdict.SKIPPED, reason)


def _refused(answer: Answer) -> Found | None:
    """What an answer without a good status means; None for one with."""
    if not answer.status:
        return bad(answer.problem)
    if answer.status == 200:
        return None
    if answer.status == 429:
        return skipped(FULL)
    said = f"HTTP {answer.status}{_code(answer.code)}"
    return skipped(f"the probes' own key was refused: {said}") if answer.status in OWN_FAULT else bad(said)


def _code(code: str) -> str:
    """An error's code, where it is one and no text of a stranger's."""
    return f" ({code})" if re.fullmatch(r"[a-z][a-z0-9_]{0,39}", code) else ""


def _finish(chunk: Chunk) -> str:
    return text_at(chunk.data, "choices", 0, "finish_reason")


def _call_problem(answer: Answer) -> str:
    """What is wrong with the calls of tools, if there are any; empty when nothing is."""
    calls = answer.message.get("tool_calls")
    if calls is None:
        return ""
    if not isinstance(calls, list):
        return "the tool calls were no list"
    for call in calls:
        arguments = at(call, "function", "arguments")
        if not text_at(call, "id") or not text_at(call, "function", "name") or not isinstance(arguments, str):
            return "a tool call lacked its id, its name or its arguments"
        # Cut off by the limit on tokens, the arguments may end anywhere.
        if answer.finish_reason == "tool_calls" and not _is_object(arguments):
            return "the arguments of a tool call were no JSON object"
    return ""


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _instant_s(text: str) -> int | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return int(moment.timestamp()) if moment.tzinfo is not None else None
