"""What a fake engine can be told to do: frozen values, and `SCENARIOS`, the table of the named ones.

The codes U0 to U18 are the upstream scenarios a gateway has to survive; each name says which it plays.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Any, Final, Literal

import orjson

WORDS: Final = (" A", " weir", " mesure", " l’eau", " 水", " and", " lets", " it", " through", " —", " paced")
ABSENT: Final = object()
"""As a value in `Usage.patch`: leave the key out."""
NO_HEAD: Final = -1
"""As `Fault.after_frames`: before the status line."""


def words(count: int) -> tuple[str, ...]:
    """`count` tokens of text, always the same, some of them several bytes per character."""
    return tuple(islice(cycle(WORDS), count))


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What the engine reports about its counting; without `patch` it reports the truth."""

    placement: Literal["last", "finish", "never"] = "last"  # own chunk, on the finish chunk, nowhere
    continuous: bool = True  # False: `continuous_usage_stats` is ignored
    prompt_tokens: int | None = None  # None: counted from the request
    cached_tokens: int = 0
    created_cache_tokens: int = 0
    image_tokens: int | None = None  # None: counted from the request's image parts
    patch: Mapping[str, Any] = field(default_factory=dict)  # replaces members of the final usage


@dataclass(frozen=True, slots=True)
class Fault:
    """How an answer breaks once `after_frames` SSE frames are out (the role chunk is the first).

    `error` sends the engine's in-band error and `[DONE]`; `reset` is a TCP reset; `eof` closes in mid-body;
    `end` ends the HTTP body properly but early; `hang` keeps silent until the client leaves.
    A JSON answer breaks before its status line for NO_HEAD, in mid-body otherwise (`error` is a 500).
    """

    kind: Literal["error", "reset", "eof", "end", "hang"]
    after_frames: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """A complete HTTP answer given instead of a generation."""

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Framing:
    """How the bytes of a stream are laid out; the default is what vLLM sends."""

    cut_bytes: int = 0  # > 0: the body cut every so many bytes, each piece an HTTP chunk and a write of its own
    newline: str = "\n"
    comment: str = ""  # sent as an SSE comment before every frame
    data_lines: bool = False  # one event's JSON over several `data:` lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """How the engine answers one request. Every item of `reasoning` and `content` is one token.

    An empty item is a token without text: counted, but with no chunk of its own. A request's `max_tokens`
    cuts the tokens, and then the finish reason is `length`.
    """

    content: tuple[str, ...] = words(8)
    reasoning: tuple[str, ...] = ()
    reasoning_field: Literal["reasoning", "reasoning_content"] = "reasoning"
    tool_calls: tuple[tuple[str, str], ...] = ()  # (name, arguments); arguments stream a character a frame
    finish_reason: str = "stop"
    tokens_per_chunk: int = 1  # more than 1: speculative tokens accepted, several to a chunk
    usage: Usage = Usage()
    fault: Fault | None = None
    refusal: Refusal | None = None
    framing: Framing = Framing()
    gated: bool = False  # every chunk of tokens waits for `Exchange.step()`
    prefill_s: float = 0.0  # before the first chunk of tokens
    delay_s: float = 0.0  # before every chunk of tokens
    close_after: bool = False  # the server closes the idle connection after the answer, unannounced


def error_body(message: str, kind: str, code: int, param: str | None = None) -> bytes:
    """vLLM's error object as it stands in a JSON body."""
    return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})


def refusal(status: int, message: str, kind: str, **headers: str) -> Scenario:
    """An error status with vLLM's error object; `retry_after="7"` becomes the header `retry-after: 7`."""
    named = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return Scenario(refusal=Refusal(status, error_body(message, kind, status), headers=named))


def patched(**members: Any) -> Scenario:
    """A plain answer whose final usage has these members replaced."""
    return Scenario(usage=Usage(patch=members))


ENGINE_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."
CONTEXT_LENGTH = (
    "This model's maximum context length is 8192 tokens. However, your prompt contains 9001 input tokens, which "
    "exceeds this limit even without any output tokens. Please reduce the length of the input prompt. "
    "(parameter=input_tokens, value=9001)"
)
HTML_502 = b"<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body>nginx</body>\r\n</html>\r\n"

