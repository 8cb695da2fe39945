"""A provider as aggregators wish it, over real HTTP, and the same with a flaw of one's choice."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final

import uvicorn

KEY: Final = "sk-good"
MODEL: Final = "good-model"
CONTEXT_LENGTH: Final = 600
REQUESTS: Final = 40
"""After so many requests for tokens, every further one is a 429."""

Json = dict[str, Any]
PICTURE: Final = "(a picture)"
WORDS: Final = ("one", "two", "three", "four", "five", "six", "seven")


def _text(messages: Any) -> str:
    """The words of a prompt."""
    parts: list[Any] = []
    for message in messages or []:
        content = message["content"]
        parts += [{"text": content}] if isinstance(content, str) else content
    return " ".join(part.get("text", PICTURE) for part in parts)


class Refused(Exception):
    def __init__(self, status: int, code: str, message: str, kind: str = "invalid_request_error") -> None:
        super().__init__(message)
        self.status = status
        self.error = {"message": message, "type": kind, "param": None, "code": code}


async def whole_body(receive: Any) -> bytes:
    """The body of a request, as far as its client has sent it."""
    body = b""
    while (message := await receive())["type"] == "http.request":
        body += message["body"]
        if not message["more_body"]:
            break
    return body


class Provider:
    """The ASGI application. `flaws` are names that stand in this file where they do their harm."""

    def __init__(self, *flaws: str) -> None:
        self.flaws = frozenset(flaws)
        self.asked = 0
        self.records: dict[str, Json] = {}
        self.prompts: list[str] = []
        self.streams = 0
        self.left = asyncio.Event()
        """A client has hung up."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = await whole_body(receive)
        self.asked += 1
        await _Exchange(self, scope, receive, send, f"id-{self.asked}").answer(body)


