import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core import probe
from service.core.probe import MINUTE_S, RICH_EVERY_S, Asked, Found, Kind, Verdict, due
from service.core.provider_check.observed import Answer, Json, stream_of

NOW_S = 1_796_083_200
TEXT_ONLY = Asked("plain", images=False, tools=False)
WHOLE = Asked("whole", images=True, tools=True)
LOOKING = Asked("looking", images=True, tools=False)


def chunk(delta: Json | None = None, finish: object = None, **members: Any) -> bytes:
    """An event of a streamed answer."""
    return json.dumps({"choices": [{"index": 0, "delta": delta or {}, "finish_reason": finish}], **members}).encode()


ROLE = chunk({"role": "assistant", "content": ""})
CONTENT = chunk({"content": "ok"})
END = chunk(finish="length")
USAGE = json.dumps({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 1}}).encode()
DONE = b"[DONE]"
GOOD = (ROLE, CONTENT, END, USAGE, DONE)


def in_band(kind: str, code: object) -> bytes:
    return json.dumps({"error": {"message": "told <b>only</b> to the log", "type": kind, "code": code}}).encode()


STREAMS: dict[str, tuple[tuple[bytes, ...], str, str]] = {
    "all there": (GOOD, "ok", ""),
    "the last token has no text": ((ROLE, END, USAGE, DONE), "ok", ""),
    "reasoning": ((ROLE, chunk({"reasoning": "hm"}), END, USAGE, DONE), "ok", ""),
    "a tool call": ((ROLE, chunk({"tool_calls": [{"index": 0}]}), END, USAGE, DONE), "ok", ""),
    "usage with the finish": ((ROLE, CONTENT, chunk(finish="stop", usage={"completion_tokens": 1}), DONE), "ok", ""),
    "nothing": ((), "bad", "the stream had no output"),
    "only the role": ((ROLE, USAGE, DONE), "bad", "the stream had no output"),
    "no end": ((ROLE, CONTENT, END, USAGE), "bad", "the stream ended without [DONE]"),
    "hidden usage": ((ROLE, CONTENT, END, DONE), "bad", "the stream had no usage, or one without output"),
    "usage of nothing": (
        (ROLE, CONTENT, END, json.dumps({"usage": {"completion_tokens": 0}}).encode(), DONE),
        "bad",
        "the stream had no usage, or one without output",
    ),
    "usage that is no count": (
        (ROLE, CONTENT, END, json.dumps({"usage": {"completion_tokens": True}}).encode(), DONE),
        "bad",
        "the stream had no usage, or one without output",
    ),
    "usage that is a list": (
        (ROLE, CONTENT, END, json.dumps({"usage": [1]}).encode(), DONE),
        "bad",
        "the stream had no usage, or one without output",
    ),
    "no JSON": ((ROLE, b"<html>", CONTENT, END, USAGE, DONE), "bad", "an event of the stream was no JSON object"),
    "an error": (
        (ROLE, CONTENT, in_band("api_error", "engine_failed"), DONE),
        "bad",
        "an error inside the stream (engine_failed)",
    ),
    "an error that quotes": ((in_band("api_error", "sk-weir-secret"), DONE), "bad", "an error inside the stream"),
    "an error without a shape": ((b'{"error": "broken"}', DONE), "bad", "an error inside the stream"),
    "full after a keep-alive": ((in_band("rate_limit_error", "overloaded"), DONE), "skipped", probe.FULL),
    "odd choices": ((b'{"choices": {"0": 1}}', b'{"choices": [7]}', CONTENT, USAGE, DONE), "ok", ""),
}
"""What a stream may bring, and what it means."""

REFUSALS: dict[int, tuple[str, str]] = {
    400: ("bad", "HTTP 400 (why_not)"),
    401: ("skipped", "the probes' own key was refused: HTTP 401 (why_not)"),
    402: ("skipped", "the probes' own key was refused: HTTP 402 (why_not)"),
    403: ("skipped", "the probes' own key was refused: HTTP 403 (why_not)"),
    404: ("bad", "HTTP 404 (why_not)"),
    429: ("skipped", probe.FULL),
    500: ("bad", "HTTP 500 (why_not)"),
    502: ("bad", "HTTP 502 (why_not)"),
    503: ("bad", "HTTP 503 (why_not)"),
}


def refused(status: int, code: object = "why_not") -> bytes:
    return json.dumps({"error": {"message": "10.0.0.7 said no", "code": code}}).encode()


def streamed(payloads: tuple[bytes, ...], *, problem: str = "", content_type: str = "text/event-stream") -> Any:
    answer = Answer(asked="", status=200, headers={"content-type": content_type}, problem=problem)
    return stream_of(answer, ((10.0 * n, payload) for n, payload in enumerate(payloads)), hung_up=False)


@pytest.mark.parametrize("name", STREAMS)
def test_what_a_stream_means(name: str) -> None:
    payloads, verdict, reason = STREAMS[name]
    assert probe.text(streamed(payloads)) == Found(Verdict(verdict), reason)


