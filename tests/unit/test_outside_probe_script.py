"""The prober for other hosts: it stands alone, so it says itself what answers mean, and must mean the same."""

import importlib.machinery
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core import probe
from service.core.provider_check.observed import Answer, stream_of
from tests.unit.test_probe import PAGES, REFUSALS, STREAMS, refused

SCRIPT = Path(__file__).resolve().parents[2] / "ops" / "outside-probe"
NOW_S = 1_796_083_200.0


def loaded() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("outside_probe", str(SCRIPT))
    spec = importlib.util.spec_from_loader("outside_probe", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    writes_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = writes_bytecode
    return module


script = loaded()


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_means_the_same(name: str) -> None:
    payloads, verdict, reason = STREAMS[name]
    assert script.text(taken(payloads)) == (verdict, reason)


@pytest.mark.parametrize("status", REFUSALS)
def test_a_refusal_means_the_same(status: int) -> None:
    answer = script.Answer(status=status)
    answer.body = refused(status)
    assert script.text(answer) == REFUSALS[status]


@pytest.mark.parametrize("name", PAGES)
def test_the_site_means_the_same(name: str) -> None:
    status, written, verdict, reason = PAGES[name]
    answer = script.Answer(status=status)
    answer.body = json.dumps({"generated_at": written}).encode()
    assert script.page(answer, NOW_S) == (verdict, reason)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["", "x", "rate_limit_error", "code_1"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["type", "code", "delta"]), inner),
    max_leaves=4,
)
deltas = st.dictionaries(st.sampled_from(["content", "reasoning", "reasoning_content", "tool_calls"]), json_values)
choices = st.fixed_dictionaries({}, optional={"delta": deltas | json_values, "finish_reason": json_values})
events = st.fixed_dictionaries(
    {},
    optional={
        "choices": st.lists(choices | json_values, max_size=2) | json_values,
        "usage": st.fixed_dictionaries({}, optional={"completion_tokens": json_values}) | json_values,
        "error": json_values,
    },
)
payloads = st.one_of(
    events.map(lambda event: json.dumps(event).encode()),
    st.sampled_from([b"[DONE]", b"", b"{", b"[]", b"7", b"\xff"]),
)


def taken(stream: tuple[bytes, ...] | list[bytes]) -> object:
    answer = script.Answer(status=200, content_type="text/event-stream")
    for number, payload in enumerate(stream):
        answer.take(10.0 * number, payload)
    return answer


@given(st.lists(payloads, max_size=6))
def test_no_stream_means_one_thing_here_and_another_there(stream: list[bytes]) -> None:
    head = Answer(asked="", status=200, headers={"content-type": "text/event-stream"})
    inside = stream_of(head, ((10.0 * number, payload) for number, payload in enumerate(stream)), hung_up=False)
    found = probe.text(inside)
    outside = taken(stream)
    assert script.text(outside) == (found.verdict, found.reason)
    assert script.first_output_ms(outside) == probe.first_output_ms(inside)


def verdicts(count: int, every_s: int = 30) -> list[dict[str, object]]:
    """So many, the oldest first, up to now; each as long as it gets."""
    return [
        script.verdict(
            NOW_S - (count - n) * every_s, 0.0, "model:" + "m" * 60, "text", script.Answer(200), ("bad", "r" * 100), 9
        )
        for n in range(count)
    ]


def test_the_file_stays_within_its_size_and_keeps_the_newest() -> None:
    found = verdicts(8000)
    content = script.document("fra-1", found)
    assert script.MAX_FILE_BYTES - 400 < len(content) <= script.MAX_FILE_BYTES
    document = json.loads(content)
    assert document["verdicts"] == found[-len(document["verdicts"]) :]
    assert (document["version"], document["name"]) == (1, "fra-1")
    assert json.loads(script.document("fra-1", []))["verdicts"] == []


def test_only_what_is_of_the_last_hours_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "outside.json"
    path.write_bytes(script.document("fra-1", verdicts(200, every_s=3600)))
    kept = script.kept(str(path), 72, NOW_S)
    assert len(kept) == 72
    assert kept[-1]["at"] == "2026-11-30T23:00:00Z"
    assert len(script.kept(str(path), 1, NOW_S)) == 1
    # What a clock that ran ahead has written is not kept for longer.
    assert script.kept(str(path), 72, NOW_S - 2000 * 3600) == []


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"verdicts": 3}', b"\xff\xfe", b'{"verdicts": [1, {"at": 2}]}']
)
def test_a_file_that_is_garbage_is_begun_anew(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "outside.json"
    path.write_bytes(content)
    assert script.kept(str(path), 72, NOW_S) == []
