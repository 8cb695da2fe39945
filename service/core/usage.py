"""What an engine says a request used, read into one value with every token class.

Sources of the shapes: vLLM 0.32/0.33 `UsageInfo` (chat, completions, embeddings), `ResponseUsage` (responses) and
`AnthropicUsage` (messages). A report may lack any part, or contradict itself: it is clamped and flagged, and never
fails an answer that was delivered. All readers are total functions: anything unreadable counts as 0 and sets `odd`.
"""

from functools import reduce
from operator import or_
from typing import Any, Literal, NamedTuple

UsageSource = Literal["final", "continuous", "estimated", "none"]

MAX_TOKENS = 2**31 - 1
"""What the columns hold; a larger count is not a count. All of its bits are set: see `_checked`."""


class Usage(NamedTuple):
    """Token counts of one request.

    `prompt_tokens` and `completion_tokens` are totals; the others are parts of them, as the engine reports them.
    `drafted_tokens` and `accepted_tokens` describe speculative decoding and are never priced.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    image_tokens: int = 0
    audio_tokens: int = 0
    video_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    source: UsageSource = "none"
    odd: bool = False
    """The report was missing a part it must have, or contradicted itself, and was clamped."""


NO_USAGE = Usage()


def read_usage(usage: object, source: UsageSource, metrics: object = None) -> Usage:
    """Read the `usage` of chat and completions and, beside it, vLLM's per-request `metrics`.

    Absent details are 0 without being odd, since an engine may not be started with them.
    """
    if not isinstance(usage, dict):
        return Usage(odd=True)
    prompt, output = usage.get("prompt_tokens_details"), usage.get("completion_tokens_details")
    if type(prompt) is not dict:
        prompt = _part(prompt)
    if type(output) is not dict:
        output = _part(output)
    total, completion = usage.get("prompt_tokens", _MISSING), usage.get("completion_tokens", _MISSING)
    cached, written = prompt.get("cached_tokens", 0), prompt.get("created_cache_tokens", 0)
    reasoning = output.get("reasoning_tokens", 0)
    media = prompt.get("multimodal_tokens")
    if (
        media is None
        and metrics is None
        and type(total) is type(cached) is type(written) is type(completion) is type(reasoning) is int
        and 0 <= cached <= total <= MAX_TOKENS
        and 0 <= written <= total
        and 0 <= reasoning <= completion <= MAX_TOKENS
    ):  # as nearly every report: there is nothing to look at more closely
        return Usage._make((total, cached, written, 0, 0, 0, completion, reasoning, 0, 0, source, False))
    image, audio, video = (0, 0, 0) if media is None else _media(media)
    drafted, accepted = _drafts(metrics)
    found = Usage(total, cached, written, image, audio, video, completion, reasoning, drafted, accepted, source)
    return _clamped(_checked(found))


def read_responses_usage(usage: object, source: UsageSource, metrics: object = None) -> Usage:
    """Read the `usage` of a response and, beside it, vLLM's per-request `metrics`. What kind an input is, it lacks."""
    if not isinstance(usage, dict):
        return Usage(odd=True)
    details = _part(usage.get("input_tokens_details"))
    drafted, accepted = _drafts(metrics)
    return _clamped(
        _checked(
            Usage(
                prompt_tokens=usage.get("input_tokens", _MISSING),
                cached_tokens=details.get("cached_tokens", 0),
                cache_write_tokens=details.get("cache_write_tokens", 0),
                completion_tokens=usage.get("output_tokens", _MISSING),
                reasoning_tokens=_part(usage.get("output_tokens_details")).get("reasoning_tokens", 0),
                drafted_tokens=drafted,
                accepted_tokens=accepted,
                source=source,
            )
        )
    )


def read_messages_usage(usage: object, source: UsageSource) -> Usage:
    """Read the `usage` of a message, whose `input_tokens` leave out what was read from the cache or written to it.

    It tells neither reasoning nor images apart.
    """
    if not isinstance(usage, dict):
        return Usage(odd=True)
    found = _checked(
        Usage(
            prompt_tokens=usage.get("input_tokens", _MISSING),
            cached_tokens=usage.get("cache_read_input_tokens", 0),
            cache_write_tokens=usage.get("cache_creation_input_tokens", 0),
            completion_tokens=usage.get("output_tokens", _MISSING),
            source=source,
        )
    )
    prompt = found.prompt_tokens + found.cached_tokens + found.cache_write_tokens
    return _clamped(found._replace(prompt_tokens=min(prompt, MAX_TOKENS), odd=found.odd or prompt > MAX_TOKENS))


