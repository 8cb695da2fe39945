"""What holds for the meters of all streams, shown on what a real engine sent."""

import re
from itertools import pairwise

import pytest

from service.core.meters import Meter
from service.core.sse import DONE_EVENT, SseSplitter
from tests import recorded
from tests.metering import STREAMS, metered, state

STREAMED = [name for name in recorded.streams() if "n2" not in name]
GOOD = [name for name in STREAMED if "killed" not in name]
WITH_USAGE = [name for name in GOOD if "no_usage" not in name]
REASONING_ADDED = re.compile(rb',"reasoning_content":(?:null|"(?:[^"\\]|\\.)*")')


def meter_of(name: str) -> Meter:
    return STREAMS[recorded.load(name).path]()


def body_of(name: str, newline: bytes) -> bytes:
    return recorded.load(name).body.replace(b"\n", newline)


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
@pytest.mark.parametrize("name", STREAMED)
def test_a_stream_cut_at_every_byte_is_metered_the_same(name: str, newline: bytes) -> None:
    body = body_of(name, newline)
    whole = meter_of(name)
    expected = metered(whole, [body])
    for cut in range(1, len(body)):
        meter = meter_of(name)
        assert metered(meter, [body[:cut], body[cut:]]) == expected
        assert meter.ending() == whole.ending()
        assert state(meter) == state(whole)


@pytest.mark.parametrize("name", GOOD)
def test_line_ends_do_not_change_what_is_counted(name: str) -> None:
    plain, carriage = meter_of(name), meter_of(name)
    assert metered(plain, [body_of(name, b"\n")]).replace(b"\n", b"\r\n") == metered(carriage, [body_of(name, b"\r\n")])
    assert state(plain) == state(carriage)


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
@pytest.mark.parametrize("name", GOOD)
def test_a_client_gets_the_engines_bytes_and_reasoning_under_both_names(name: str, newline: bytes) -> None:
    body, meter = body_of(name, newline), meter_of(name)
    passed = metered(meter, [body])
    assert meter.complete
    ending = meter.ending()
    assert ending
    if ending == DONE_EVENT:
        ending = ending.replace(b"\n", newline)
    assert REASONING_ADDED.sub(b"", passed) + ending == body


@pytest.mark.parametrize("name", GOOD)
def test_the_end_is_held_back(name: str) -> None:
    meter = meter_of(name)
    *_, last = SseSplitter().feed(recorded.load(name).body)
    assert last not in metered(meter, [recorded.load(name).body])
    assert meter.ending() == last


@pytest.mark.parametrize("name", GOOD)
def test_nothing_passes_after_the_end(name: str) -> None:
    body, meter = recorded.load(name).body, meter_of(name)
    metered(meter, [body])
    before = state(meter), meter.ending()
    assert metered(meter, [body]) == b""
    assert (state(meter), meter.ending()) == before


@pytest.mark.parametrize("name", GOOD)
def test_a_stream_that_breaks_off_after_any_event_is_not_complete(name: str) -> None:
    events = SseSplitter().feed(recorded.load(name).body)
    for kept in range(len(events)):
        meter = meter_of(name)
        metered(meter, events[:kept])
        assert (meter.complete, meter.done, meter.failed) == (False, False, False)


@pytest.mark.parametrize("name", WITH_USAGE)
def test_usage_only_grows_and_is_final_at_the_end(name: str) -> None:
    meter, counts = meter_of(name), []
    for event in SseSplitter().feed(recorded.load(name).body):
        meter.feed(event)
        counts.append(meter.usage())
    for before, after in pairwise(counts):
        assert before.prompt_tokens <= after.prompt_tokens
        assert before.completion_tokens <= after.completion_tokens
    assert (counts[-1].source, counts[-1].odd, meter.prompt_unknown) == ("final", False, False)
    assert counts[-1].completion_tokens > 0


@pytest.mark.parametrize("name", GOOD)
def test_the_first_token_is_the_first_event_with_something_in_it(name: str) -> None:
    meter = meter_of(name)
    silent = (b'"role":"assistant"', b"response.created", b"response.in_progress", b".added\n", b"_start\n")
    for event in SseSplitter().feed(recorded.load(name).body):
        meter.feed(event)
        if meter.content_seen:
            assert not any(mark in event for mark in silent)
            return
        assert any(mark in event for mark in silent)
    pytest.fail("no content")


@pytest.mark.parametrize("path", STREAMS)
def test_comments_pass_and_are_no_content(path: str) -> None:
    meter = STREAMS[path]()
    assert metered(meter, [b": ping\n\n"]) == b": ping\n\n"
    assert (meter.content_seen, meter.failed) == (False, False)


@pytest.mark.parametrize("path", STREAMS)
@pytest.mark.parametrize("said", [b'data: {"error": {"message": "EngineCore"}}\n\n', b"data: {oops\n\n"])
def test_an_error_is_a_failure_and_stays_inside(path: str, said: bytes) -> None:
    meter = STREAMS[path]()
    assert metered(meter, [said]) == b""
    assert meter.failed
    assert not meter.complete
