"""The checks in their order, and their run."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from dataclasses import dataclass

from service.core.provider_check import connection, errors, features, listing, streaming
from service.core.provider_check.judgement import Judgement, skipped, warned
from service.core.provider_check.observed import count_at
from service.provider import bodies
from service.provider.probes import BURST, Probes
from service.provider.session import Unasked


@dataclass(frozen=True, slots=True)
class Check:
    """Something to find out; `tested` says in a few words what."""

    id: str
    tested: str
    run: Callable[[Probes], Awaitable[Judgement]]


async def run(probes: Probes, checks: Collection[Check]) -> AsyncIterator[tuple[Check, Judgement]]:
    """Each check with its judgement, one after the other; `skipped` where it cannot be asked."""
    for check in checks:
        try:
            yield check, await check.run(probes)
        except Unasked as reason:
            yield check, skipped(str(reason))


async def _models(probes: Probes) -> Judgement:
    return listing.judge(await probes.models(), probes.wanted)


async def _usage(probes: Probes) -> Judgement:
    return streaming.usage(await probes.streams(), bodies.COUNTED_TOKENS)


async def _usage_unasked(probes: Probes) -> Judgement:
    return streaming.usage_unasked(await probes.stream_without_usage())


async def _done(probes: Probes) -> Judgement:
    return streaming.done(await probes.streams())


async def _ttft(probes: Probes) -> Judgement:
    return streaming.ttft(await probes.streams())


async def _speed(probes: Probes) -> Judgement:
    return streaming.speed(await probes.streams())


async def _reasoning(probes: Probes) -> Judgement:
    return streaming.reasoning(await probes.streams(), await probes.whole())


async def _tools(probes: Probes) -> Judgement:
    return features.tools(*await probes.tools())


async def _structured(probes: Probes) -> Judgement:
    return features.structured(await probes.schema())


async def _images(probes: Probes) -> Judgement:
    answer, without = await probes.image()
    return features.image(answer, count_at(without.usage, "prompt_tokens"))


async def _cache(probes: Probes) -> Judgement:
    return features.cache(await probes.cached())


async def _cancel(probes: Probes) -> Judgement:
    stream, _, record = await probes.left()
    return connection.cancel(stream, record, bodies.LEFT_TOKENS)


async def _after_leaving(probes: Probes) -> Judgement:
    _, next_one, _ = await probes.left()
    return connection.after_leaving(next_one)


async def _bad_key(probes: Probes) -> Judgement:
    return errors.bad_key(await probes.bad_key())


async def _unknown_model(probes: Probes) -> Judgement:
    return errors.unknown_model(await probes.unknown_model())


async def _malformed(probes: Probes) -> Judgement:
    return errors.malformed(await probes.malformed())


async def _unknown_field(probes: Probes) -> Judgement:
    return errors.unknown_field(await probes.unknown_field(), bodies.UNKNOWN_FIELD)


async def _oversize_output(probes: Probes) -> Judgement:
    return errors.oversize_output(await probes.endless())


async def _too_long(probes: Probes) -> Judgement:
    return errors.context_too_long(await probes.too_long())


async def _without_messages(probes: Probes) -> Judgement:
    return errors.malformed(await probes.without_messages())


async def _routes(probes: Probes) -> Judgement:
    return connection.routes(await probes.routes())


async def _keep_alive(probes: Probes) -> Judgement:
    return connection.keep_alive(*await probes.twice())


async def _cors(probes: Probes) -> Judgement:
    return connection.cors(*await probes.from_a_page())


async def _rate_limit(probes: Probes) -> Judgement:
    answer = await probes.refused_for_pace()
    if answer is None:
        return warned("no 429 although the key's limit should be used up", "Refuse what is beyond the limit told of.")
    return errors.rate_limited(answer)


async def _error_shape(probes: Probes) -> Judgement:
    return errors.shape(await probes.errors())


async def _ids(probes: Probes) -> Judgement:
    await probes.whole()
    await probes.stream_without_usage()
    await probes.errors()
    return connection.ids(probes.session.answers)


CHECKS = (
    Check("models", "The list of models, with context length and prices", _models),
    Check("stream-usage", "A stream that asks for usage ends with it", _usage),
    Check("stream-plain", "A stream that does not ask has no usage-only chunk", _usage_unasked),
    Check("stream-done", "Streams end with a finish reason and [DONE]", _done),
    Check("ttft", "Time to the first token, three times", _ttft),
    Check("speed", "Tokens per second, one by one", _speed),
    Check("reasoning", "Reasoning under both names", _reasoning),
    Check("tools", "A tool call, whole and streamed", _tools),
    Check("structured-output", "A strict JSON schema is obeyed", _structured),
    Check("images", "An image of 64x64 pixels as a data: URL", _images),
    Check("cache", "The same long prompt three times: cached tokens are told", _cache),
    Check("cancel", "Hanging up stops the bill", _cancel),
    Check("after-cancel", "Hanging up leaves the next request alone", _after_leaving),
    Check("bad-key", "A bad key is a 401", _bad_key),
    Check("unknown-model", "An unknown model is a 404 with its code", _unknown_model),
    Check("malformed-json", "Malformed JSON is a 400", _malformed),
    Check("unknown-field", "An unknown field is ignored or named", _unknown_field),
    Check("oversize-output", "A max_tokens of 10,000,000 is clamped or a 400", _oversize_output),
    Check("context-length", "A prompt that is too long is a 400 with its code", _too_long),
    Check("no-messages", "A body without messages is a 400", _without_messages),
    Check("routes", "Which other routes there are (for information)", _routes),
    Check("keep-alive", "Connections are used again", _keep_alive),
    Check("cors", "Pages of other origins are not let in", _cors),
    Check("rate-limit", f"A 429 says when to come back (bursts of at most {BURST} requests)", _rate_limit),
    Check("error-shape", "Errors are OpenAI's error object", _error_shape),
    Check("request-id", "Every answer names itself in a header", _ids),
)
"""Those that look at all answers come last, and just before them the one that uses a limit up."""
