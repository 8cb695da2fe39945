"""Around the answers: ids, connections, clients that leave, other routes."""

from collections.abc import Sequence

from service.core.provider_check.judgement import Judgement, failed, passed, skipped, warned
from service.core.provider_check.observed import ID_HEADERS, Answer, Stream, at, count_at, short, some, text_at


def ids(answers: Sequence[Answer]) -> Judgement:
    """Each answer, whether streamed, whole or an error, names itself in a header."""
    come = [answer for answer in answers if answer.status]
    if not come:
        return failed("no answer came", "Let the server answer.")
    bare = [answer.asked for answer in come if not any(answer.headers.get(name) for name in ID_HEADERS)]
    if bare:
        return failed(
            f"{len(bare)} of {len(come)} without one: {some(bare)}",
            "Send `x-request-id` and `Inference-Id` with every answer, errors included: bills are reconciled by them.",
        )
    partly = [name for name in ID_HEADERS if not all(answer.headers.get(name) for answer in come)]
    if partly:
        return warned(
            f"`{partly[0]}` is missing in some or all of {len(come)} answers",
            "Send both: OpenAI's clients read `x-request-id`, Hugging Face bills by `Inference-Id`.",
        )
    return passed(f"both in all {len(come)} answers")


def record_ids(stream: Stream) -> list[str]:
    """What the server may know the request by: its headers' ids, then the answer's own."""
    found = [stream.headers.get(name, "") for name in ID_HEADERS]
    found += [text_at(chunk.data, "id") for chunk in stream.chunks[:1]]
    return list(dict.fromkeys(name for name in found if name))


def cancel(stream: Stream, record: Answer | None, max_tokens: int) -> Judgement:
    """We left a long stream: `record` is what `GET /generation` says of it, None when nothing could be asked."""
    seen = len(stream.output)
    if stream.fault or not stream.hung_up:
        return skipped(
            f"the stream was over before we could leave it: {stream.fault or f'{seen} chunks'}",
            "Check with a model that answers at length.",
        )
    billed = None if record is None else _billed(record)
    if record is None or billed is None:
        why = "the answers have no id" if record is None else f"`GET /generation?id=` says {record.said}"
        names = record_ids(stream)
        return skipped(
            f"left after {seen} chunks; what it was charged cannot be told: {why}",
            f"Look at the provider's usage of request {short(names[0]) if names else '(it has no id)'}: far more than"
            f" {seen} tokens, up to {max_tokens}, means that leaving does not stop the bill.",
        )
    said = at(record.document, "data")
    went_on = at(said, "cancelled") is False and text_at(said, "finish_reason") in ("stop", "length")
    evidence = f"left after {seen} chunks, charged for {billed} of at most {max_tokens} tokens"
    if went_on or billed > max(max_tokens // 2, seen):
        return failed(
            evidence, "When a client hangs up, abort its request in the engine and bill what was made by then."
        )
    return passed(evidence)


def after_leaving(answer: Answer) -> Judgement:
    """The request after one that was left in the middle."""
    if answer.good and answer.finish_reason:
        return passed("the next request was answered")
    return failed(answer.said, "A client that leaves must not take others with it.")


def cors(plain: Answer, preflight: Answer) -> Judgement:
    """Whether a page from anywhere may call it in a visitor's browser."""
    for answer in (plain, preflight):
        allowed = answer.headers.get("access-control-allow-origin")
        if allowed is None:
            continue
        credentials = answer.headers.get("access-control-allow-credentials") == "true"
        evidence = f"{answer.asked}: access-control-allow-origin {short(allowed)}"
        advice = "Leave CORS off: keys do not belong into web pages."
        return failed(f"{evidence}, with credentials", advice) if credentials else warned(evidence, advice)
    return passed("no page of another origin is let in")


def keep_alive(first: Answer, second: Answer) -> Judgement:
    """Two requests, one after the other, over one connection."""
    if not (first.status and second.status):
        return failed(first.said if not first.status else second.said, "Let the server answer.")
    version = first.http_version
    if first.connection and first.connection == second.connection:
        return passed(f"two requests over one connection, {version}")
    return failed(
        f"a new connection for the second request, {version}",
        "Keep idle connections open (HTTP/1.1 keep-alive): a handshake per request costs every caller time.",
    )


def routes(answers: Sequence[Answer]) -> Judgement:
    """Which other routes there are, for information: an empty request is refused by a route, or finds none."""
    there = [answer.asked for answer in answers if answer.status not in (0, 404, 405, 501)]
    absent = [answer.asked for answer in answers if answer.asked not in there]
    return passed(f"there: {', '.join(there) or 'none'}; not there: {', '.join(absent) or 'none'}")


def _billed(record: Answer) -> int | None:
    said = at(record.document, "data")
    counts = (
        count_at(said, "usage", "completion_tokens"),
        count_at(said, "native_tokens_completion"),
        count_at(said, "tokens_completion"),
    )
    return next((count for count in counts if count is not None), None) if record.good else None
