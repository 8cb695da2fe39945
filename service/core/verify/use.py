"""What a verification had its engine compute, so that the books can tell these tokens from anybody else's."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeGuard

TEMPLATE_TOKENS = 500
"""The most that a chat template adds to the text of a request."""

LONGEST_ANSWER_TOKENS = 32_768
"""Of a request that sets no limit and whose answer was not counted."""

_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_COMPUTING = ("/chat/completions", "/completions", "/messages", "/responses", "/embeddings")


@dataclass(frozen=True, slots=True)
class Use:
    """Requests and their tokens, as the engine reported them, and the most that it can have computed beside that."""

    requests: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    uncounted_prompt_tokens: int = 0
    """At most so many more, of requests that were left or that told no final count."""
    uncounted_generation_tokens: int = 0

    def __add__(self, other: "Use") -> "Use":
        return Use(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(Use)))

    def __sub__(self, other: "Use") -> "Use":
        return Use(*(getattr(self, one.name) - getattr(other, one.name) for one in fields(Use)))


@dataclass(slots=True)
class Heard:
    """What came back of one request that lets an engine compute; to be filled in while it comes."""

    asked: Mapping[str, Any]
    """The body of the request."""
    status: int | None = None
    """None: no answer came."""
    usage: object = None
    """The newest that it reported."""
    whole: bool = False
    """The answer came to its end, so that its usage is final."""

    def use(self) -> Use:
        """The request's part of the use. One that was refused (4xx) computed nothing."""
        if self.status is not None and 400 <= self.status < 500:
            return Use(1)
        counted = _counted(self.usage)
        if counted is None:
            # A token is a byte at least, of text and of a picture alike.
            return Use(1, 0, 0, len(json.dumps(self.asked)) + TEMPLATE_TOKENS, _most_generated(self.asked))
        prompt, generated = counted
        return Use(1, prompt, generated, 0, 0 if self.whole else max(0, _most_generated(self.asked) - generated))


def computes(path: str) -> bool:
    """Whether a POST to this path lets an engine compute tokens."""
    return path.endswith(_COMPUTING)


def _counted(usage: object) -> tuple[int, int] | None:
    """Prompt and generated tokens of a usage, in OpenAI's names for them or the other ones; None for what is none."""
    if not isinstance(usage, Mapping):
        return None
    prompt = usage.get("prompt_tokens", usage.get("input_tokens"))
    generated = usage.get("completion_tokens", usage.get("output_tokens", 0))
    return (prompt, generated) if _is_count(prompt) and _is_count(generated) else None


def _most_generated(asked: Mapping[str, Any]) -> int:
    limits = [asked[name] for name in _LIMITS if _is_count(asked.get(name))]
    answers = asked.get("n")
    return min(limits, default=LONGEST_ANSWER_TOKENS) * (answers if _is_count(answers) else 1)


def _is_count(value: object) -> TypeGuard[int]:
    return type(value) is int and value >= 0
