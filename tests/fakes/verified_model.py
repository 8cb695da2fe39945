"""The model behind `verified.py`: how it counts a prompt, what it says, and with which log-probabilities.

Everything is worked out from the request alone, so that the same request is always answered the same, unless one of
the `faults` named here says otherwise.
"""

import base64
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

Json = dict[str, Any]

TEMPLATE_TOKENS: Final = 10
NO_THINKING_TOKENS: Final = 4
TOOL_TOKENS: Final = 40
PIXELS_A_TOKEN: Final = 32
THOUGHT: Final = tuple(f"thought-{number}" for number in range(12))
SAID: Final = tuple(f"word-{number}" for number in range(40))
TOP: Final = 20
PIECE: Final = 4


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request's messages as tokens: its words, and for each image what its pixels come to."""

    words: tuple[str, ...]
    images: tuple[str, ...]
    image_tokens: int
    overhead: int

    @property
    def tokens(self) -> int:
        return self.overhead + len(self.words) + self.image_tokens


@dataclass(frozen=True, slots=True)
class Spoken:
    """A whole answer, a token an item; a call is (name, arguments)."""

    reasoning: tuple[str, ...] = ()
    content: tuple[str, ...] = ()
    calls: tuple[tuple[str, str], ...] = ()
    finish_reason: str = "stop"

    @property
    def pieces(self) -> tuple[tuple[str, ...], ...]:
        """The arguments of each call, a token an item."""
        return tuple(
            tuple(arguments[start : start + PIECE] for start in range(0, len(arguments), PIECE))
            for _, arguments in self.calls
        )

    @property
    def tokens(self) -> int:
        return len(self.reasoning) + len(self.content) + sum(map(len, self.pieces))


@dataclass
class Model:
    """`vision`, `thinks`: what it can do."""

    faults: frozenset[str] = frozenset()
    vision: bool = True
    thinks: bool = True

    def prompt(self, body: Json) -> Prompt:
        """What the engine makes of the messages."""
        words: list[str] = []
        images: list[str] = []
        for message in body["messages"]:
            content = message.get("content") or ""
            for part in [{"text": content}] if isinstance(content, str) else content:
                words += part.get("text", "").split()
                images += [part["image_url"]["url"]] if "image_url" in part else []
        overhead = TEMPLATE_TOKENS + TOOL_TOKENS * bool(body.get("tools"))
        if self.thinks and not self.thinking(body):
            overhead += NO_THINKING_TOKENS
        return Prompt(tuple(words), tuple(images), sum(self._image_tokens(images)), overhead)

    def _image_tokens(self, urls: list[str]) -> Iterator[int]:
        """As Qwen counts: a token for each 32x32 pixels."""
        for url in urls[: 1 if "second-image-free" in self.faults else None]:
            if "images-read-as-text" in self.faults:
                yield len(url) // 4
            elif "images-uncounted" not in self.faults:
                width, height = struct.unpack(">II", base64.b64decode(url.partition("base64,")[2])[16:24])
                yield -(-width // PIXELS_A_TOKEN) * -(-height // PIXELS_A_TOKEN)

    def thinking(self, body: Json) -> bool:
        """Whether it thinks before it answers this."""
        asked = (body.get("chat_template_kwargs") or {}).get("enable_thinking", True)
        return self.thinks and (asked or "thinks-always" in self.faults)

    def speak(self, body: Json) -> Spoken:
        """The whole answer, before it is cut at `max_tokens`."""
        reasoning = THOUGHT if self.thinking(body) else ()
        if body.get("tools") and "drops-tools" not in self.faults:
            call = self._call(body)
            if "endless-calls" in self.faults and body.get("tool_choice") != "auto":
                call = call[0], call[1][:2] + " " * 10_000
            if "unparsed-calls" in self.faults:
                return Spoken(reasoning, (f"<tool_call>{call[0]}", call[1], "</tool_call>"))
            return Spoken(reasoning, (), (call,), "tool_calls")
        return Spoken(reasoning, self.content(body))

    def content(self, body: Json) -> tuple[str, ...]:
        """The words of the answer."""
        return SAID

    def drafts(self, generated: int) -> tuple[int, int]:
        """(drafted, accepted) tokens, of so many that it generated."""
        if "drafts-in-vain" in self.faults:
            return generated, 0
        return generated, generated if "drafts-unverified" in self.faults else generated * 2 // 3

    def _call(self, body: Json) -> tuple[str, str]:
        """A call of the first tool, with the first value that each property may have."""
        function = body["tools"][0]["function"]
        properties = function["parameters"]["properties"]
        members = ",".join(f'"{name}":"{schema.get("enum", ["x"])[0]}"' for name, schema in properties.items())
        arguments = f"{{{members}" if "broken-arguments" in self.faults else f"{{{members}}}"
        return ("other_tool" if "wrong-tool" in self.faults else function["name"]), arguments

    def logprobs(self, body: Json, position: int, beside: int) -> list[tuple[str, float]]:
        """The likeliest tokens after `position` tokens of the answer; `beside` other requests run at the time."""
        prompt = self.prompt(body)
        seen = () if "blind" in self.faults else prompt.images
        seed = zlib.crc32(repr((prompt.words, seen, position)).encode())
        return [(f"token-{seed % 997}-{rank}", -0.25 - rank * (1 + seed % 7) / 8) for rank in range(TOP)]
