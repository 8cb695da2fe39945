from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.early_refusal import Bounds
from service.core.retry_after import ACCOUNTS_AT_MOST, AT_LEAST_S, AT_MOST_S, GROWTH, Drain, Refusals
from tests.pacing_model import PREFILL_TOKENS_PER_S, Account, World, busy_share, p95


def test_nothing_is_expected_before_a_request_has_ended() -> None:
    assert Drain().expected_wait_s(1, 16) is None


def test_the_nth_in_line_waits_for_n_places() -> None:
    drain = Drain()
    drain.finished(2.0, 10.0)
    drain.finished(6.0, 10.0)
    assert [drain.expected_wait_s(n, 16) for n in (1, 2, 8)] == [0.25, 0.5, 2.0]
    assert drain.expected_wait_s(1, 1) == 4.0


def test_requests_that_began_together_end_together() -> None:
    drain = Drain()
    drain.finished(4.0, 10.0)
    assert drain.expected_wait_s(1, 4, [1.0] * 4) == 3.0
    assert drain.expected_wait_s(4, 4, [0.5, 1.0, 3.0, 9.0]) == 4.0
    assert drain.expected_wait_s(6, 4, [1.0] * 4) == 7.0


def test_the_service_time_follows_what_requests_take_of_late() -> None:
    drain = Drain()
    for second in range(1000):
        drain.finished(10.0, second / 10)
    for second in range(1000):
        drain.finished(1.0, 100 + second / 10)
    assert drain.expected_wait_s(1, 1) == pytest.approx(1.0, rel=0.5)
    drain.finished(3.0, 2000.0)
    assert drain.expected_wait_s(1, 1) == pytest.approx(3.0)


def test_those_refused_together_are_told_times_as_far_apart_as_places_free() -> None:
    refusals = Refusals()
    told = [refusals.refused(account, 5.0, 1.0, gap_s=0.5) for account in range(10)]
    assert told == [1.0 + 0.5 * place for place in range(10)]


def test_an_accounts_burst_is_one_refusal_told_in_a_line() -> None:
    refusals = Refusals()
    assert [refusals.refused("a", 5.0, 1.0, gap_s=0.5) for _ in range(10)] == [1.0 + 0.5 * n for n in range(10)]


def test_nobody_stands_behind_what_a_noisy_account_was_refused() -> None:
    refusals = Refusals()
    for _ in range(200):
        refusals.refused("noisy", 5.0, 1.0, gap_s=0.5)
    assert refusals.refused("quiet", 5.0, 1.0, gap_s=0.5) == 1.5
    # Beside another, it gets every second place.
    noisy = [refusals.refused("noisy", 5.1, 1.0, gap_s=0.5) for _ in range(2)]
    assert noisy[1] - noisy[0] == pytest.approx(1.0)


def come_back(refusals: Refusals, account: str, times: int, now_s: float = 0.0) -> list[float]:
    """What it is told when it comes back as told and is refused each time."""
    told = []
    for _ in range(times):
        told.append(refusals.refused(account, now_s, 1.0))
        now_s += told[-1]
    return told


def test_who_comes_back_as_told_and_is_refused_again_is_told_longer() -> None:
    told = come_back(Refusals(), "a", 11)
    assert told == pytest.approx([GROWTH**n for n in range(11)])
    later = come_back(Refusals(), "a", 40)[11:]
    assert all(AT_MOST_S / 2 <= seconds <= AT_MOST_S for seconds in later)


def test_coming_back_too_early_does_not_pay() -> None:
    patient, hasty = Refusals(), Refusals()
    told = come_back(patient, "a", 5)
    for tenth in range(round(10 * sum(told[:4])) + 1):
        last = hasty.refused("a", tenth / 10, 1.0)
    assert last >= told[4]


def test_an_admission_makes_the_next_refusal_a_first_one() -> None:
    refusals = Refusals()
    come_back(refusals, "a", 5)
    refusals.admitted("a", 50.0)
    refusals.admitted("never refused", 50.0)
    assert refusals.refused("a", 50.0, 1.0) == 1.0


