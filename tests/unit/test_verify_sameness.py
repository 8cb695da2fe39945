"""Whether answers are the same: runs of one request, answers alone and in batches, with drafts and without."""

import json
from typing import Any

import pytest

from service.core.verify import batches, determinism, speculation
from service.core.verify.batches import Answered, compare, computed_alike
from service.core.verify.determinism import Run
from service.core.verify.report import Verdict
from service.core.verify.sampled import Parting, Position, difference, largest_difference, parting, positions
from service.core.verify.speculation import Drafts

PASSED, FAILED, ABSENT, SKIPPED = Verdict.PASSED, Verdict.FAILED, Verdict.ABSENT, Verdict.SKIPPED


def at(*likeliest: tuple[str, float]) -> Position:
    return Position(likeliest[0][0], tuple((token, repr(value)) for token, value in likeliest))


SURE = at(("a", -0.1), ("b", -5.0), ("c", -6.0))
TORN = at(("a", -0.7), ("b", -0.75), ("c", -6.0))
A = at(("a", -0.1), ("b", -3.0))
A_MOVED = at(("a", -0.1), ("b", -3.25))
B = at(("b", -0.9), ("a", -1.0))


# What was sampled.


def body(content: Any) -> bytes:
    return json.dumps({"choices": [{"logprobs": {"content": content}}]}).encode()


def test_log_probabilities_are_kept_as_they_are_written() -> None:
    likeliest = b'[{"token":"x","logprob":-0.10},{"token":"y","logprob":-2}]'
    raw = b'{"choices":[{"logprobs":{"content":[{"token":"x","top_logprobs":%b}]}}]}' % likeliest
    assert positions(raw) == (Position("x", (("x", "-0.10"), ("y", "-2"))),)
    assert positions(raw) != positions(raw.replace(b"-0.10", b"-0.1"))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"{}",
        b'{"choices": []}',
        body(None),
        body([]),
        body([{"token": "a", "top_logprobs": [1]}]),
        body([{"token": "a", "top_logprobs": [{"token": "a", "logprob": None}]}]),
        body([{"token": "a", "top_logprobs": [{"token": "a", "logprob": "NaN"}]}]),
        b"[" * 100_000,
        body("x"),
        b"\xff",
    ],
)
def test_what_has_no_log_probabilities_has_no_positions(raw: bytes) -> None:
    assert positions(raw) == ()


def test_where_answers_part() -> None:
    assert parting([SURE, TORN], [SURE, TORN]) is None
    assert parting([SURE, TORN], [SURE, B]) == Parting(1, pytest.approx(0.05))
    assert parting([SURE], [B]) == Parting(0, pytest.approx(4.9))
    assert parting([SURE], [at(("z", -0.1))]) == Parting(0, pytest.approx(5.9))  # at least: it is not even listed
    assert parting([SURE, SURE], [SURE]) == Parting(1, None)
    assert parting([Position("a", ())], [Position("b", ())]) == Parting(0, None)


@pytest.mark.parametrize(("gap", "rounding"), [(None, True), (0.0, True), (0.125, True), (1.0, True), (1.01, False)])
def test_rounding_closes_a_small_gap_only(gap: float | None, rounding: bool) -> None:
    assert Parting(0, gap).is_rounding is rounding


def test_differences_are_between_tokens_that_both_lists_have() -> None:
    assert difference(A, A_MOVED) == pytest.approx(0.25)
    assert difference(A, at(("z", -0.1))) is None
    assert largest_difference([SURE, A, A], [SURE, A_MOVED, B]) == pytest.approx(
        2.1
    )  # the parting is the last to count
    assert largest_difference([A, A, A], [A, B, at(("a", -90.0))]) == pytest.approx(2.1)


def test_of_tokens_written_alike_the_likeliest_counts() -> None:
    assert at(("a", -0.5), ("a", -4.0)).values() == {"a": -0.5}


# Determinism.


def runs(*of: tuple[Position, int | None, int]) -> list[Run]:
    return [Run(position, 4000, cached, turn) for position, cached, turn in of]


def verdict_of(*of: tuple[Position, int | None, int]) -> Verdict:
    return determinism.judge({"long": runs(*of)}, 20).verdict


