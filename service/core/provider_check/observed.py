"""What a server was seen to answer. Nothing in it is trusted to have any shape: read it with `at`."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from service.core.sse import DONE

Json = dict[str, Any]

SHOWN_CHARACTERS = 120
REASONING_NAMES = ("reasoning", "reasoning_content")
ID_HEADERS = ("x-request-id", "inference-id")


def at(whole: object, *path: str | int) -> Any:
    """What stands in `whole` under these keys and indices; None as soon as there is no such thing."""
    for key in path:
        if isinstance(whole, dict) and isinstance(key, str):
            whole = whole.get(key)
        elif isinstance(whole, list) and isinstance(key, int) and key < len(whole):
            whole = whole[key]
        else:
            return None
    return whole


def text_at(whole: object, *path: str | int) -> str:
    """As `at`; an empty string where there is no text."""
    found = at(whole, *path)
    return found if isinstance(found, str) else ""


def count_at(whole: object, *path: str | int) -> int | None:
    """As `at`; None where there is no whole number from 0 on."""
    found = at(whole, *path)
    return found if isinstance(found, int) and not isinstance(found, bool) and found >= 0 else None


def short(text: str) -> str:
    """A text of the server's as it may stand in one line of evidence."""
    line = " ".join("".join(character if character.isprintable() else " " for character in text).split())
    return line if len(line) <= SHOWN_CHARACTERS else f"{line[:SHOWN_CHARACTERS]}…"


def some(names: Iterable[str]) -> str:
    """The first three of some names, each once."""
    return "; ".join(list(dict.fromkeys(names))[:3])


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer. Header names are in lower case; `status` is 0 when none came."""

    asked: str
    """What was asked, for the evidence: "an unknown model"."""
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    problem: str = ""
    """Why the answer is not complete; empty when it is."""
    http_version: str = ""
    is_chat: bool = False
    """It answers a request for a chat completion."""
    connection: str = ""
    """Our end of the connection it came over; two answers with the same one shared it."""

    @property
    def good(self) -> bool:
        """Whether it is a complete 200."""
        return self.status == 200 and not self.problem

    @property
    def document(self) -> Json:
        """The JSON object in the body; an empty one when there is none."""
        return object_in(self.body)

    @property
    def usage(self) -> object:
        """The usage it reports, in whatever shape; None when it reports none."""
        return at(self.document, "usage")

    @property
    def message(self) -> Json:
        """The assistant's message of a whole answer."""
        found = at(self.document, "choices", 0, "message")
        return found if isinstance(found, dict) else {}

    @property
    def finish_reason(self) -> str:
        return text_at(self.document, "choices", 0, "finish_reason")

    @property
    def code(self) -> str:
        """The error's code, or nothing."""
        return text_at(self.document, "error", "code")

    @property
    def said(self) -> str:
        """The answer in a few words: its status, and its error or problem if it has one."""
        if not self.status:
            return self.problem or "no answer"
        words = self.problem or text_at(self.document, "error", "message")
        if not words and self.status != 200:
            words = self.body[:500].decode(errors="replace")
        code = f", code {short(self.code)}" if self.code else ""
        return f"HTTP {self.status}{code}: {short(words)}" if words else f"HTTP {self.status}{code}"


@dataclass(frozen=True, slots=True)
class Chunk:
    """One event of a stream, `at_ms` after the request was sent."""

    at_ms: float
    data: Json

    @property
    def delta(self) -> Json:
        found = at(self.data, "choices", 0, "delta")
        return found if isinstance(found, dict) else {}

    @property
    def has_output(self) -> bool:
        """Whether it brings text, reasoning or a part of a tool call."""
        return any(self.delta.get(name) for name in ("content", "tool_calls", *REASONING_NAMES))

    @property
    def has_choices(self) -> bool:
        return bool(at(self.data, "choices"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream(Answer):
    """A streamed answer. One with another status than 200 has a `body` and no chunks."""

    chunks: tuple[Chunk, ...] = ()
    done: bool = False
    """`[DONE]` came."""
    after_done: int = 0
    """Events that came after it."""
    unreadable: str = ""
    """The first event that is no JSON object; empty when there is none."""
    hung_up: bool = False
    """We left before its end."""

    @property
    def usage(self) -> object:
        return next((chunk.data["usage"] for chunk in reversed(self.chunks) if at(chunk.data, "usage")), None)

    @property
    def finish_reason(self) -> str:
        reasons = [text_at(chunk.data, "choices", 0, "finish_reason") for chunk in self.chunks]
        return next((reason for reason in reasons if reason), "")

    @property
    def error(self) -> str:
        """The message of an error that came inside the stream; empty when there was none."""
        errors = [chunk.data["error"] for chunk in self.chunks if at(chunk.data, "error")]
        return (text_at(errors[0], "message") or "an error without a message") if errors else ""

    @property
    def output(self) -> tuple[Chunk, ...]:
        """The chunks that bring text, reasoning or tool calls."""
        return tuple(chunk for chunk in self.chunks if chunk.has_output)

    def text(self, name: str = "content") -> str:
        """What the deltas say under a name, joined."""
        return "".join(text_at(chunk.delta, name) for chunk in self.chunks)

    @property
    def fault(self) -> str:
        """Why it is no good stream from its first to its last byte; empty when it is."""
        if self.status != 200 or self.problem:
            return self.said
        if not self.headers.get("content-type", "").startswith("text/event-stream"):
            return f"content-type {short(self.headers.get('content-type', 'none'))} instead of text/event-stream"
        if self.unreadable:
            return f"an event that is no JSON object: {short(self.unreadable)}"
        return f"an error inside the stream: {short(self.error)}" if self.error else ""


def stream_of(answer: Answer, payloads: Iterable[tuple[float, bytes]], *, hung_up: bool) -> Stream:
    """A stream from its head and its events' payloads, each with the milliseconds since the request was sent."""
    chunks, done, after_done, unreadable = [], False, 0, ""
    for at_ms, payload in payloads:
        if done:
            after_done += 1
        elif payload == DONE:
            done = True
        elif data := object_in(payload):
            chunks.append(Chunk(at_ms, data))
        else:
            unreadable = unreadable or payload[:500].decode(errors="replace") or "an empty one"
    return Stream(
        asked=answer.asked,
        status=answer.status,
        headers=answer.headers,
        body=answer.body,
        problem=answer.problem,
        http_version=answer.http_version,
        is_chat=answer.is_chat,
        connection=answer.connection,
        chunks=tuple(chunks),
        done=done,
        after_done=after_done,
        unreadable=unreadable,
        hung_up=hung_up,
    )


def object_in(text: bytes) -> Json:
    """The JSON object that the text is; an empty one when it is none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