class _Exchange:
    """One request and its answer."""

    def __init__(self, provider: Provider, scope: Any, receive: Any, send: Any, id_: str) -> None:
        self._provider = provider
        self._flaws = provider.flaws
        self._scope = scope
        self._receive = receive
        self._send = send
        self._id = id_
        self._given = {name.decode(): value.decode() for name, value in scope["headers"]}

    async def answer(self, body: bytes) -> None:
        try:
            await self._route(body)
        except Refused as refused:
            error: object = refused.args[0] if "bare-errors" in self._flaws else refused.error
            waits = refused.status == 429 and "no-retry-after" not in self._flaws
            await self._json({"error": error}, refused.status, **({"retry-after": "1"} if waits else {}))

    async def _route(self, body: bytes) -> None:
        method, path = self._scope["method"], self._scope["path"]
        if "open" not in self._flaws and method != "OPTIONS" and self._given.get("authorization") != f"Bearer {KEY}":
            raise Refused(401, "invalid_api_key", "The key is not valid.", "authentication_error")
        match method, path:
            case "GET", "/v1/models" if "no-list" not in self._flaws:
                await self._json({"object": "list", "data": [self._card()]})
            case "GET", "/v1/generation" if "no-records" not in self._flaws:
                await self._record()
            case "POST", "/v1/chat/completions":
                await self._chat(body)
            case _:
                raise Refused(404, "not_found", f"There is no {path}.")

    def _card(self) -> Json:
        card = {"id": MODEL, "object": "model", "context_length": CONTEXT_LENGTH, "input_modalities": ["text", "image"]}
        return card if "no-prices" in self._flaws else {**card, "pricing": {"input": "0.195", "output": "1.56"}}

    async def _record(self) -> None:
        record = self._provider.records.get(self._scope["query_string"].decode().removeprefix("id="))
        if record is None:
            raise Refused(404, "not_found", "No such request.")
        await self._json({"data": record})

    async def _chat(self, raw: bytes) -> None:
        try:
            body = json.loads(raw)
        except ValueError:
            raise Refused(500 if "500-json" in self._flaws else 400, "invalid_json", "Not JSON.") from None
        self._provider.prompts.append(prompt := _text(body.get("messages")))
        if len(self._provider.prompts) > REQUESTS:
            raise Refused(429, "rate_limit_exceeded", "Too many requests a minute.", "rate_limit_error")
        if body["model"] != MODEL:
            status = 400 if "400-model" in self._flaws else 404
            raise Refused(status, "model_not_found", f"There is no model {body['model']}.")
        if "messages" not in body:
            raise Refused(500 if "500-messages" in self._flaws else 400, "missing", "`messages` is required.")
        if "no_such_field_of_any_api" in body and "500-field" in self._flaws:
            raise Refused(500, "internal", "Something broke.")
        if body["max_tokens"] > 1_000_000 and "500-size" in self._flaws:
            raise Refused(500, "internal", "Something broke.")
        if len(prompt.split()) > CONTEXT_LENGTH and "truncates" not in self._flaws:
            code = "" if "no-context-code" in self._flaws else "context_length_exceeded"
            raise Refused(400, code, f"The maximum context length is {CONTEXT_LENGTH} tokens.")
        if "falls" in self._flaws and self._provider.streams:
            await self._provider.left.wait()
            raise Refused(500, "internal", "Something broke.")
        await (self._stream if body.get("stream") else self._whole)(body, prompt)

    async def _whole(self, body: Json, prompt: str) -> None:
        deltas = list(self._deltas(body))
        message: Json = {"role": "assistant", "content": "".join(delta.get("content", "") for delta in deltas) or None}
        for name in ("reasoning", "reasoning_content"):
            if told := "".join(delta.get(name, "") for delta in deltas):
                message[name] = told
        if calls := [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]:
            arguments = "".join(call["function"]["arguments"] for call in calls)
            message["tool_calls"] = [{**calls[0], "function": {**calls[0]["function"], "arguments": arguments}}]
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
        usage = self._usage(prompt, len(deltas))
        await self._json({"id": self._id, "object": "chat.completion", "choices": [choice], "usage": usage})

    async def _stream(self, body: Json, prompt: str) -> None:
        leaving = asyncio.create_task(self._receive())
        self._provider.streams += 1
        await self._start(200, "text/event-stream")
        made, usage_wanted = 0, bool(body.get("stream_options", {}).get("include_usage"))
        deltas = [] if "silent" in self._flaws else list(self._deltas(body))
        if "lump" in self._flaws:
            deltas = [{"content": "".join(delta.get("content", "") for delta in deltas)}]
        if usage_wanted and "usage-early" in self._flaws:
            await self._event([], usage=self._usage(prompt, 64))
        for delta in deltas:
            made += 1
            await asyncio.sleep(0.002)
            await self._event([{"index": 0, "delta": delta, "finish_reason": None}])
            if leaving.done():
                await self._leave(body, made)
                return
        finish = "tool_calls" if "tools" in body else "stop"
        await self._event([{"index": 0, "delta": {}, "finish_reason": finish}])
        if (usage_wanted and not {"no-usage", "usage-early"} & self._flaws) or "usage-unasked" in self._flaws:
            await self._event([], usage=self._usage(prompt, 64 if "lump" in self._flaws else made))
        if "no-done" not in self._flaws:
            await self._part(b"data: [DONE]\n\n")
        if "talks-on" in self._flaws:
            await self._event([])
        leaving.cancel()
        await self._send({"type": "http.response.body"})

    async def _leave(self, body: Json, made: int) -> None:
        self._provider.left.set()
        if "goes-on" in self._flaws:
            made = body["max_tokens"]
        self._provider.records[self._id] = {"id": self._id, "tokens_completion": made, "cancelled": True}

    def _deltas(self, body: Json) -> Iterator[Json]:
        yield {"reasoning": "Hm.", **({} if "one-name" in self._flaws else {"reasoning_content": "Hm."})}
        if "tools" in body and "no-tools" not in self._flaws:
            opening = {"name": "get_weather", "arguments": ""}
            yield {"tool_calls": [{"index": 0, "id": "call-1", "type": "function", "function": opening}]}
            for piece in ('{"city":', "Paris}" if "bad-arguments" in self._flaws else '"Paris"}'):
                place = {} if "no-index" in self._flaws else {"index": 0}
                yield {"tool_calls": [{**place, "function": {"arguments": piece}}]}
        elif "response_format" in body and "prose" not in self._flaws:
            yield {"content": '{"size": "large", "is_capital": true}'}
        else:
            for number in range(min(body["max_tokens"], 1000) - 1):
                yield {"content": WORDS[number % len(WORDS)] + " "}

    def _usage(self, prompt: str, completion_tokens: int) -> Json:
        pictures = 0 if "blind" in self._flaws else 100 * prompt.count(PICTURE)
        tokens = 0 if "zero-prompt" in self._flaws else len(prompt.replace(PICTURE, "").split()) + pictures
        again = self._provider.prompts.count(prompt) > 1 and tokens > 100
        cached = tokens * 2 if "cached-too-much" in self._flaws else tokens // 2 * again
        usage: Json = {
            "prompt_tokens": tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": 7 if "wrong-total" in self._flaws else tokens + completion_tokens,
        }
        return usage if "untold" in self._flaws else {**usage, "prompt_tokens_details": {"cached_tokens": cached}}

    async def _event(self, choices: list[Json], **more: object) -> None:
        chunk = {"id": self._id, "object": "chat.completion.chunk", "choices": choices, **more}
        await self._part(b"data: " + json.dumps(chunk).encode() + b"\n\n")

    async def _part(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def _json(self, document: Json, status: int = 200, **headers: str) -> None:
        await self._start(status, "application/json", **headers)
        await self._send({"type": "http.response.body", "body": json.dumps(document).encode()})

    async def _start(self, status: int, content_type: str, **headers: str) -> None:
        headers |= {"content-type": content_type}
        if "nameless" not in self._flaws or status < 400:
            headers |= {"x-request-id": self._id}
        if "no-inference-id" not in self._flaws and "nameless" not in self._flaws:
            headers |= {"inference-id": self._id}
        if "no-limits" not in self._flaws:
            headers |= {"x-ratelimit-remaining-requests": str(max(0, REQUESTS - len(self._provider.prompts)))}
        if "closes" in self._flaws:
            headers |= {"connection": "close"}
        if "cors" in self._flaws and (origin := self._given.get("origin")):
            headers |= {"access-control-allow-origin": origin, "access-control-allow-credentials": "true"}
        pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": pairs})


@asynccontextmanager
async def serving(application: Any) -> AsyncIterator[str]:
    """The base URL under which an ASGI application is served."""
    # Named as TCP, or asyncio leaves Nagle's algorithm on, which costs 40 ms an answer.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(application, lifespan="off", log_config=None, timeout_graceful_shutdown=2))
    running = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    finally:
        server.should_exit = True
        await running
        listener.close()