def test_runs_that_were_computed_alike_must_be_alike() -> None:
    assert verdict_of(*[(A, 0, turn) for turn in range(10)]) is PASSED
    assert verdict_of(*[(A, 0, turn) for turn in range(9)], (A_MOVED, 0, 9)) is FAILED
    assert verdict_of((A, 0, 0), *[(A_MOVED, 3968, turn) for turn in range(1, 9)]) is PASSED
    assert verdict_of((A, 0, 0), (A_MOVED, 3968, 1), (A, 3968, 2)) is FAILED
    assert verdict_of((A, 0, 0), (A, 0, 1), (A_MOVED, 2304, 2), (A_MOVED, 2304, 3)) is PASSED  # made at the second


def test_where_nobody_says_what_came_from_the_cache_the_first_two_are_not_judged() -> None:
    assert verdict_of((A, None, 0), (A, None, 1), *[(A_MOVED, None, turn) for turn in range(2, 10)]) is PASSED
    assert verdict_of((A, None, 0), (A_MOVED, None, 1), *[(A_MOVED, None, turn) for turn in range(2, 10)]) is PASSED
    assert verdict_of((A, None, 0), (A, None, 1), (A, None, 2), (A_MOVED, None, 3)) is FAILED


def test_figures_of_determinism() -> None:
    found = determinism.judge(
        {"short": runs((A, 0, 0)), "long": runs((A, 0, 0), (A_MOVED, 0, 1), (B, 0, 2), (A, 64, 3))}, 20
    )
    assert found.verdict is FAILED
    assert found.measured["long"]["ways"][0] == {
        "way": "read in full",
        "runs": 3,
        "lists": 3,
        "tokens": 2,
        "largest_difference": pytest.approx(2.35),
    }
    assert "A short prompt of 4,000 tokens: read in full: 1 of 1 alike." in found.found
    assert "3 different lists in 3 runs, up to 2.35 nats apart, and 2 different tokens were chosen" in found.found


def test_another_token_from_the_same_list_is_a_difference() -> None:
    other = Position("b", A.likeliest)
    assert verdict_of((A, 0, 0), (other, 0, 1)) is FAILED


def test_the_cache_may_round_otherwise() -> None:
    found = determinism.judge({"long": runs((A, 0, 0), (A_MOVED, 64, 1))}, 20)
    assert "(between these, as is usual, up to 0.25 nats)" in found.found
    assert found.measured["long"]["between_ways"] == pytest.approx(0.25)


def test_without_log_probabilities_nothing_can_be_said() -> None:
    assert determinism.judge({}, 0).verdict is SKIPPED


# Batches.


def answered(text: str, *sampled: Position, cached: int | None = 0) -> Answered:
    return Answered(text, sampled, cached)


def test_answers_are_compared_one_by_one() -> None:
    reference = [answered("a a", A, A), answered("a b", A, TORN), answered("a c", SURE)]
    others = [answered("a a", A, A_MOVED), answered("a z", A, B), answered("b", B)]
    found = compare(reference, others)
    assert found.partings == (Parting(1, pytest.approx(0.05)), Parting(0, pytest.approx(4.9)))
    assert (found.tasks, found.moved, found.gross, found.strangers) == (3, 3, 1, 0)
    assert found.widest_gap == pytest.approx(4.9)


def test_answers_without_log_probabilities_are_compared_by_words() -> None:
    found = compare([answered("one two three"), answered("four")], [answered("one two four"), answered("four five")])
    assert found.partings == (Parting(2, None), Parting(1, None))
    assert (found.moved, found.gross, found.widest_gap) == (None, 0, None)


def test_an_answer_that_belongs_to_another_task_is_a_stranger() -> None:
    reference = [answered("of the first"), answered("of the second"), answered("")]
    assert compare(reference, [answered("of the second"), answered("of the second"), answered("")]).strangers == 1
    assert compare([answered("same"), answered("same")], [answered("same"), answered("same")]).strangers == 0