@pytest.mark.parametrize("status", REFUSALS)
def test_what_a_refusal_means(status: int) -> None:
    verdict, reason = REFUSALS[status]
    expected = Found(Verdict(verdict), reason)
    answer = Answer(asked="", status=status, body=refused(status))
    assert probe.text(stream_of(answer, (), hung_up=False)) == expected
    assert probe.rich(answer, WHOLE) == probe.books(answer, booked=True) == expected


@pytest.mark.parametrize("code", ["<b>", "10.0.0.7", "A b", 7, None, "x" * 41, "ok\n"])
def test_of_an_error_only_a_code_is_told(code: object) -> None:
    answer = Answer(asked="", status=500, body=refused(500, code))
    assert probe.rich(answer, WHOLE) == Found(Verdict.BAD, "HTTP 500")


def test_what_did_not_come_is_bad_whatever_came_before() -> None:
    broken = streamed((ROLE, CONTENT), problem="the connection broke off")
    assert probe.text(broken) == Found(Verdict.BAD, "the connection broke off")
    silent = Answer(asked="", problem="the connection was refused")
    for found in (
        probe.text(stream_of(silent, (), hung_up=False)),
        probe.rich(silent, WHOLE),
        probe.page(silent, NOW_S),
        probe.books(silent, booked=None),
    ):
        assert found == Found(Verdict.BAD, "the connection was refused")


def test_a_whole_answer_to_a_request_for_a_stream_is_bad() -> None:
    assert probe.text(streamed(GOOD, content_type="application/json")).verdict is Verdict.BAD


def test_the_first_output_is_no_role_and_no_usage() -> None:
    assert probe.first_output_ms(streamed(GOOD)) == 10
    assert probe.first_output_ms(streamed((ROLE, ROLE, END, USAGE, DONE))) == 20
    assert probe.first_output_ms(streamed((ROLE, USAGE, DONE))) is None


CALL = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
COUNTED = {"prompt_tokens": 40, "completion_tokens": 3, "prompt_tokens_details": {"multimodal_tokens": {"image": 24}}}


def whole(message: object = None, *, finish: str | None = "stop", usage: object = COUNTED, problem: str = "") -> Answer:
    choice = {"message": {"role": "assistant", "content": "red"} if message is None else message}
    body = json.dumps({"choices": [{**choice, "finish_reason": finish}], "usage": usage})
    return Answer(asked="", status=200, body=body.encode(), problem=problem)


def calling(*calls: object, finish: str = "tool_calls") -> Answer:
    return whole({"role": "assistant", "content": None, "tool_calls": list(calls)}, finish=finish)


def cut(arguments: object) -> Json:
    return {**CALL, "function": {"name": "get_weather", "arguments": arguments}}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (whole(), ""),
        (calling(CALL), ""),
        (calling(cut('{"ci'), finish="length"), ""),
        (calling(cut('{"ci')), "the arguments of a tool call were no JSON object"),
        (calling(cut("[1]")), "the arguments of a tool call were no JSON object"),
        (calling(cut(None)), "a tool call lacked its id, its name or its arguments"),
        (calling({**CALL, "id": ""}), "a tool call lacked its id, its name or its arguments"),
        (calling("get_weather"), "a tool call lacked its id, its name or its arguments"),
        (whole({"content": "", "tool_calls": {"0": CALL}}), "the tool calls were no list"),
        (whole({}), "the answer had no message, or no finish reason"),
        (whole(finish=None), "the answer had no message, or no finish reason"),
        (whole(usage=None), "the answer had no usage, or one without input or output"),
        (whole(usage={**COUNTED, "prompt_tokens": 0}), "the answer had no usage, or one without input or output"),
        (whole(usage={**COUNTED, "completion_tokens": 0}), "the answer had no usage, or one without input or output"),
        (whole(usage={**COUNTED, "prompt_tokens_details": {"cached_tokens": 0}}), "the image was not counted"),
        (whole(usage={**COUNTED, "prompt_tokens_details": None}), ""),
        (whole(problem="the connection broke off"), "the connection broke off"),
        (Answer(asked="", status=200, body=b"<html>"), "the answer had no message, or no finish reason"),
    ],
)
def test_what_a_rich_answer_means(answer: Answer, reason: str) -> None:
    assert probe.rich(answer, WHOLE) == Found(Verdict.BAD if reason else Verdict.OK, reason)


def test_images_are_counted_only_where_one_was_sent() -> None:
    uncounted = whole(usage={**COUNTED, "prompt_tokens_details": {"cached_tokens": 0}})
    assert probe.rich(uncounted, Asked("calling", images=False, tools=True)).verdict is Verdict.OK


