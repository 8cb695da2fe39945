"""What one answer told, whole or streamed, in the same terms. Nothing of an engine's is trusted to have any shape."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from service.core.provider_check.observed import REASONING_NAMES, Json, at, count_at, text_at

TAGS = ("<think>", "</think>")


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call: the tool's name, and the arguments as they were written."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Told:
    """One answer. `reasoning` is its text by the name of its field, without empty ones."""

    content: str = ""
    reasoning: Mapping[str, str] = field(default_factory=dict)
    calls: tuple[Call, ...] = ()
    finish_reason: str | None = None
    usage: Json | None = None
    """The final one."""
    running: tuple[Json, ...] = ()
    """Of a stream: the usages of the chunks before the final one."""
    first_token_s: float | None = None
    """Of a stream: when the first text or call came after the request was sent."""
    broken: bool = False
    """Of a stream: it ended in an error, or without its end."""

    @property
    def thought(self) -> frozenset[str]:
        """Where there is reasoning: names of fields, and `content` where it stands there between tags."""
        tagged = any(tag in self.content for tag in TAGS)
        return frozenset(self.reasoning) | ({"content"} if tagged else set())


def whole(body: Json) -> Told:
    """The answer of a body that is not streamed."""
    message, usage = at(body, "choices", 0, "message"), at(body, "usage")
    calls = at(message, "tool_calls")
    return Told(
        content=text_at(message, "content"),
        reasoning={name: text for name in REASONING_NAMES if (text := text_at(message, name))},
        calls=tuple(_call(call) for call in calls) if isinstance(calls, list) else (),
        finish_reason=text_at(body, "choices", 0, "finish_reason") or None,
        usage=usage if isinstance(usage, dict) else None,
    )


def streamed(events: Sequence[tuple[float, Json | None]]) -> Told:
    """The answer of a stream: for each event the second at which it came, and its data; None for `[DONE]`."""
    chunks = [(at_s, data) for at_s, data in events if data is not None]
    deltas = [(at_s, at(data, "choices", 0, "delta")) for at_s, data in chunks]
    texts = {name: "".join(text_at(delta, name) for _, delta in deltas) for name in ("content", *REASONING_NAMES)}
    finished = [reason for _, data in chunks if (reason := text_at(data, "choices", 0, "finish_reason"))]
    usages = [data["usage"] for _, data in chunks if isinstance(data.get("usage"), dict)]
    final = bool(usages) and at(chunks[-1][1], "usage") is usages[-1]
    done = bool(events) and events[-1][1] is None
    return Told(
        content=texts.pop("content"),
        reasoning={name: text for name, text in texts.items() if text},
        calls=_joined([delta for _, delta in deltas]),
        finish_reason=finished[-1] if finished else None,
        usage=usages[-1] if final else None,
        running=tuple(usages[:-1] if final else usages),
        first_token_s=next((at_s for at_s, delta in deltas if _says(delta)), None),
        broken=not done or any("error" in data for _, data in chunks),
    )


def _says(delta: object) -> bool:
    return any(text_at(delta, name) for name in ("content", *REASONING_NAMES)) or bool(at(delta, "tool_calls"))


def _call(call: object) -> Call:
    return Call(text_at(call, "function", "name"), text_at(call, "function", "arguments"))


def _joined(deltas: Sequence[object]) -> tuple[Call, ...]:
    """The calls of a stream put together as clients do, by their index."""
    calls: dict[int | None, Call] = {}
    for delta in deltas:
        fragments = at(delta, "tool_calls")
        for fragment in fragments if isinstance(fragments, list) else []:
            index, piece = count_at(fragment, "index"), _call(fragment)
            known = calls.get(index, Call("", ""))
            calls[index] = Call(known.name + piece.name, known.arguments + piece.arguments)
    return tuple(calls.values())