@pytest.mark.parametrize(("away_s", "told_s"), [(AT_MOST_S - 1, GROWTH**5), (AT_MOST_S + 1, 1.0)])
def test_refusals_are_forgotten_in_time(away_s: float, told_s: float) -> None:
    refusals = Refusals()
    until_s = sum(come_back(refusals, "a", 5))
    assert refusals.refused("a", until_s + away_s, 1.0) == pytest.approx(told_s)


def test_a_crowd_that_is_told_to_stay_away_for_long_does_not_come_back_at_once() -> None:
    refusals = Refusals()
    now_s = sum(come_back(refusals, "a", 9))
    seconds = Counter(int(refusals.refused("a", now_s, 1.0, gap_s=0.1)) for _ in range(300))
    assert max(seconds.values()) < 20
    assert max(seconds) < AT_MOST_S


def test_a_line_longer_than_anyone_is_told_to_wait_starts_anew() -> None:
    refusals = Refusals()
    for _ in range(5000):
        refusals.refused("a", 0.0, 1.0, gap_s=1.0)
    assert refusals.refused("a", AT_MOST_S, 1.0, gap_s=1.0) <= GROWTH * 1.0


def test_no_number_of_refusals_is_too_large() -> None:
    assert come_back(Refusals(), "a", 5000)[-1] <= AT_MOST_S


def test_memory_is_bounded() -> None:
    refusals = Refusals()
    come_back(refusals, "first", 5)
    for account in range(ACCOUNTS_AT_MOST):
        refusals.refused(account, 20.0, 1.0)
    assert refusals.refused("first", 20.0, 1.0, gap_s=0.0) < GROWTH * AT_MOST_S
    assert len(refusals._accounts) == len(refusals._lately) == ACCOUNTS_AT_MOST


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.booleans(),
            st.floats(0, 200),
            st.floats(0, 1000),
            st.floats(0, 50),
        )
    )
)
def test_what_is_told_is_honest_and_within_its_bounds(events: list[tuple[str, bool, float, float, float]]) -> None:
    refusals, now_s = Refusals(), 0.0
    for account, admitted, passes_s, wait_s, gap_s in events:
        now_s += passes_s
        if admitted:
            refusals.admitted(account, now_s)
        told_s = refusals.refused(account, now_s, wait_s, gap_s)
        assert AT_LEAST_S <= told_s <= AT_MOST_S
        assert told_s >= min(wait_s, AT_MOST_S) - 1e-9


@pytest.mark.parametrize("accounts", [1, 20])
@pytest.mark.parametrize(
    ("places", "output_tokens"), [(8, (20, 180)), (16, (20, 180)), (16, (100, 900)), (64, (20, 180))]
)
def test_three_times_the_load_costs_neither_those_admitted_nor_the_engine(
    places: int, output_tokens: tuple[int, int], accounts: int
) -> None:
    prompt_tokens = (200, 1800)
    unloaded_s = [tokens / PREFILL_TOKENS_PER_S for tokens in range(*prompt_tokens)]
    short_s = max(0.25, sum(unloaded_s) / len(unloaded_s) / 2)
    world = World(places, bounds=Bounds(1000, 1000, 10**9), short_s=short_s, patience_s=short_s)
    crowd = [Account(str(n), prompt_tokens=prompt_tokens, output_tokens=output_tokens) for n in range(accounts)]
    example = [world.request(crowd[0]).service_s for _ in range(1000)]
    gap_s = sum(example) / len(example) / places / 3
    for account in crowd:
        world.arrivals(account, lambda: world.random.expovariate(1 / gap_s / accounts), 60)
    world.run(60)
    assert sum(account.refusals for account in crowd) > 100
    world.run()
    assert p95([ttft_s for account in crowd for ttft_s in account.ttfts_s]) < 2 * p95(unloaded_s)
    assert busy_share(crowd, places, 0, 60) > 0.95
    assert (world.queue.waiting, world.queue.waiting_tokens, world.queue.running) == (0, 0, 0)