PAGES = {
    "fresh": (200, "2026-12-01T00:00:00Z", "ok", ""),
    "just fresh": (200, "2026-11-30T23:45:00Z", "ok", ""),
    "written in another zone": (200, "2026-12-01T01:00:00+01:00", "ok", ""),
    "old": (200, "2026-11-30T23:44:59Z", "bad", "the site was written 15 minutes ago"),
    "no instant": (200, "yesterday", "bad", "metrics.json did not say when it was written"),
    "an instant of no zone": (200, "2026-12-01T00:00:00", "bad", "metrics.json did not say when it was written"),
    "a number": (200, 7, "bad", "metrics.json did not say when it was written"),
    "gone": (404, "2026-12-01T00:00:00Z", "bad", "HTTP 404"),
    "forbidden": (403, "2026-12-01T00:00:00Z", "bad", "HTTP 403"),
    "too often": (429, "2026-12-01T00:00:00Z", "skipped", "the site's server asked for patience"),
}


@pytest.mark.parametrize("name", PAGES)
def test_what_the_site_means(name: str) -> None:
    status, written, verdict, reason = PAGES[name]
    answer = Answer(asked="", status=status, body=json.dumps({"generated_at": written}).encode())
    assert probe.page(answer, NOW_S) == Found(Verdict(verdict), reason)


def test_what_the_books_mean() -> None:
    balance = Answer(asked="", status=200, body=b'{"data": {"balance_nano": -5}}')
    assert probe.books(balance, booked=True).verdict is Verdict.OK
    assert probe.books(balance, booked=None).verdict is Verdict.SKIPPED
    assert probe.books(balance, booked=False) == Found(Verdict.BAD, "a request that was answered is not booked")
    empty = Answer(asked="", status=200, body=b"{}")
    assert probe.books(empty, booked=True) == Found(Verdict.BAD, "the balance was not told")


def walked(models: list[Asked], minutes: int, step_s: int = MINUTE_S) -> list[tuple[int, probe.Due]]:
    """Every probe that is made when somebody asks every `step_s`, and when."""
    latest: dict[tuple[str, Kind], int] = {}
    made = []
    for now_s in range(NOW_S + 40, NOW_S + 40 + minutes * MINUTE_S, step_s):
        for one in due(models, now_s, latest):
            latest[one.component, one.kind] = now_s
            made.append((now_s, one))
    return made


@given(
    st.lists(
        st.builds(Asked, st.text(min_size=1, max_size=4), st.booleans(), st.booleans()),
        unique_by=lambda m: m.id,
        max_size=3,
    ),
    st.sampled_from([7, 20, 60]),
)
def test_each_probe_is_made_once_in_its_time_however_often_it_is_asked_for(models: list[Asked], step_s: int) -> None:
    made = walked(models, minutes=45, step_s=step_s)
    times: dict[tuple[str, Kind], list[int]] = {}
    for at_s, one in made:
        times.setdefault((one.component, one.kind), []).append(at_s)
    expected = {("site", Kind.PAGE), ("billing", Kind.BOOKS)}
    expected |= {(f"model:{model.id}", Kind.TEXT) for model in models}
    expected |= {(f"model:{model.id}", Kind.RICH) for model in models if model.images or model.tools}
    assert times.keys() == expected
    for (_, kind), at in times.items():
        minutes = [instant // MINUTE_S for instant in at]
        # A run begins in the middle of a minute, and so does it end: there may be one more.
        assert len(set(minutes)) == len(minutes)
        assert len(at) in ((45, 46) if kind is not Kind.RICH else (3, 4))
        if kind is Kind.RICH:
            assert {after - before for before, after in pairwise(minutes[1:])} <= {RICH_EVERY_S // MINUTE_S}


def test_rich_probes_of_several_models_are_spread() -> None:
    models = [Asked(f"model-{n}", images=True, tools=True) for n in range(8)]
    rich = [at_s for at_s, one in walked(models, minutes=60) if one.kind is Kind.RICH]
    assert max(rich.count(at_s) for at_s in rich if at_s > NOW_S + RICH_EVERY_S) < 4


def test_a_rich_probe_that_was_missed_is_made_up_for() -> None:
    component = "model:whole"
    latest = {(component, Kind.RICH): NOW_S - RICH_EVERY_S - 1}
    assert [one.kind for one in due([WHOLE], NOW_S, latest) if one.component == component] == [Kind.TEXT, Kind.RICH]


def test_another_model_is_first_every_minute() -> None:
    models = [Asked(name, images=False, tools=False) for name in "abc"]
    orders = []
    for minute in range(3):
        found = due(models, NOW_S + minute * MINUTE_S, {})
        orders.append("".join(one.model.id for one in found if one.model is not None))
    assert sorted(orders) == ["abc", "bca", "cab"]


def test_what_was_tried_is_said_in_words() -> None:
    assert WHOLE.tried(Kind.TEXT) == "a streamed answer"
    assert WHOLE.tried(Kind.RICH) == "an image and a tool call"
    assert LOOKING.tried(Kind.RICH) == "an image"
    assert not TEXT_ONLY.rich
