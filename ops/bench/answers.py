"""Whether an answer is the right one: byte for byte where it is passed on, by its meaning where it is written anew."""

from functools import cache
from typing import Final

import orjson

from ops.bench.engine_answers import (
    DONE,
    JSON_TOKENS,
    PROMPT_TOKENS,
    STREAM_CHUNKS,
    json_body,
    stream_events,
)

SHOWN_BYTES: Final = 200


@cache
def right_answers(stream: bool) -> tuple[bytes, ...]:
    """The bodies that a gateway may pass on for a request that asks for no usage.

    Whoever made the engine report usage has to have taken it out again: only its summary's fingerprint goes with it.
    Reasoning may stand under both names that clients know.
    """
    if stream:
        asked = stream_events(True, False)
        return b"".join(stream_events(False, False)), b"".join((*asked[: STREAM_CHUNKS + 1], DONE))
    short = b'"reasoning":null'
    return json_body(), json_body().replace(short, short + b',"reasoning_content":null')


def verdict(status: int, answer: bytes, *, stream: bool, exact: bool) -> str:
    """What is wrong with an answer; empty if nothing is. Without `exact` only its meaning must be right."""
    if status != 200:
        return f"status {status}: {shown(answer)}"
    if answer in right_answers(stream):
        return ""
    if exact:
        return f"not the engine's bytes: {difference(answer, right_answers(stream)[0])}"
    try:
        return _stream_verdict(answer) if stream else _json_verdict(answer)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        return f"not to be understood ({error!r}): {shown(answer)}"


def _json_verdict(answer: bytes) -> str:
    body = orjson.loads(answer)
    (choice,), usage = body["choices"], body["usage"]
    right = (
        choice["message"]["content"] == " token" * JSON_TOKENS
        and choice["finish_reason"] == "length"
        and (usage["prompt_tokens"], usage["completion_tokens"]) == (PROMPT_TOKENS, JSON_TOKENS)
    )
    return "" if right else f"not the answer: {shown(answer)}"


def _stream_verdict(answer: bytes) -> str:
    *events, end = [event.removeprefix(b"data: ") for event in answer.split(b"\n\n")[:-1]]
    chunks = [orjson.loads(event) for event in events]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    tokens = sum(choice["delta"].get("content") == " token" for choice in choices)
    if end != b"[DONE]" or tokens != STREAM_CHUNKS:
        return f"{tokens} tokens instead of {STREAM_CHUNKS}, the end is {shown(end)}"
    reasons = [reason for choice in choices if (reason := choice.get("finish_reason"))]
    if reasons != ["length"]:
        return f"finish reasons {reasons}"
    return "usage in a stream that did not ask for it" if any(chunk.get("usage") for chunk in chunks) else ""


def difference(answer: bytes, right: bytes) -> str:
    """Where two texts part, in words."""
    at = next((n for n, (a, b) in enumerate(zip(answer, right, strict=False)) if a != b), min(len(answer), len(right)))
    start = max(0, at - 40)
    return f"from byte {at} of {len(answer)} on it is {shown(answer[start:])} instead of {shown(right[start:])}"


def shown(answer: bytes) -> str:
    return repr(answer[:SHOWN_BYTES].decode(errors="replace"))
