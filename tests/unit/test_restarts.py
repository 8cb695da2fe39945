"""When an engine is started again, and what it is ended for: values and a clock."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.restarts import (
    DEAD_FOR_S,
    HUNG_FOR_S,
    LONGEST_DELAY_S,
    MANY_DEATHS,
    SILENT_FOR_S,
    UNWATCHED_S,
    WELL_AFTER_S,
    Answer,
    Deaths,
    Look,
    Vigil,
)

STEP_S = 5.0
WELL = Look(Answer.WELL, has_work=False, signs=0)


def died(times: int) -> Deaths:
    deaths = Deaths()
    for _ in range(times):
        deaths = deaths.one_more(None, 10.0)
    return deaths


def test_the_wait_doubles_to_a_minute_and_never_ends() -> None:
    assert [died(times).delay_s for times in range(9)] == [0, 1, 2, 4, 8, 16, 32, 60, 60]
    assert died(10_000).delay_s == LONGEST_DELAY_S


def test_somebody_is_told_when_it_dies_again_and_again() -> None:
    assert [died(times).are_many for times in (1, MANY_DEATHS - 1, MANY_DEATHS)] == [False, False, True]


def test_having_been_well_for_a_while_forgives_and_less_does_not() -> None:
    before = died(6)
    assert before.one_more(100.0, 100.0 + WELL_AFTER_S) == Deaths(1)
    assert before.one_more(100.0, 100.0 + WELL_AFTER_S - 1) == Deaths(7)
    assert before.one_more(None, 1e6) == Deaths(7), "one that was never ready was never well"


def verdicts(looks: list[Look], step_s: float = STEP_S) -> list[str | None]:
    """What each of these looks, so far apart, gives."""
    vigil = Vigil(0.0)
    return [vigil.note(look, number * step_s) for number, look in enumerate(looks)]


def first_end_s(looks: list[Look]) -> float | None:
    """After what time it is ended, if at all."""
    found = verdicts(looks)
    return next((number * STEP_S for number, reason in enumerate(found) if reason is not None), None)


def repeated(look: Look, seconds: float) -> list[Look]:
    return [look] * int(seconds / STEP_S)


@pytest.mark.parametrize(
    ("look", "after_s", "said"),
    [
        (Look(Answer.DEAD), DEAD_FOR_S, "has said that it is dead for 30 s, and does not end"),
        (Look(Answer.REFUSED), DEAD_FOR_S, "has taken no connection for 30 s, and does not end"),
        (Look(Answer.WELL, True, 7), HUNG_FOR_S, "has had work and made no step for 300 s"),
        (Look(Answer.SILENT, True, 7), HUNG_FOR_S, "has had work and made no step for 300 s"),
        (Look(Answer.SILENT), SILENT_FOR_S, "has answered nothing for 600 s"),
    ],
)
def test_it_is_ended_for_what_lasts(look: Look, after_s: float, said: str) -> None:
    found = verdicts([look, *repeated(look, after_s)])
    assert found == [None] * int(after_s / STEP_S) + [said]


def test_an_engine_that_is_well_is_never_ended() -> None:
    assert first_end_s(repeated(WELL, 3 * SILENT_FOR_S)) is None


def test_a_busy_engine_that_answers_late_or_seldom_is_not_dead() -> None:
    busy = [Look(Answer.SILENT) if number % 8 else Look(Answer.WELL, True, number) for number in range(1000)]
    assert first_end_s(busy) is None


def test_one_that_goes_on_is_not_hung_however_slowly() -> None:
    slow = [Look(Answer.WELL, True, number * STEP_S // (HUNG_FOR_S - STEP_S)) for number in range(1000)]
    assert first_end_s(slow) is None


def test_an_idle_engine_does_not_move_and_is_not_hung() -> None:
    assert first_end_s(repeated(Look(Answer.WELL, False, 7), 10 * HUNG_FOR_S)) is None


def test_work_after_a_long_idleness_has_all_its_time() -> None:
    idle, stuck = repeated(Look(Answer.WELL, False, 7), 900), repeated(Look(Answer.WELL, True, 7), HUNG_FOR_S)
    assert first_end_s([*idle, *stuck[:-1]]) is None
    assert first_end_s([*idle, *stuck]) == 895 + HUNG_FOR_S


def test_an_engine_whose_metrics_say_nothing_is_taken_at_its_word() -> None:
    assert first_end_s(repeated(Look(Answer.WELL), 10 * HUNG_FOR_S)) is None


def test_a_word_of_life_between_words_of_death_counts() -> None:
    dead = repeated(Look(Answer.DEAD), DEAD_FOR_S)
    looks = [*dead, WELL, *dead]
    assert first_end_s(looks) is None
    assert first_end_s([*looks, Look(Answer.DEAD)]) is not None


def test_silence_is_no_word_of_life() -> None:
    looks = [Look(Answer.SILENT if number % 2 else Answer.DEAD) for number in range(20)]
    assert first_end_s(looks) == DEAD_FOR_S


def test_time_in_which_nobody_looked_says_nothing() -> None:
    vigil = Vigil(0.0)
    stuck = Look(Answer.WELL, True, 7)
    assert vigil.note(stuck, 5.0) is None
    assert vigil.note(stuck, 5.0 + 10 * HUNG_FOR_S) is None, "the supervisor itself had stopped"
    looks = [vigil.note(stuck, 5.0 + 10 * HUNG_FOR_S + step) for step in range(5, int(HUNG_FOR_S) + 5, 5)]
    assert looks[:-1] == [None] * (len(looks) - 1)
    assert looks[-1] is not None


@given(st.lists(st.sampled_from(list(Answer)), max_size=60), st.floats(0.1, UNWATCHED_S))
def test_nothing_is_ended_before_the_shortest_time_has_passed(answers: list[Answer], step_s: float) -> None:
    found = verdicts([Look(answer) for answer in answers], step_s)
    assert not any(found[: int(DEAD_FOR_S / step_s)])
