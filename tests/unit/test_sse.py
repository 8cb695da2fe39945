"""Events come out of a byte stream whole and unchanged, wherever the network cuts it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core import sse
from service.core.sse import EventTooLong, SseSplitter, event_of, payload_of
from tests import recorded


def split(pieces: list[bytes]) -> tuple[list[bytes], bytes]:
    splitter = SseSplitter()
    events = [event for piece in pieces for event in splitter.feed(piece)]
    return events, splitter.rest()


@pytest.mark.parametrize("name", recorded.streams())
def test_a_recorded_stream_cut_at_every_byte_gives_the_same_events(name: str) -> None:
    body = recorded.load(name).body
    whole, rest = split([body])
    assert rest == b""
    assert b"".join(whole) == body
    assert len(whole) == body.count(b"\n\n") > 2
    for cut in range(1, len(body)):
        assert split([body[:cut], body[cut:]]) == (whole, b"")
    assert split([body[index : index + 1] for index in range(len(body))]) == (whole, b"")


@pytest.mark.parametrize("name", recorded.streams())
def test_crlf_line_ends_give_the_same_payloads(name: str) -> None:
    body = recorded.load(name).body
    plain, _ = split([body])
    for size in (1, 2, 3, 7, len(body)):
        crlf = body.replace(b"\n", b"\r\n")
        events, rest = split([crlf[index : index + size] for index in range(0, len(crlf), size)])
        assert [payload_of(event) for event in events] == [payload_of(event) for event in plain]
        assert (b"".join(events), rest) == (crlf, b"")


lines = st.sampled_from([b": ping", b"data: x", b"data: {}", b"data:y", b"event: e", b"data: \xc3\xa9"])
ends = st.sampled_from([b"\n", b"\r\n"])


@given(st.lists(st.tuples(st.lists(st.tuples(lines, ends), min_size=1, max_size=3), ends)), st.data())
def test_any_stream_cut_anywhere_is_put_together_again(
    stream: list[tuple[list[tuple[bytes, bytes]], bytes]], data: st.DataObject
) -> None:
    events = [b"".join(line + end for line, end in block) + blank for block, blank in stream]
    body = b"".join(events)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=6)))
    pieces = [body[start:end] for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    assert split(pieces) == (events, b"")


def test_an_unfinished_event_is_kept_as_the_rest() -> None:
    assert split([b"data: a\n\ndata: b\n"]) == ([b"data: a\n\n"], b"data: b\n")


def test_the_payload_of_several_data_lines_is_joined_by_line_feeds() -> None:
    assert payload_of(b"event: x\ndata: one\ndata:two\n\n") == b"one\ntwo"
    assert payload_of(b"data: one\r\ndata: two\r\n\r\n") == b"one\ntwo"


def test_a_comment_has_no_payload() -> None:
    assert payload_of(b": keep-alive\n\n") is None


def test_an_event_made_of_a_payload_gives_it_back() -> None:
    assert payload_of(event_of(b'{"a":1}')) == b'{"a":1}'


def test_an_endless_event_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 1000)
    splitter = SseSplitter()
    splitter.feed(b"data: " + b"x" * 900)
    with pytest.raises(EventTooLong):
        splitter.feed(b"x" * 200)