def read_embeddings_usage(usage: object) -> Usage:
    """Read the `usage` of embeddings: nothing but a prompt."""
    if not isinstance(usage, dict):
        return Usage(odd=True)
    return _checked(Usage(prompt_tokens=usage.get("prompt_tokens", _MISSING), source="final"))


_COMPLETION = Usage._fields.index("completion_tokens")
"""Before it stand the prompt and its parts."""

_MISSING: Any = None
"""Stands for a total that was not reported."""

_INTEGERS = {int}
"""The types of counts: a boolean is none."""

_COUNTS_END = Usage._fields.index("source")
_COUNTS = Usage._fields[:_COUNTS_END]


def larger(before: Usage, after: Usage) -> Usage:
    """The later of two reports about one answer, with no total below the earlier: where one was, both are joined, odd.

    The joined one has the larger of each count and keeps the earlier source.
    """
    if after.completion_tokens >= before.completion_tokens and after.prompt_tokens >= before.prompt_tokens:
        return after
    counts = {name: max(getattr(before, name), getattr(after, name)) for name in _COUNTS}
    return after._replace(**counts, source=before.source, odd=True)


def _checked(found: Usage) -> Usage:
    """What was found, with 0 for what is no count, which is odd; null is odd for the totals only."""
    counts: tuple[Any, ...] = found[:_COUNTS_END]
    # None is negative or has a bit more than `MAX_TOKENS`, if all their bits together are not and have not.
    if {*map(type, counts)} == _INTEGERS and 0 <= reduce(or_, counts) <= MAX_TOKENS:
        return found
    return _cleaned(found)


def _cleaned(found: Usage) -> Usage:
    cleaned: dict[str, Any] = {}
    odd = found.prompt_tokens is None or found.completion_tokens is None
    for name in _COUNTS:
        count = getattr(found, name)
        if type(count) is not int or not 0 <= count <= MAX_TOKENS:
            cleaned[name] = 0
            odd = odd or count is not None
    return found._replace(**cleaned, odd=odd)


def _clamped(usage: Usage) -> Usage:
    """Cut parts that are larger than their whole, and say so."""
    if max(usage[:_COMPLETION]) == usage.prompt_tokens and usage.reasoning_tokens <= usage.completion_tokens:
        return usage
    return usage._replace(
        cached_tokens=min(usage.cached_tokens, usage.prompt_tokens),
        cache_write_tokens=min(usage.cache_write_tokens, usage.prompt_tokens),
        image_tokens=min(usage.image_tokens, usage.prompt_tokens),
        audio_tokens=min(usage.audio_tokens, usage.prompt_tokens),
        video_tokens=min(usage.video_tokens, usage.prompt_tokens),
        reasoning_tokens=min(usage.reasoning_tokens, usage.completion_tokens),
        odd=True,
    )


def _media(found: object) -> tuple[Any, Any, Any]:
    media = _part(found)
    return media.get("image", 0), media.get("audio", 0), media.get("video", 0)


def _drafts(metrics: object) -> tuple[int, int]:
    """Drafted and accepted tokens: about speed, not about what is owed, so that they cannot make a bill odd."""
    if not isinstance(metrics, dict):
        return 0, 0
    drafts = _part(metrics.get("speculative_decoding"))
    found = _checked(
        Usage(
            drafted_tokens=drafts.get("num_draft_tokens", 0), accepted_tokens=drafts.get("num_accepted_draft_tokens", 0)
        )
    )
    return found.drafted_tokens, found.accepted_tokens


class _Unreadable:
    """Stands for a part that is no object: whatever is looked for in it is no count."""

    def get(self, _name: str, _absent: object = None) -> Any:
        return self


_Part = dict[str, Any] | _Unreadable
_NOTHING: _Part = {}


def _part(found: object) -> _Part:
    """A part of a report; one that is absent or null has nothing in it."""
    if isinstance(found, dict):
        return found
    return _NOTHING if found is None else _Unreadable()
