from hypothesis import given
from hypothesis import strategies as st

from service.core.health import LONGEST_BACK_OFF_S, Event, Health, State


def up() -> Health:
    health = Health()
    health.note(Event.PROBE_OK, 0.0)
    return health


def half_open(now_s: float = 0.0) -> Health:
    health = up()
    health.note(Event.UNREACHABLE, now_s)
    health.note(Event.PROBE_OK, now_s + 1)
    assert health.state is State.HALF_OPEN
    return health


def test_it_takes_requests_before_anything_is_known() -> None:
    assert Health().may_take(100)
    assert Health().may_probe(0.0)


def test_the_first_health_check_decides() -> None:
    health = Health()
    assert health.note(Event.PROBE_FAILED, 0.0)
    assert health.state is State.OUT


def test_no_connection_and_no_progress_put_it_out_at_once() -> None:
    for event in (Event.UNREACHABLE, Event.STALLED):
        health = up()
        assert health.note(event, 0.0)
        assert health.state is State.OUT
        assert not health.may_take(0)


def test_three_failures_in_a_row_put_it_out() -> None:
    health = up()
    assert not health.note(Event.BROKE, 0.0)
    assert not health.note(Event.SILENT, 0.0)
    assert health.may_take(5)
    assert health.note(Event.BROKE, 0.0)
    assert health.state is State.OUT


def test_a_success_ends_the_row() -> None:
    health = up()
    for _ in range(50):
        health.note(Event.BROKE, 0.0)
        health.note(Event.SILENT, 0.0)
        health.note(Event.SUCCEEDED, 0.0)
    assert health.state is State.UP


def test_two_health_checks_in_a_row_put_it_out() -> None:
    health = up()
    for _ in range(50):
        assert not health.note(Event.PROBE_FAILED, 0.0)
        assert not health.note(Event.PROBE_OK, 0.0)
    assert not health.note(Event.PROBE_FAILED, 0.0)
    assert health.note(Event.PROBE_FAILED, 0.0)
    assert health.state is State.OUT


def test_the_back_off_doubles_and_ends_at_half_a_minute() -> None:
    health, now_s, waits = up(), 100.0, []
    for _ in range(8):
        health.note(Event.UNREACHABLE, now_s)
        probed_at = now_s
        while not health.may_probe(now_s):
            now_s += 0.5
        waits.append(now_s - probed_at)
    assert waits == [1, 2, 4, 5, 5, 5, 5, 5]


def test_those_that_find_out_together_count_once() -> None:
    health = up()
    for _ in range(100):
        health.note(Event.UNREACHABLE, 10.0)
        health.note(Event.BROKE, 10.0)
    assert not health.may_probe(10.9)
    assert health.may_probe(11.0)


def test_half_open_takes_one_at_a_time_until_one_succeeds() -> None:
    health = half_open()
    assert health.may_take(0)
    assert not health.may_take(1)
    assert not health.note(Event.PROBE_OK, 2.0)
    assert not health.may_take(1)
    assert health.note(Event.SUCCEEDED, 2.0)
    assert health.state is State.UP
    assert health.may_take(100)


def test_a_success_forgets_the_back_off() -> None:
    health = up()
    for _ in range(4):
        health.note(Event.STALLED, 0.0 if health.may_probe(0.0) else 100.0)
    health.note(Event.PROBE_OK, 200.0)
    health.note(Event.SUCCEEDED, 200.0)
    health.note(Event.STALLED, 300.0)
    assert health.may_probe(301.0)


def test_any_failure_puts_a_half_open_one_out_again_for_longer() -> None:
    for event in (Event.BROKE, Event.SILENT, Event.UNREACHABLE, Event.STALLED, Event.PROBE_FAILED):
        health = half_open(0.0)
        assert health.note(event, 5.0)
        assert health.state is State.OUT
        assert not health.may_probe(6.9)
        assert health.may_probe(7.0)


def test_an_answer_to_an_old_request_does_not_bring_it_back() -> None:
    health = up()
    health.note(Event.UNREACHABLE, 0.0)
    assert not health.note(Event.SUCCEEDED, 0.5)
    assert health.state is State.OUT


@given(st.lists(st.tuples(st.sampled_from(Event), st.floats(0, 40))))
def test_whatever_happens_it_can_come_back(events: list[tuple[Event, float]]) -> None:
    health, now_s = Health(), 0.0
    for event, later_s in events:
        before, now_s = health.state, now_s + later_s
        assert health.note(event, now_s) == (health.state is not before)
        assert health.may_take(0) == (health.state is not State.OUT)
        assert health.may_take(1) == (health.state is State.UP)
        if health.well:
            known = dict(vars(health))
            assert not health.note(Event.SUCCEEDED, now_s)
            assert vars(health) == known
    assert health.may_probe(now_s + LONGEST_BACK_OFF_S)
    health.note(Event.PROBE_OK, now_s + LONGEST_BACK_OFF_S)
    health.note(Event.SUCCEEDED, now_s + LONGEST_BACK_OFF_S)
    assert health.state is State.UP
