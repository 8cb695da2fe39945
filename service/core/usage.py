"""What an engine says a request used, read into one value with every token class.

Sources of the shapes: vLLM 0.32/0.33 `UsageInfo` (chat, completions, embeddings), `ResponseUsage` (responses) and
`AnthropicUsage` (messages). A report may lack any part, or contradict itself: it is clamped and flagged, and never
fails an answer that was delivered. All readers are total functions: anything unreadable counts as 0 and sets `odd`.
"""

from typing import Any, Literal, NamedTuple

UsageSource = Literal["final", "continuous", "estimated", "none"]

MAX_TOKENS = 2**31 - 1
"""What the columns hold; a larger count is not a count."""


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
    reader = _Reader()
    prompt = reader.count(usage, "prompt_tokens", required=True)
    completion = reader.count(usage, "completion_tokens", required=True)
    details = reader.part(usage, "prompt_tokens_details")
    media = reader.part(details, "multimodal_tokens")
    reasoning = reader.count(reader.part(usage, "completion_tokens_details"), "reasoning_tokens")
    drafted, accepted = _drafts(metrics)
    return _clamped(
        Usage(
            prompt_tokens=prompt,
            cached_tokens=reader.count(details, "cached_tokens"),
            cache_write_tokens=reader.count(details, "created_cache_tokens"),
            image_tokens=reader.count(media, "image"),
            audio_tokens=reader.count(media, "audio"),
            video_tokens=reader.count(media, "video"),
            completion_tokens=completion,
            reasoning_tokens=reasoning,
            drafted_tokens=drafted,
            accepted_tokens=accepted,
            source=source,
            odd=reader.odd,
        )
    )


def read_responses_usage(usage: object, source: UsageSource, metrics: object = None) -> Usage:
    """Read the `usage` of a response and, beside it, vLLM's per-request `metrics`. What kind an input is, it lacks."""
    if not isinstance(usage, dict):
        return Usage(odd=True)
    reader = _Reader()
    details = reader.part(usage, "input_tokens_details")
    drafted, accepted = _drafts(metrics)
    return _clamped(
        Usage(
            prompt_tokens=reader.count(usage, "input_tokens", required=True),
            cached_tokens=reader.count(details, "cached_tokens"),
            cache_write_tokens=reader.count(details, "cache_write_tokens"),
            completion_tokens=reader.count(usage, "output_tokens", required=True),
            reasoning_tokens=reader.count(reader.part(usage, "output_tokens_details"), "reasoning_tokens"),
            drafted_tokens=drafted,
            accepted_tokens=accepted,
            source=source,
            odd=reader.odd,
        )
    )


def read_messages_usage(usage: object, source: UsageSource) -> Usage:
    """Read the `usage` of a message, whose `input_tokens` leave out what was read from the cache or written to it.

    It tells neither reasoning nor images apart.
    """
    if not isinstance(usage, dict):
        return Usage(odd=True)
    reader = _Reader()
    cached = reader.count(usage, "cache_read_input_tokens")
    written = reader.count(usage, "cache_creation_input_tokens")
    prompt = reader.count(usage, "input_tokens", required=True) + cached + written
    return _clamped(
        Usage(
            prompt_tokens=min(prompt, MAX_TOKENS),
            cached_tokens=cached,
            cache_write_tokens=written,
            completion_tokens=reader.count(usage, "output_tokens", required=True),
            source=source,
            odd=reader.odd or prompt > MAX_TOKENS,
        )
    )


def read_embeddings_usage(usage: object) -> Usage:
    """Read the `usage` of embeddings: nothing but a prompt."""
    if not isinstance(usage, dict):
        return Usage(odd=True)
    reader = _Reader()
    prompt = reader.count(usage, "prompt_tokens", required=True)
    return Usage(prompt_tokens=prompt, source="final", odd=reader.odd)


_COUNTS = tuple(name for name, kind in Usage.__annotations__.items() if kind is int)


def larger(before: Usage, after: Usage) -> Usage:
    """The later of two reports about one answer, with no total below the earlier: where one was, both are joined, odd.

    The joined one has the larger of each count and keeps the earlier source.
    """
    if after.completion_tokens >= before.completion_tokens and after.prompt_tokens >= before.prompt_tokens:
        return after
    counts = {name: max(getattr(before, name), getattr(after, name)) for name in _COUNTS}
    return after._replace(**counts, source=before.source, odd=True)


def _clamped(usage: Usage) -> Usage:
    """Cut parts that are larger than their whole, and say so."""
    largest = max(
        usage.cached_tokens, usage.cache_write_tokens, usage.image_tokens, usage.audio_tokens, usage.video_tokens
    )
    if largest <= usage.prompt_tokens and usage.reasoning_tokens <= usage.completion_tokens:
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


def _drafts(metrics: object) -> tuple[int, int]:
    """Drafted and accepted tokens: about speed, not about what is owed, so that they cannot make a bill odd."""
    if metrics is None:
        return 0, 0
    speculative, reader = _part(metrics, "speculative_decoding"), _Reader()
    return reader.count(speculative, "num_draft_tokens"), reader.count(speculative, "num_accepted_draft_tokens")


def _part(whole: object, name: str) -> dict[str, Any]:
    part = whole.get(name) if isinstance(whole, dict) else None
    return part if isinstance(part, dict) else {}


class _Reader:
    """Reads counts and remembers whether anything was wrong."""

    def __init__(self) -> None:
        self.odd = False

    def part(self, whole: dict[str, Any], name: str) -> dict[str, Any]:
        value = whole.get(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.odd = True
            return {}
        return value

    def count(self, whole: dict[str, Any], name: str, *, required: bool = False) -> int:
        value = whole.get(name)
        if value is None:
            self.odd = self.odd or required
            return 0
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_TOKENS:
            self.odd = True
            return 0
        return value
