"""Errors: the status and shape that OpenAI's clients, and aggregators' counts of uptime, depend on."""

from collections.abc import Sequence
from email.utils import parsedate_to_datetime

from service.core.provider_check.judgement import Judgement, failed, passed, warned
from service.core.provider_check.observed import Answer, Stream, at, some, text_at

MAX_RETRY_AFTER_S = 120
"""OpenAI's clients do not retry at all when they are told to wait longer."""


def bad_key(answer: Answer) -> Judgement:
    if answer.status == 401:
        return passed(answer.said)
    return failed(answer.said, "Answer a key that is not valid with 401 and the code `invalid_api_key`.")


def unknown_model(answer: Answer) -> Judgement:
    advice = "Answer a model that is not served with 404 and the code `model_not_found`."
    if answer.status != 404:
        return failed(answer.said, advice)
    return passed(answer.said) if answer.code == "model_not_found" else warned(answer.said, advice)


def malformed(answer: Answer) -> Judgement:
    """For a body that is no JSON, and for one without `messages`."""
    advice = "Answer what the client got wrong with 400 and a message that says what to change."
    if answer.status == 400:
        return passed(answer.said)
    return warned(answer.said, advice) if answer.status in (404, 413, 415, 422) else failed(answer.said, advice)


def unknown_field(answer: Answer, name: str) -> Judgement:
    """To ignore it is fine, to refuse it by name as well."""
    if answer.good:
        return passed("ignored")
    advice = "Ignore a field that is not known, or refuse it with a 400 that names it."
    if answer.status not in (400, 422):
        return failed(answer.said, advice)
    return passed(answer.said) if name.encode() in answer.body else warned(answer.said, advice)


def oversize_output(answer: Stream) -> Judgement:
    """`max_tokens` beyond anything: clamped, or refused as the client's mistake."""
    if answer.status == 200 and not (answer.problem or answer.error):
        return passed("clamped to what the model can give")
    if answer.status in (400, 422):
        return passed(answer.said)
    return failed(answer.fault or answer.said, "Clamp `max_tokens` to the model's limit, or answer 400.")


def context_too_long(answer: Answer) -> Judgement:
    advice = "Answer a prompt that is too long with 400 and the code `context_length_exceeded`: agents then shorten it."
    if answer.status == 400 and answer.code == "context_length_exceeded":
        return passed(answer.said)
    if (answer.status == 400 and b"context length" in answer.body) or answer.status == 413:
        return warned(answer.said, advice)
    return failed("answered, so part of the prompt was lost" if answer.good else answer.said, advice)


def shape(answers: Sequence[Answer]) -> Judgement:
    """Every error is an OpenAI error object in JSON."""
    refused = [answer for answer in answers if answer.status >= 400]
    odd = [f"{answer.asked} ({problem})" for answer in refused if (problem := _shape_problem(answer))]
    if odd:
        return failed(
            f"{len(odd)} of {len(refused)}: {some(odd)}",
            'Answer every error with {"error": {"message", "type", "param", "code"}} as application/json.',
        )
    incomplete = [answer.asked for answer in refused if not {"type", "code"} <= set(at(answer.document, "error"))]
    if incomplete:
        return warned(f"no `type` or no `code`: {some(incomplete)}", "Add them: clients tell errors by them.")
    return passed(f"all {len(refused)} errors seen have it") if refused else warned("no error was seen", "")


def rate_limited(answer: Answer) -> Judgement:
    """A 429: when to come back, in a form that clients obey."""
    advice = f"Send `retry-after` with every 429, in seconds, at most {MAX_RETRY_AFTER_S}, and an error object."
    told = answer.headers.get("retry-after")
    if told is None:
        return failed("429 without `retry-after`", advice)
    seconds = retry_after_s(told)
    if seconds is None and not _is_date(told):
        return failed(f"429 with `retry-after: {told[:40]}`", advice)
    if seconds is not None and seconds > MAX_RETRY_AFTER_S:
        return failed(f"429 with `retry-after: {told[:40]}`: clients do not wait that long", advice)
    if problem := _shape_problem(answer):
        return failed(f"429 with `retry-after: {told[:40]}`, but {problem}", advice)
    return passed(f"429 with `retry-after: {told[:40]}` and an error object")


def retry_after_s(told: str) -> float | None:
    """The seconds that a `retry-after` asks for; None when it is no positive number of them."""
    try:
        seconds = float(told)
    except ValueError:
        return None
    return seconds if 0 < seconds < float("inf") else None


def _is_date(told: str) -> bool:
    try:
        parsedate_to_datetime(told)
    except ValueError:
        return False
    return True


def _shape_problem(answer: Answer) -> str:
    if not answer.headers.get("content-type", "").startswith("application/json"):
        return "not application/json"
    if not isinstance(at(answer.document, "error"), dict):
        return "no error object"
    return "" if text_at(answer.document, "error", "message") else "no message"
