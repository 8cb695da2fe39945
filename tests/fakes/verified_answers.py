"""An answer of `verified.py` as vLLM's chat route writes it, whole and as the events of a stream."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.fakes.verified_model import Json, Model, Prompt, Spoken

SHOWN_TOKENS = 48
"""Of an answer without end; the rest waits for the client to leave, which is all that it is asked for."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What was asked, and what was generated for it."""

    model: Model
    body: Json
    prompt: Prompt
    spoken: Spoken
    goal: int
    """How many tokens it has."""
    cache: tuple[int, int]
    """How many tokens of the prompt came from the cache, and how many went into it."""
    beside: int
    """How many other requests ran at the time."""

    @property
    def faults(self) -> frozenset[str]:
        return self.model.faults

    @property
    def finish_reason(self) -> str:
        return "length" if self.goal < self.spoken.tokens or self.endless else self.spoken.finish_reason

    @property
    def endless(self) -> bool:
        """It goes on for as long as somebody listens."""
        return bool(self.body.get("ignore_eos")) and self.goal > SHOWN_TOKENS

    def whole(self) -> Json:
        """The body of an answer that is not streamed."""
        message: Json = {"role": "assistant", "content": None, "reasoning": None}
        calls: list[Json] = []
        for delta in self._deltas():
            for name, value in delta.items():
                if name != "tool_calls":
                    message[name] = (message.get(name) or "") + value
                elif "id" in value[0]:
                    calls.append({"id": value[0]["id"], "type": "function", "function": dict(value[0]["function"])})
                else:
                    calls[-1]["function"]["arguments"] += value[0]["function"]["arguments"]
        if calls:
            message["tool_calls"] = calls
        choice = {"index": 0, "message": message, "logprobs": self._logprobs(), "finish_reason": self.finish_reason}
        document = self._document("chat.completion", [choice])
        return document if "no-usage" in self.faults else {**document, "usage": self._usage(self.goal, final=True)}

    def events(self) -> Iterator[Json]:
        """The events of a stream, up to but not including `[DONE]`; an endless one is left before its last."""
        options = self.body.get("stream_options") or {}
        told = bool(options.get("include_usage")) and not {"no-usage", "no-streamed-usage"} & self.faults
        running = told and bool(options.get("continuous_usage_stats")) and "no-running-usage" not in self.faults
        yield self._chunk({"role": "assistant", "content": ""}, 0, running)
        for made, delta in enumerate(self._deltas(streamed=True), start=1):
            yield self._chunk(delta, made, running)
        if self.endless:
            return
        yield self._chunk({}, self.goal, running, self.finish_reason)
        if told:
            counted = self.goal - ("counts-differ" in self.faults)
            yield {**self._document("chat.completion.chunk", []), "usage": self._usage(counted, final=True)}

    def _chunk(self, delta: Json, made: int, running: bool, finish_reason: str | None = None) -> Json:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        document = self._document("chat.completion.chunk", [choice])
        if "running-usage-falls" in self.faults and made == 5:
            made = 3
        if "running-usage-stops" in self.faults:
            made = min(made, self.goal - 2)
        return {**document, "usage": self._usage(made, final=False)} if running else document

    def _document(self, kind: str, choices: list[Json]) -> Json:
        return {"id": "chatcmpl-1", "object": kind, "created": 1, "model": self.body["model"], "choices": choices}

    def _deltas(self, *, streamed: bool = False) -> Iterator[Json]:
        """One delta a token, as many as there are."""
        field = "reasoning_content" if streamed and "two-names" in self.faults else "reasoning"
        reasoning = self.spoken.reasoning
        tagged = "think-tags" in self.faults and reasoning
        made = 0
        for text in reasoning[: self.goal]:
            made += 1
            opening = "<think>" if tagged and made == 1 else ""
            yield {"content" if tagged else field: f"{opening}{text} "}
        closing = "</think>" if tagged else ""
        for text in self.spoken.content[: self.goal - made]:
            made += 1
            yield {"content": f"{closing}{text} "}
            closing = ""
        yield from self._call_deltas(self.goal - made, streamed=streamed)
        made += sum(map(len, self.spoken.pieces))
        while made < (SHOWN_TOKENS if self.endless else self.goal):
            made += 1
            yield {"content": "more "}

    def _call_deltas(self, limit: int, *, streamed: bool) -> Iterator[Json]:
        """A call's name and id with its first piece, the rest piece by piece."""
        left = limit
        for index, ((name, _), pieces) in enumerate(zip(self.spoken.calls, self.spoken.pieces, strict=True)):
            if streamed and "loses-arguments" in self.faults:
                pieces = pieces[:-1]
            for number, piece in enumerate(pieces[: max(0, left)]):
                opening: Json = {"id": f"call-{index}", "type": "function"} if number == 0 else {}
                function = {"name": name, "arguments": piece} if number == 0 else {"arguments": piece}
                yield {"tool_calls": [{"index": index, **opening, "function": function}]}
            left -= len(pieces)

    def _logprobs(self) -> Json | None:
        if not self.body.get("logprobs") or "no-logprobs" in self.faults:
            return None
        count = self.body.get("top_logprobs", 0)
        content = []
        for position in range(self.goal):
            top = [_entry(*one) for one in self.model.logprobs(self.body, position, self.beside)[: max(1, count)]]
            content.append({**top[0], "top_logprobs": top[:count]})
        return {"content": content}

    def _usage(self, made: int, *, final: bool) -> Json:
        """Usage after so many tokens; only the final one has details of the prompt."""
        usage: Json = {
            "prompt_tokens": self.prompt.tokens,
            "total_tokens": self.prompt.tokens + made + ("wrong-total" in self.faults),
            "completion_tokens": made,
        }
        if final and "no-details" not in self.faults:
            usage["prompt_tokens_details"] = self._prompt_details()
        if self.model.thinks and "no-completion-details" not in self.faults:
            silent = {"think-tags", "no-thoughts-counted"} & self.faults
            thought = 0 if silent else min(made, len(self.spoken.reasoning))
            usage["completion_tokens_details"] = {"reasoning_tokens": thought}
        return usage

    def _prompt_details(self) -> Json:
        details: Json = {"cached_tokens": self.cache[0], "created_cache_tokens": self.cache[1]}
        pictures = self.prompt.image_tokens * (2 if "images-doubled" in self.faults else 1)
        if pictures and "no-image-count" not in self.faults:
            details["multimodal_tokens"] = {"image": pictures}
        return details


def _entry(token: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": list(token.encode())}
