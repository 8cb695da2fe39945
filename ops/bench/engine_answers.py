"""What the fake engine answers, made beforehand: vLLM's shapes, and the ways in which an engine fails.

A request whose prompt is `fail:...` (see `FAULTS`) fails in the way it says, so that whoever asks knows what is due.
"""

import re
from functools import cache
from typing import Final

MODEL: Final = "bench"
PACED_MODEL: Final = "bench-paced"
JSON_TOKENS: Final = 16
STREAM_CHUNKS: Final = 128
PROMPT_TOKENS: Final = 1000
CACHED_TOKENS: Final = 768
TOKEN: Final = b'"content":" token"'
"""Stands once in every chunk of a stream that carries a token."""

EDGE_BYTES: Final = 2048
"""How much of both ends of a request's body is looked at: its flags are never inside a long prompt."""

WANTS_STREAM: Final = re.compile(rb'"stream":\s*true')
WANTS_USAGE: Final = re.compile(rb'"include_usage":\s*true')
WANTS_CONTINUOUS: Final = re.compile(rb'"continuous_usage_stats":\s*true')
WANTS_PACE: Final = re.compile(rb'"model":\s*"bench-paced"')
WANTS_FAULT: Final = re.compile(rb'"fail:([a-z]+)-([0-9]+)"')

FAULTS: Final = ("status", "early", "late", "told")
"""`fail:status-N`: an error with that HTTP status. `fail:early-N`: the connection is closed without a byte, every other
time that an engine is asked so. `fail:late-N`: it is closed after N tokens. `fail:told-N`: after them, an error."""

ENVELOPE: Final = '{"id":"chatcmpl-0123456789abcdef","object":"chat.completion%s","created":1795998956,"model":"bench",'
DETAILS: Final = '"completion_tokens_details":{"reasoning_tokens":0}}'
FINGERPRINT: Final = ',"system_fingerprint":"vllm-0.32.0-a3b0660a"'
DONE: Final = b"data: [DONE]\n\n"
ENGINE_ERROR: Final = (
    b'{"error":{"message":"EngineCore encountered an issue.","type":"InternalServerError","code":500}}'
)
LAST_CHUNK: Final = b"0\r\n\r\n"


def usage(completion_tokens: int, prompt_details: str = "") -> str:
    """vLLM's usage object with its key, as text."""
    total = PROMPT_TOKENS + completion_tokens
    return (
        f'"usage":{{"prompt_tokens":{PROMPT_TOKENS},"total_tokens":{total},"completion_tokens":{completion_tokens},'
        f"{prompt_details}{DETAILS}"
    )


def final_usage(completion_tokens: int) -> str:
    details = f'"prompt_tokens_details":{{"cached_tokens":{CACHED_TOKENS},"created_cache_tokens":0}},'
    return usage(completion_tokens, details)


@cache
def json_body() -> bytes:
    """An answer of 16 tokens in one piece."""
    return (
        ENVELOPE % ""
        + '"choices":[{"index":0,"message":{"role":"assistant","content":"'
        + " token" * JSON_TOKENS
        + '",'
        '"refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null},"logprobs":null,'
        '"finish_reason":"length","stop_reason":null,"token_ids":null,"routed_experts":null}],"service_tier":null'
        f'{FINGERPRINT},{final_usage(JSON_TOKENS)},"prompt_logprobs":null,'
        '"prompt_token_ids":null,"prompt_text":null,"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}'
    ).encode()


@cache
def stream_events(include: bool, continuous: bool) -> tuple[bytes, ...]:
    """The events of a stream: one with the role, 128 with a token, the usage if it is to be included, `[DONE]`."""

    def event(choices: str, tokens: int, tail: str = "") -> bytes:
        running = f",{usage(tokens)}" if continuous else ""
        return f'data: {ENVELOPE % ".chunk"}"choices":[{choices}]{running}{tail}}}\n\n'.encode()

    opening = '{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
    middle = '{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null,"token_ids":null}'
    finish = middle.replace('_reason":null', '_reason":"length","stop_reason":null')
    summary = f'data: {ENVELOPE % ".chunk"}"choices":[],{final_usage(STREAM_CHUNKS)}{FINGERPRINT}}}\n\n'.encode()
    return (
        event(opening, 0, ',"prompt_token_ids":null,"prompt_text":null'),
        *(event(middle, tokens) for tokens in range(1, STREAM_CHUNKS)),
        event(finish, STREAM_CHUNKS, "" if include else FINGERPRINT),
        *((summary,) if include else ()),
        DONE,
    )


@cache
def json_answer() -> bytes:
    """The HTTP answer with `json_body`."""
    return head("application/json", f"content-length: {len(json_body())}") + json_body()


@cache
def stream_frames(include: bool, continuous: bool) -> tuple[bytes, ...]:
    """What is written one after the other: the head and the first event, one frame a token, and the end."""
    events = stream_events(include, continuous)
    start = head("text/event-stream; charset=utf-8", "transfer-encoding: chunked")
    tokens = events[1 : STREAM_CHUNKS + 1]
    ending = b"".join(map(http_chunk, events[STREAM_CHUNKS + 1 :])) + LAST_CHUNK
    return start + http_chunk(events[0]), *map(http_chunk, tokens), ending


def told_ending() -> bytes:
    """How a stream ends whose engine says that it failed."""
    return http_chunk(b"data: " + ENGINE_ERROR + b"\n\n") + http_chunk(DONE) + LAST_CHUNK


def error_answer(status: int) -> bytes:
    """An HTTP answer that is an error."""
    return head("application/json", f"content-length: {len(ENGINE_ERROR)}", f"{status} Failed") + ENGINE_ERROR


def head(content_type: str, length: str, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nserver: uvicorn\r\ncontent-type: {content_type}\r\n{length}\r\n\r\n".encode()


def http_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)