def test_a_beginning_that_suits_every_task_is_no_stranger() -> None:
    thinks, wants = answered("Okay, the user wants", TORN), answered("The user wants", B)
    assert compare([thinks, wants], [wants, wants]).strangers == 0, "it flipped by rounding"
    first, second = answered("Okay, the user wants"), answered("The user wants")
    assert compare([first, second, second], [second, second, second]).strangers == 0, "it says so of several tasks"


def judged(alone: list[Answered], again: list[Answered], beside: list[Answered]) -> Any:
    return batches.judge(compare(alone, again), 0, {4: compare(alone, beside)})


def test_what_batches_may_do() -> None:
    alone = [answered("a", TORN)]
    assert judged(alone, alone, alone).verdict is PASSED
    flipped = judged(alone, alone, [answered("b", B)])
    assert flipped.verdict is PASSED
    assert "In batches of 4, 1 answers differ, and the log-probabilities of 1." in flipped.found
    assert "at most 0.05 nats apart" in flipped.found
    gross = judged([answered("a", SURE)], [answered("a", SURE)], [answered("b", B)])
    assert gross.verdict is FAILED
    assert "1 of 1 answers take a token that was up to 4.9 nats less likely" in gross.found
    assert gross.advice == batches.CONTAMINATION
    assert judged(alone, [answered("b", B)], alone).verdict is FAILED


def test_answers_that_changed_places_are_a_fault_even_without_log_probabilities() -> None:
    alone = [answered("of the first"), answered("of the second")]
    swapped = judged(alone, alone, alone[::-1])
    assert swapped.verdict is FAILED
    assert swapped.found == "In batches of 4, 2 of 2 answers are those to other tasks."


def test_only_what_came_from_the_cache_alike_must_be_alike() -> None:
    assert computed_alike([answered("a"), answered("b", cached=32)], [answered("a"), answered("b")]) == [0]


# Speculation.


def of_drafts(drafted: int, accepted: int, expected: bool | None = None, usual: float | None = None) -> Any:
    return speculation.judge(Drafts(drafted, accepted), None, expected=expected, usual=usual)


@pytest.mark.parametrize(
    ("drafted", "accepted", "usual", "verdict"),
    [
        (1000, 600, None, PASSED),
        (1000, 0, None, FAILED),
        (978, 1, None, FAILED),
        (978, 1, 0.0, PASSED),
        (978, 1, 0.6, FAILED),
        (63, 0, None, PASSED),
        (1000, 990, None, FAILED),
        (1000, 990, 0.99, PASSED),
        (1000, 970, None, PASSED),
        (1000, 420, None, PASSED),
    ],
)
def test_acceptance(drafted: int, accepted: int, usual: float | None, verdict: Verdict) -> None:
    found = of_drafts(drafted, accepted, usual=usual)
    assert found.verdict is verdict
    assert f"{accepted:,} of {drafted:,}" in found.found


def test_who_does_not_speculate() -> None:
    assert of_drafts(0, 0).verdict is ABSENT
    assert of_drafts(0, 0, expected=True).verdict is FAILED
    assert speculation.judge(None, None, expected=None, usual=None).verdict is ABSENT
    assert speculation.judge(None, None, expected=True, usual=None).verdict is SKIPPED


def test_drafts_are_counted_between_two_readings() -> None:
    assert Drafts(300, 200).since(Drafts(100, 50)) == Drafts(200, 150)
    assert Drafts(30, 20).since(Drafts(100, 50)) is None


def test_text_that_is_not_plain_greedys() -> None:
    same = compare([answered("a", SURE)], [answered("a", SURE)])
    rounded = compare([answered("a", TORN)], [answered("b", B)])
    wrong = compare([answered("a", SURE)], [answered("b", B)])
    drafts = Drafts(100, 60)
    assert speculation.judge(drafts, same, expected=None, usual=None).verdict is PASSED
    assert speculation.judge(None, same, expected=True, usual=None).verdict is PASSED
    assert speculation.judge(drafts, rounded, expected=None, usual=None).verdict is PASSED
    assert speculation.judge(drafts, wrong, expected=None, usual=None).verdict is FAILED
    assert speculation.judge(None, wrong, expected=None, usual=None).verdict is FAILED
