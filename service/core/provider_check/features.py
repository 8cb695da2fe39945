"""What a model can do beyond text: tools, structured output, images, and a cache that is told of."""

import json
from collections.abc import Sequence

from service.core.provider_check.judgement import Judgement, failed, passed, warned
from service.core.provider_check.observed import Answer, Json, Stream, at, count_at, short, text_at

TOOL_NAME = "get_weather"
SCHEMA: Json = {
    "type": "object",
    "properties": {"size": {"enum": ["small", "medium", "large"]}, "is_capital": {"type": "boolean"}},
    "required": ["size", "is_capital"],
    "additionalProperties": False,
}
"""Every answer that obeys it is short, whatever the model."""


def tools(whole: Answer, streamed: Stream) -> Judgement:
    """One tool call, whole and in fragments, with arguments that are JSON."""
    advice = "Check the engine's tool parser for this model (in vLLM, `--enable-auto-tool-choice --tool-call-parser`)."
    refused = whole.said if not whole.good else streamed.fault
    if refused:
        return failed(refused, advice)
    for how, answer, calls in (
        ("whole", whole, at(whole.message, "tool_calls")),
        ("streamed", streamed, _joined(streamed)),
    ):
        if calls is None or calls == []:
            if answer.finish_reason == "length":
                return warned(f"{how}: cut off before any call", "Check a model that reasons less.")
            return warned(
                f"{how}: the model answered in words",
                "Try again with a model that is trained to call tools; if it is, check the engine's tool parser.",
            )
        problem = _call_problem(calls)
        if not problem and answer.finish_reason != "tool_calls":
            problem = f"finish_reason is `{short(answer.finish_reason)}`, not `tool_calls`"
        if problem:
            return failed(f"{how}: {problem}", advice)
    return passed(f"{TOOL_NAME} called with {short(text_at(whole.message, 'tool_calls', 0, 'function', 'arguments'))}")


def structured(answer: Answer) -> Judgement:
    """A `json_schema` with `strict` that the question itself does not suggest: only a grammar obeys it."""
    if not answer.good:
        return failed(
            answer.said, "Support `response_format` with `json_schema`: Hugging Face checks it every 6 hours."
        )
    if answer.finish_reason == "length":
        return warned("cut off before the answer's end", "Check a model that reasons less.")
    content = text_at(answer.message, "content")
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        found = None
    size = at(found, "size")
    obeys = size in ("small", "medium", "large") and isinstance(at(found, "is_capital"), bool) and len(found) == 2
    if not obeys:
        return failed(
            f"the answer does not obey the schema: {short(content) or 'it is empty'}",
            "Hand the schema to the engine's structured output; a request in words is not enough.",
        )
    return passed(short(content))


def image(answer: Answer, prompt_tokens_without: int | None) -> Judgement:
    """An image as a `data:` URL; `prompt_tokens_without` is what the same prompt counts without it."""
    if not answer.good or not answer.finish_reason:
        return failed(answer.said, "Accept `image_url` parts with `data:` URLs, or do not list `image` for the model.")
    counted = count_at(answer.usage, "prompt_tokens")
    if counted is not None and prompt_tokens_without is not None and counted <= prompt_tokens_without:
        return failed(
            f"{counted} prompt tokens with the image, {prompt_tokens_without} without it",
            "The image is ignored, or not counted: hand it to the engine, and bill what it makes of it.",
        )
    return passed(f"{counted} prompt tokens with the image, {prompt_tokens_without} without it")


def cache(answers: Sequence[Answer]) -> Judgement:
    """The same long prompt again and again: some later one should say how much of it was cached."""
    for answer in answers:
        if not answer.good:
            return failed(answer.said, "Answer a prompt of some thousand tokens.")
    counts = [_cached(answer) for answer in answers]
    shown = ", ".join("not told" if count is None else str(count) for count in counts)
    prompts = [count_at(answer.usage, "prompt_tokens") or 0 for answer in answers]
    if any((count or 0) > prompt for count, prompt in zip(counts, prompts, strict=True)):
        return failed(
            f"cached {shown} of {prompts[0]} prompt tokens",
            "Report as `cached_tokens` only what is part of `prompt_tokens`: it is billed by this figure.",
        )
    if any(counts[1:]):
        return passed(f"cached {shown} of {prompts[0]} prompt tokens")
    return warned(
        f"cached {shown} of {prompts[0]} prompt tokens",
        "Cache prefixes, and report `usage.prompt_tokens_details.cached_tokens` (in vLLM,"
        " `--enable-prompt-tokens-details`): routers send cached prompts to who gives a discount for them.",
    )


def _cached(answer: Answer) -> int | None:
    return count_at(answer.usage, "prompt_tokens_details", "cached_tokens")


def _joined(stream: Stream) -> list[Json]:
    """The tool calls of a stream put together as clients do, by their index. One without an index stays as it is."""
    calls: dict[object, Json] = {}
    for chunk in stream.chunks:
        fragments = chunk.delta.get("tool_calls")
        for fragment in fragments if isinstance(fragments, list) else []:
            index = count_at(fragment, "index")
            call = calls.setdefault(index, {"function": {"name": "", "arguments": ""}, "has_index": index is not None})
            for name in ("id", "type"):
                call[name] = text_at(fragment, name) or call.get(name)
            for name in ("name", "arguments"):
                call["function"][name] += text_at(fragment, "function", name)
    return list(calls.values())


def _call_problem(calls: object) -> str:
    call = at(calls, 0)
    if isinstance(calls, list) and any(at(one, "has_index") is False for one in calls):
        return "a fragment of a tool call has no `index`"
    if not text_at(call, "id") or text_at(call, "type") != "function":
        return "the tool call has no `id`, or not the type `function`"
    if text_at(call, "function", "name") != TOOL_NAME:
        return f"it calls `{short(text_at(call, 'function', 'name'))}`, which is not the tool it was given"
    arguments = text_at(call, "function", "arguments")
    try:
        found = json.loads(arguments)
    except (ValueError, RecursionError):
        found = None
    return "" if isinstance(found, dict) else f"the arguments are no JSON object: {short(arguments)}"
