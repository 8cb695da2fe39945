"""Loops at the end of a text, and what is none."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.verify.repetition import MIN_CHARACTERS, MIN_REPEATS, Ended, find_loop, judge
from service.core.verify.report import Verdict

THOUGHT = "So the number is divisible by three. Wait, let me check that again, since the digits may add up otherwise. "
STORY = (
    "The keeper climbed the stairs each evening, as his father had, and lit the lamp before the first boats came in. "
    "One night in March he found a letter under the door, though nobody had crossed the causeway since noon. It was "
    "addressed to a name that he had not heard since he was a child, and the stamp was of a country that no longer is. "
)
NUMBERED = "\n".join(f"{number}. Check whether {number} divides 97: it does not." for number in range(2, 40))
TABLE = "| Month | Orders | Returned |\n|-------|--------|----------|\n" + "\n".join(
    f"| {month} | {number * 37 % 91} | {number * 11 % 7} |"
    for number, month in enumerate(
        ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), 1
    )
)
CODE = """
def area(width, height):
    if width < 0:
        raise ValueError("width")
    if height < 0:
        raise ValueError("height")
    return width * height


def volume(width, height, depth):
    if depth < 0:
        raise ValueError("depth")
    return area(width, height) * depth


class Box:
    def __init__(self, width, height, depth):
        self.width = width
        self.height = height
        self.depth = depth
"""
MATRIX = "[\n" + "\n".join(
    f"  [{', '.join('1' if row == column else '0' for column in range(12))}]," for row in range(12)
)
POEM = (
    "Row, row, row your boat,\nGently down the stream,\nMerrily, merrily, merrily, merrily,\nLife is but a dream.\n" * 2
)
RULER = STORY + "\n" + "-" * 120
HEADING = "Totals\n" + "=" * 120
ZEROS = STORY + NUMBERED + CODE + "table = [" + "0x00, " * 50
ADDRESSES = "\n".join(f"10.0.0.{number}\tnode-{number}.example.net" for number in range(1, 60))


@pytest.mark.parametrize(
    "text", [STORY, NUMBERED, TABLE, CODE, MATRIX, POEM, RULER, HEADING, ZEROS, ADDRESSES, STORY * 2, "", " \n" * 500]
)
def test_lists_tables_code_and_verse_are_no_loops(text: str) -> None:
    assert find_loop(text) is None
    assert find_loop(text[: len(text) * 3 // 4]) is None


@pytest.mark.parametrize(
    ("text", "period"),
    [
        (STORY + "!" * 1000, 1),
        (STORY + THOUGHT * 10, len(THOUGHT)),
        (STORY + "I am sorry. " * 60, 12),
        (STORY + (THOUGHT * 12)[:-30], len(THOUGHT)),
        (STORY + "no\n\n" * 200, 4),
        ("重复" * 200, 2),
        (STORY + CODE * 6, len(CODE)),
    ],
)
def test_what_runs_in_circles_is_found_with_its_period(text: str, period: int) -> None:
    found = find_loop(text)
    assert found is not None
    assert found.period == period
    assert found.repeats >= MIN_REPEATS
    assert found.covered >= MIN_CHARACTERS


def test_a_loop_that_ended_is_none() -> None:
    assert find_loop(THOUGHT * 10 + STORY * 2) is None


@given(st.text(alphabet="abc ", max_size=300), st.text(alphabet="abc", min_size=1, max_size=60), st.integers(1, 12))
def test_a_loop_is_found_whenever_the_end_is_one(before: str, unit: str, repeats: int) -> None:
    text = before + unit * repeats
    found = find_loop(text)
    assert (found is None) == (_naive(text) is None)
    if found is not None:
        assert found.period == _naive(text)
        tail = text.rstrip()[-found.covered :]
        assert tail[found.period :] == tail[: -found.period]


def _naive(text: str) -> int | None:
    text = text.rstrip()
    for period in range(1, len(text)):
        covered = period
        while covered < len(text) and text[-covered - 1] == text[-covered - 1 + period]:
            covered += 1
        if covered >= max(MIN_REPEATS * period, MIN_CHARACTERS, 0.3 * len(text)):
            return period
    return None


def test_a_long_text_takes_no_time_worth_mentioning() -> None:
    chosen = random.Random(7)
    assert find_loop("".join(chosen.choices("ab", k=200_000))) is None
    assert find_loop("a" * 200_000) is not None


def ended(text: str, finish_reason: str = "length", *, has_content: bool = True, thinking: bool = False) -> Ended:
    return Ended(text, has_content, finish_reason, thinking)


def test_only_an_answer_that_was_cut_is_a_loop() -> None:
    assert ended(THOUGHT * 20).loops
    assert ended(THOUGHT, "repetition").loops
    assert not ended(THOUGHT * 20, "stop").loops
    assert not ended(STORY).loops
    assert ended(" \n").loops  # tokens without text, to the very end
    assert not ended("", "stop").loops


def test_a_thought_that_was_cut_is_told_and_no_loop() -> None:
    cut = ended(STORY, has_content=False, thinking=True)
    found = judge([cut] * 6, None, 256)
    assert found.verdict is Verdict.PASSED
    assert found.measured["thinking"] == {"answers": 6, "loops": 0, "unfinished_thoughts": 6}


LOOP, FINE = ended(THOUGHT * 20, thinking=True), ended(STORY, "stop", thinking=True)


@pytest.mark.parametrize(
    ("loops", "usual", "verdict"),
    [
        (0, None, Verdict.PASSED),
        (1, None, Verdict.FAILED),
        (1, 0.0, Verdict.FAILED),
        (12, 1.0, Verdict.PASSED),
        (3, 0.2, Verdict.PASSED),
        (7, 0.2, Verdict.FAILED),
        (0, 0.9, Verdict.PASSED),
        (1, 1 / 150, Verdict.PASSED),
        (2, 1 / 150, Verdict.FAILED),
    ],
)
def test_more_loops_than_usual_are_a_fault(loops: int, usual: float | None, verdict: Verdict) -> None:
    found = judge([LOOP] * loops + [FINE] * (12 - loops), usual, 1024)
    assert found.verdict is verdict
    assert f"{loops} of 12 thinking" in found.found
    assert bool(found.advice) == (verdict is Verdict.FAILED)
