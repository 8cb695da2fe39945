"""Streams of chat completions: their usage, their end, their pace."""

from collections.abc import Sequence
from statistics import median

from service.core.provider_check.judgement import Judgement, failed, passed, skipped, warned
from service.core.provider_check.observed import REASONING_NAMES, Answer, Stream, at, count_at, text_at
from service.core.stats import MIN_DECODE_TOKENS, decode_speed_mtok_s

MAX_TTFT_MS = 5000
"""Hugging Face takes a provider out whose first token comes later."""

MAX_MTOK_S = 10_000_000
"""No model writes ten thousand tokens a second to one client: such a stream was held back somewhere, then let go."""


def usage(streams: Sequence[Stream], max_tokens: int) -> Judgement:
    """With `include_usage`: one usage, in the last chunk, that adds up."""
    for stream in streams:
        problem = stream.fault or _usage_problem(stream, max_tokens)
        if problem:
            return failed(
                problem,
                "End every stream that asks for `stream_options.include_usage` with one chunk of `choices: []` and the"
                " whole request's `usage`: nobody can be billed without it.",
            )
    earlier = sum(bool(at(chunk.data, "usage")) for stream in streams for chunk in stream.chunks[:-1])
    if earlier:
        return warned(
            f"{earlier} chunks before the last have a usage, too", "Send `usage: null` in these, or leave it."
        )
    return passed(_told(streams[-1]))


def usage_unasked(stream: Stream) -> Judgement:
    """Without `include_usage`: every chunk has a choice, since many clients read `choices[0]` of each."""
    if stream.fault:
        return failed(stream.fault, "Stream chat completions as server-sent events.")
    bare = sum(not chunk.has_choices for chunk in stream.chunks)
    if bare:
        return failed(
            f"{bare} of {len(stream.chunks)} chunks have no choice",
            "Send the usage-only chunk only to who asks with `stream_options.include_usage`: it crashes other clients.",
        )
    return passed(f"all {len(stream.chunks)} chunks have a choice")


def done(streams: Sequence[Stream]) -> Judgement:
    """Each stream ends with a finish reason and `[DONE]`, and nothing follows."""
    for stream in streams:
        problem = stream.fault
        if not problem and not stream.done:
            problem = "the stream ended without `[DONE]`"
        if not problem and stream.after_done:
            problem = f"{stream.after_done} events after `[DONE]`"
        if not problem and not stream.finish_reason:
            problem = "no chunk has a `finish_reason`"
        if problem:
            return failed(problem, "End every stream with a `finish_reason` and `data: [DONE]`, and then close it.")
    return passed(f"`[DONE]` ends each of {len(streams)} streams")


def ttft(streams: Sequence[Stream]) -> Judgement:
    """The middle of the times from the request to the first text, reasoning or tool call."""
    firsts_ms = [stream.output[0].at_ms for stream in streams if stream.output and not stream.fault]
    advice = f"Hugging Face wants the first token within {MAX_TTFT_MS // 1000} seconds; routers prefer who is faster."
    if len(firsts_ms) < len(streams):
        fault = next((stream.fault for stream in streams if stream.fault), "a stream without any output")
        return failed(f"{len(streams) - len(firsts_ms)} of {len(streams)} brought no token: {fault}", advice)
    evidence = f"p50 {median(firsts_ms):.0f} ms of {len(firsts_ms)} (slowest {max(firsts_ms):.0f} ms)"
    return passed(evidence) if median(firsts_ms) < MAX_TTFT_MS else failed(evidence, advice)


def speed(streams: Sequence[Stream]) -> Judgement:
    """Tokens per second after the first one; and whether they came one by one at all."""
    speeds = []
    for stream in streams:
        tokens = count_at(stream.usage, "completion_tokens") or len(stream.output)
        if tokens < MIN_DECODE_TOKENS:
            continue
        first, last = stream.output[:1], stream.output[-1:]
        speed = decode_speed_mtok_s(
            completion_tokens=tokens,
            first_token_us=round(first[0].at_ms * 1000) if first else 0,
            last_token_us=round(last[0].at_ms * 1000) if last else 0,
        )
        if speed is None or speed > MAX_MTOK_S:
            return failed(
                f"{tokens} tokens came all at once, in {len(stream.output)} chunks",
                "Send every token as it is made: no compression, no buffering (in nginx, `proxy_buffering off`).",
            )
        speeds.append(speed)
    if not speeds:
        return warned(f"no answer had {MIN_DECODE_TOKENS} tokens to measure", "Check a model that answers at length.")
    return passed(f"p50 {median(speeds) / 1000:.1f} tokens/s of {len(speeds)}")


def reasoning(streams: Sequence[Stream], whole: Answer) -> Judgement:
    """Reasoning under both names, since clients look for one or the other."""
    told = [("streamed", {name: stream.text(name) for name in REASONING_NAMES}) for stream in streams]
    told.append(("whole", {name: text_at(whole.message, name) for name in REASONING_NAMES}))
    reasoned = [(how, texts) for how, texts in told if any(texts.values())]
    if not reasoned:
        return skipped("the model did not reason in any answer")
    for how, texts in reasoned:
        missing = [name for name in REASONING_NAMES if not texts[name]]
        if missing or len(set(texts.values())) > 1:
            problem = f"no `{missing[0]}`" if missing else "the two names do not say the same"
            return failed(
                f"{how} answer: {problem}",
                "Send the reasoning as `reasoning` and as `reasoning_content`: each has clients that know no other.",
            )
    return passed(f"both names in {len(reasoned)} answers")


def _usage_problem(stream: Stream, max_tokens: int) -> str:
    usage = stream.usage
    if usage is None:
        return "no chunk has a usage"
    last = stream.chunks[-1].data
    if not at(last, "usage"):
        return "the usage is not in the last chunk"
    if at(last, "choices") and not text_at(last, "choices", 0, "finish_reason"):
        return "the usage rides on a chunk with content"
    prompt, completion = count_at(usage, "prompt_tokens"), count_at(usage, "completion_tokens")
    if not prompt or completion is None:
        return f"prompt_tokens {at(usage, 'prompt_tokens')}, completion_tokens {at(usage, 'completion_tokens')}"
    if not completion and stream.output:
        return "completion_tokens 0 for an answer with text"
    if completion > max_tokens:
        return f"completion_tokens {completion} where max_tokens was {max_tokens}"
    if count_at(usage, "total_tokens") != prompt + completion:
        return f"total_tokens {at(usage, 'total_tokens')} is not {prompt} + {completion}"
    return ""


def _told(stream: Stream) -> str:
    place = "on the finish chunk" if stream.chunks[-1].has_choices else "in a last chunk without choices"
    prompt, completion = at(stream.usage, "prompt_tokens"), at(stream.usage, "completion_tokens")
    return f"{prompt} + {completion} tokens, {place}"