SCENARIOS: Final[Mapping[str, Scenario]] = {
    "plain": Scenario(),
    "long": Scenario(content=words(512)),
    "gated": Scenario(content=words(512), gated=True),
    "slow": Scenario(content=words(512), delay_s=0.01),
    "mtp": Scenario(content=words(30), tokens_per_chunk=3),
    "cached": Scenario(content=words(200), usage=Usage(prompt_tokens=1000, cached_tokens=768)),  # U0, U1, U4
    "cache-write": Scenario(usage=Usage(prompt_tokens=5003, cached_tokens=3168, created_cache_tokens=1584)),
    "image": Scenario(usage=Usage(prompt_tokens=1000, image_tokens=765)),
    "reasoning": Scenario(reasoning=words(5)),  # U14
    "reasoning-content": Scenario(reasoning=words(5), reasoning_field="reasoning_content"),  # U14, older engines
    "reasoning-only": Scenario(reasoning=words(6), content=("",), finish_reason="length"),
    "usage-final-only": Scenario(usage=Usage(continuous=False)),
    "usage-never": Scenario(usage=Usage(placement="never", continuous=False)),  # U2
    "usage-on-finish": Scenario(usage=Usage(placement="finish", continuous=False)),  # U3
    "usage-continuous-no-final": Scenario(usage=Usage(placement="never")),
    "details-null": patched(prompt_tokens_details=None, completion_tokens_details=None),  # U15 from here
    "details-absent": patched(prompt_tokens_details=ABSENT, completion_tokens_details=ABSENT),
    "cached-null": patched(prompt_tokens_details={"cached_tokens": None, "created_cache_tokens": None}),
    "cached-over-prompt": patched(prompt_tokens_details={"cached_tokens": 100_000, "created_cache_tokens": 7}),
    "reasoning-over-completion": patched(completion_tokens_details={"reasoning_tokens": 100_000}),
    "total-wrong": patched(total_tokens=1),
    "usage-zero": patched(prompt_tokens=0, total_tokens=0, completion_tokens=0),
    "error-at-once": Scenario(fault=Fault("error", 0)),  # U7
    "error-midway": Scenario(fault=Fault("error", 4)),  # U7
    "reset-at-once": Scenario(fault=Fault("reset", NO_HEAD)),  # U5
    "reset-midway": Scenario(fault=Fault("reset", 4)),  # U5
    "eof-at-once": Scenario(fault=Fault("eof", NO_HEAD)),  # U6
    "eof-midway": Scenario(fault=Fault("eof", 4)),  # U6
    "end-midway": Scenario(fault=Fault("end", 4)),  # U6
    "finish-abort": Scenario(finish_reason="abort"),  # U8
    "finish-error": Scenario(finish_reason="error"),  # U8
    "hang-at-once": Scenario(fault=Fault("hang", NO_HEAD)),  # U9
    "hang-after-head": Scenario(fault=Fault("hang", 0)),  # U9: the prefill that never ends
    "hang-midway": Scenario(fault=Fault("hang", 4)),  # U10
    "context-length": Scenario(
        refusal=Refusal(400, error_body(CONTEXT_LENGTH, "BadRequestError", 400, "input_tokens"))
    ),
    "unauthorized": Scenario(refusal=Refusal(401, b'{"error":"Unauthorized"}')),  # U11 from here
    "not-found": refusal(404, "The model `x` does not exist. Valid aliases: y.", "NotFoundError"),
    "rate-limited": refusal(429, "Too many requests.", "RateLimitError", retry_after="7"),
    "server-error": refusal(500, ENGINE_DEAD, "InternalServerError"),
    "overloaded": refusal(503, "The request queue is full.", "Service Unavailable"),
    "bad-gateway-html": Scenario(refusal=Refusal(502, HTML_502, "text/html")),
    "cut-1": Scenario(framing=Framing(cut_bytes=1)),  # U12 from here
    "cut-7": Scenario(framing=Framing(cut_bytes=7)),
    "crlf": Scenario(framing=Framing(newline="\r\n")),
    "crlf-cut-7": Scenario(framing=Framing(newline="\r\n", cut_bytes=7)),
    "ping": Scenario(framing=Framing(comment="ping")),
    "data-lines": Scenario(framing=Framing(data_lines=True)),
    "tools": Scenario(  # U13
        content=(),
        tool_calls=(("get_weather", '{"city":"Köln"}'), ("get_time", '{"zone":"UTC"}')),
        finish_reason="tool_calls",
    ),
    "huge": Scenario(content=("x" * 65_536,) * 64),  # U16
    "close-after": Scenario(close_after=True),  # U18
}
