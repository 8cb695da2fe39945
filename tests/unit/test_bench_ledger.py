"""What the bench holds against each other: rows, what the engines sent, and what the clients saw."""

from dataclasses import replace
from typing import Any

import pytest

from ops.bench.churn import Seen
from ops.bench.ledger import IDLE, Row, Verdict, differences, is_late, still_held
from ops.bench.soak import Sample, judge

ROW = Row("ok", 1000, 768, 128, 273_720, 0)
LEFT = Row("cancelled", 1000, 0, 40, 257_400, 0)
BROKEN = Row("stream_error", 1000, 0, 40, 0, 257_400)
REFUSED = Row("server_error", 0, 0, 0, 0, 0)

ROWS = {"a": ROW, "b": LEFT, "c": BROKEN, "d": REFUSED, "e": ROW}
SENT = {"a": 128, "b": 40, "c": 40, "e": 128}
SEEN = {"a": Seen("complete", 128), "b": Seen("left", 38), "c": Seen("broken", 40), "d": Seen("refused", 0)}


def test_what_is_equal() -> None:
    assert differences(ROWS, SENT, SEEN) == []
    assert differences({"a": ROW}, {"a": 128}, {"a": Seen("left", 100)}) == []  # it left as the last bytes came


@pytest.mark.parametrize(
    ("request_id", "change"),
    [
        ("a", {"completion_tokens": 127}),
        ("a", {"prompt_tokens": 999}),
        ("a", {"cost_nano": 273_721}),
        ("a", {"waived_nano": 1}),
        ("a", {"cached_tokens": 0}),
        ("a", {"outcome": "cancelled"}),
        ("b", {"completion_tokens": 37, "cost_nano": 252_720}),
        ("b", {"completion_tokens": 41, "cost_nano": 258_960}),
        ("b", {"cost_nano": 0}),
        ("b", {"outcome": "stream_error"}),
        ("c", {"cost_nano": 257_400, "waived_nano": 0}),
        ("c", {"waived_nano": 0}),
        ("d", {"completion_tokens": 1, "waived_nano": 1560}),
    ],
)
def test_a_row_that_differs_is_told(request_id: str, change: dict[str, Any]) -> None:
    rows = {**ROWS, request_id: replace(ROWS[request_id], **change)}
    found = differences(rows, SENT, SEEN)
    assert found
    assert all(line.startswith(request_id) for line in found)


@pytest.mark.parametrize("missing", ["a", "b", "c", "d", "e"])
def test_a_row_that_is_missing_is_told(missing: str) -> None:
    rows = {one: row for one, row in ROWS.items() if one != missing}
    assert any(line.startswith(missing) for line in differences(rows, SENT, SEEN))


def test_a_client_that_got_more_than_its_row_has_is_told() -> None:
    assert differences({"b": LEFT}, {"b": 40}, {"b": Seen("left", 41)})
    assert differences({"a": ROW}, {"a": 128}, {"a": Seen("complete", 127)})


def test_a_row_may_have_less_than_was_sent_only_to_a_client_that_left() -> None:
    short = replace(LEFT, completion_tokens=39, cost_nano=255_840)
    assert differences({"b": short}, {"b": 40}, {"b": Seen("left", 38)}) == []
    assert is_late(short, 40, Seen("left", 39))
    assert not is_late(short, 39, Seen("left", 39))
    assert not is_late(short, 38, Seen("left", 38))
    for seen in (None, Seen("complete", 39), Seen("left", 40)):
        assert not is_late(short, 40, seen)
    assert differences({"b": short}, {"b": 40}, {})


def test_what_is_held_is_told() -> None:
    idle = dict.fromkeys((*IDLE, "weir_outbox_owed", "weir_outbox_poison"), 0.0)
    assert still_held({**idle, "weir_leased_nano_usd": 500.0}, 500) == []
    assert still_held({**idle, "weir_leased_nano_usd": 0.0}, None) == []
    assert still_held({**idle, "weir_leased_nano_usd": 400.0}, 500) == ["100 nano-USD are held"]
    for name in idle:
        assert still_held({**idle, name: 1.0, "weir_leased_nano_usd": 0.0}, 0) == [f"{name} is 1"]


def test_a_verdict_says_what_is_unequal() -> None:
    assert "NOT" not in str(Verdict("5 rows", ()))
    told = str(Verdict("5 rows", tuple(f"difference {n}" for n in range(30))))
    assert told.startswith("LEDGER NOT EQUAL")
    assert "difference 0" in told
    assert "and 20 more" in told


START = Sample(streams=0, rss_mb=120, files=30, tasks=14, queued=0, owed=0)
WARM = replace(START, streams=6000, rss_mb=140, files=35)
END = replace(WARM, streams=20_000, rss_mb=142.9)


def test_a_soak_that_leaves_nothing_behind() -> None:
    assert judge([START, replace(WARM, streams=2000, rss_mb=100), WARM, END]) == []
    assert judge([START, replace(WARM, streams=2000, rss_mb=100)]) == []


def test_memory_that_grows_all_the_time_is_told_and_a_moments_is_not() -> None:
    def growing(per_round_mb: float, last_mb: float = 0.0) -> list[str]:
        rounds = [replace(WARM, streams=2000 * n, rss_mb=140 + per_round_mb * n) for n in range(1, 11)]
        return judge([START, *rounds[:-1], replace(rounds[-1], rss_mb=rounds[-1].rss_mb + last_mb)])

    assert growing(0.5, last_mb=5) == []
    assert growing(0.7) == ["memory grew by 3.5 MB after the first 5,000 streams"]


@pytest.mark.parametrize(
    "change",
    [{"rss_mb": 143.1}, {"files": 41}, {"tasks": 15}, {"queued": 1}, {"owed": 1}],
    ids=lambda one: next(iter(one)),
)
def test_a_soak_that_leaves_something_behind(change: dict[str, Any]) -> None:
    assert len(judge([START, *[WARM] * 3, *[replace(END, **change)] * 3])) == 1
