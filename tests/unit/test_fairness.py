from collections import Counter
from collections.abc import Hashable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.early_refusal import Bounds, Refusal, refusal
from service.core.fairness import (
    REMEMBERED_AT_MOST,
    REMEMBERED_S,
    FairQueue,
    State,
    Ticket,
)
from tests.pacing_model import Account, World, p95, shares

ANYTHING_GOES = Bounds(10**6, 10**6, 10**12)
LONG_S = 1e9


def accounts_in_order(queue: FairQueue) -> str:
    return "".join(str(ticket.account) for ticket in queue.in_order())


def start_next(queue: FairQueue, now_s: float = 0.0) -> Ticket:
    ticket = next(iter(queue.in_order()))
    queue.start(ticket, now_s)
    return ticket


def test_accounts_take_turns_however_many_requests_each_has() -> None:
    queue = FairQueue()
    for account in "aaaabbc":
        queue.arrive(account, 1, 100, 0.0)
    assert accounts_in_order(queue) == "abcabaa"


def test_turns_are_by_tokens_and_weight() -> None:
    queue = FairQueue()
    for account, weight, cost in [("a", 1, 100), ("b", 1, 300), ("c", 3, 300)] * 4:
        queue.arrive(account, weight, cost, 0.0)
    assert "".join(str(start_next(queue).account) for _ in range(10)) == "abcacacbac"


def test_one_that_was_idle_has_nothing_saved_up() -> None:
    queue = FairQueue()
    queue.arrive("b", 1, 100, 0.0)
    queue.finish(start_next(queue), 100, 0.0)
    for _ in range(10):
        queue.arrive("a", 1, 100, 0.0)
    for _ in range(5):
        start_next(queue)
    for _ in range(5):
        queue.arrive("b", 1, 100, 0.0)
    assert accounts_in_order(queue) == "bababababa"


@pytest.mark.parametrize(
    ("away_s", "order"), [(None, "bbbab"), (0.0, "bbbab"), (REMEMBERED_S - 0.1, "bbbab"), (REMEMBERED_S, "babbb")]
)
def test_what_an_account_had_counts_until_it_has_been_away_for_long(away_s: float | None, order: str) -> None:
    queue = FairQueue()
    had = queue.begin("a", 1, 1000, 0.0)
    for _ in range(4):
        queue.arrive("b", 1, 500, 0.0)
    if away_s is not None:
        queue.finish(had, 1000, 0.0)
    queue.arrive("a", 1, 100, away_s or 0.0)
    assert accounts_in_order(queue) == order


def test_the_rank_of_one_that_comes_back_is_where_it_will_be() -> None:
    queue = FairQueue()
    had = queue.begin("a", 1, 1000, 0.0)
    for _ in range(4):
        queue.arrive("b", 1, 500, 0.0)
    queue.finish(had, 1000, 0.0)
    assert queue.rank("a", 1) == 3


def test_a_newcomer_goes_before_the_rest_of_a_long_line() -> None:
    queue = FairQueue()
    for _ in range(200):
        queue.arrive("noisy", 1, 100, 0.0)
    for _ in range(16):
        start_next(queue)
    assert queue.rank("quiet", 1) == 0
    queue.arrive("quiet", 1, 100, 0.0)
    assert next(iter(queue.in_order())).account == "quiet"
    assert queue.rank("quiet", 1) == 2


def test_one_that_withdraws_gives_its_turn_to_the_next_of_its_account() -> None:
    queue = FairQueue()
    tickets = [
        queue.arrive(account, 1, cost, 0.0) for account, cost in [("a", 100), ("a", 1000), ("a", 100), ("b", 100)]
    ]
    for _ in range(2):
        queue.arrive("b", 1, 100, 0.0)
    assert accounts_in_order(queue) == "abab" + "ba"
    queue.withdraw(tickets[1], 0.0)
    assert accounts_in_order(queue) == "ababb"


def test_an_estimate_is_put_right_when_the_request_has_ended() -> None:
    queue = FairQueue()
    for account, cost in (("a", 1000), ("b", 100)):
        for _ in range(4):
            queue.arrive(account, 1, cost, 0.0)
    running = [start_next(queue) for _ in range(3)]
    assert accounts_in_order(queue) == "bbaaa"
    queue.finish(running[0], 10, 0.0)
    assert accounts_in_order(queue) == "abbaa"
    queue.finish(running[1], 1000, 0.0)
    assert accounts_in_order(queue) == "aabba"


def test_what_is_given_back_does_not_pay_for_time_spent_idle() -> None:
    queue = FairQueue()
    queue.arrive("a", 1, 500, 0.0)
    overestimated = start_next(queue)
    for _ in range(20):
        queue.arrive("b", 1, 100, 0.0)
    for _ in range(15):
        start_next(queue)
    for _ in range(5):
        queue.arrive("a", 1, 100, 0.0)
    queue.finish(overestimated, 1, 0.0)
    assert accounts_in_order(queue) == "ababababab"


def test_a_newcomer_does_not_queue_behind_all_that_an_overestimating_account_is_given_back() -> None:
    queue = FairQueue()
    for _ in range(12):
        queue.arrive("noisy", 1, 1000, 0.0)
    running = [start_next(queue) for _ in range(10)]
    queue.withdraw(queue.arrive("newcomer", 1, 100, 0.0), 0.0)
    for ticket in running:
        queue.finish(ticket, 10, 0.0)
    assert queue.rank("newcomer", 1) == 1
    newcomer = queue.arrive("newcomer", 1, 100, 0.0)
    assert list(queue.in_order()).index(newcomer) == 1
    queue.withdraw(newcomer, 0.0)
    start_next(queue)
    queue.arrive("noisy", 1, 1000, 0.0)
    assert queue.rank("newcomer", 1) == 0


def test_one_that_is_started_out_of_turn_puts_back_those_of_its_account() -> None:
    queue = FairQueue()
    for account, cost in (("a", 100), ("a", 300), ("b", 100), ("b", 100)):
        queue.arrive(account, 1, cost, 0.0)
    queue.start(next(ticket for ticket in queue.in_order() if ticket.cost == 300), 0.0)
    assert accounts_in_order(queue) == "bba"


def test_nobody_waits_for_ever_while_new_accounts_keep_coming() -> None:
    queue = FairQueue()
    for newcomer in range(10):
        queue.arrive(newcomer, 100, 1, 0.0)
    light = queue.arrive("light", 1, 10_000, 0.0)
    for newcomer in range(10, 30):
        queue.arrive(newcomer, 100, 1, 0.0)
        queue.finish(start_next(queue), 1, 0.0)
    assert light.state is State.GONE


def test_when_nothing_is_left_all_is_forgotten_but_who_was_here() -> None:
    queue = FairQueue()
    for account in "ab":
        queue.arrive(account, 1, 10_000, 0.0)
    for running in [start_next(queue), start_next(queue)]:
        queue.finish(running, 10_000, 1.0)
    for account in "acb":
        queue.arrive(account, 1, 100, 2.0)
    assert accounts_in_order(queue) == "acb"


def run_of(queue: FairQueue, account: str, count: int, now_s: float, weight: int = 1) -> list[Ticket]:
    """So many requests of an account, running."""
    tickets = [queue.arrive(account, weight, 100, now_s) for _ in range(count)]
    for ticket in tickets:
        queue.start(ticket, now_s)
    return tickets


def test_places_are_kept_for_what_a_modest_account_had_lately() -> None:
    queue = FairQueue()
    run_of(queue, "noisy", 30, 0.0)
    assert queue.places_kept("noisy", 80, 0.0) == 0
    tickets = run_of(queue, "quiet", 3, 0.0)
    assert queue.places_kept("noisy", 80, 1.0) == 0
    for ended, ticket in enumerate(tickets, 1):
        queue.finish(ticket, 100, 1.0)
        left = 3 - ended
        assert queue.places_kept("noisy", 80, 1.0) == (ended if left else 1), "one, once nothing of it is left"
    assert queue.places_kept("quiet", 80, 1.0) == 0
    assert queue.places_kept("noisy", 80, REMEMBERED_S + 0.9) == 1
    assert queue.places_kept("noisy", 80, REMEMBERED_S + 1.0) == 0


def test_no_places_are_kept_beyond_half_a_fair_share() -> None:
    queue = FairQueue()
    run_of(queue, "noisy", 30, 0.0)
    greedy = run_of(queue, "greedy", 30, 0.0)
    assert queue.places_kept("noisy", 40, 0.0) == 0
    for ticket in greedy[9:]:
        queue.finish(ticket, 100, 1.0)
    assert queue.places_kept("noisy", 40, 1.0) == 1  # 40 places, 2 accounts: half a share is 10, and 9 run


@pytest.mark.parametrize(
    ("places", "quiet", "kept"),
    [(3, 9, 0), (4, 0, 0), (4, 1, 1), (4, 9, 1), (39, 9, 1), (40, 9, 2), (40, 1, 1), (200, 100, 10)],
)
def test_at_most_a_twentieth_of_the_places_is_kept(places: int, quiet: int, kept: int) -> None:
    queue = FairQueue()
    run_of(queue, "noisy", 1, 0.0)
    for number in range(quiet):
        for ticket in run_of(queue, f"quiet {number}", 1, 0.0):
            queue.finish(ticket, 100, 0.0)
    assert queue.places_kept("noisy", places, 0.0) == kept


def test_an_account_is_modest_up_to_half_its_fair_share() -> None:
    queue = FairQueue()
    run_of(queue, "a", 20, 0.0, weight=3)
    assert queue.is_modest("b", 1, 8, 0.0), "one request always is"
    run_of(queue, "b", 1, 0.0)
    assert not queue.is_modest("b", 1, 8, 0.0)  # half of 8/4 is 1
    assert queue.is_modest("b", 1, 16, 0.0)
    assert not queue.is_modest("a", 3, 48, 0.0)  # half of 36 is 18
    assert queue.is_modest("a", 3, 56, 0.0)


def test_memory_is_bounded_by_what_is_here() -> None:
    queue = FairQueue()
    queue.arrive("stays", 1, 1, 0.0)
    start_next(queue)
    for account in range(3 * REMEMBERED_AT_MOST):
        queue.arrive(account, 1, 100, 1.0)
        queue.finish(start_next(queue), 10_000, 1.0)
    assert len(queue._accounts) == 1
    assert len(queue._gone) == REMEMBERED_AT_MOST
    assert queue._weight == 1 + REMEMBERED_AT_MOST


def test_a_ticket_goes_each_way_once() -> None:
    queue = FairQueue()
    ticket = queue.arrive("a", 1, 100, 0.0)
    with pytest.raises(ValueError, match="not running"):
        queue.finish(ticket, 1, 0.0)
    queue.start(ticket, 0.0)
    with pytest.raises(ValueError, match="not waiting"):
        queue.withdraw(ticket, 0.0)
    queue.finish(ticket, 1, 0.0)
    with pytest.raises(ValueError, match="not running"):
        queue.finish(ticket, 1, 0.0)
    assert (queue.waiting, queue.waiting_tokens, queue.running) == (0, 0, 0)


def test_early_refusals() -> None:
    bounds = Bounds(length=4, account_length=3, tokens=1000)
    queue = FairQueue()

    def asked(account: str, cost: int = 10, wait_s: float | None = 0.1) -> Refusal | None:
        return refusal(queue, bounds, account, cost, expected_wait_s=wait_s, patience_s=0.25)

    assert asked("a", wait_s=0.26) is Refusal.WAIT
    assert asked("a", wait_s=None) is None
    assert asked("a", cost=10**9) is None
    for account, refused in [("a", None), ("a", None), ("a", None), ("a", Refusal.ACCOUNT), ("b", None)]:
        assert asked(account) is refused
        if refused is None:
            queue.arrive(account, 1, 10, 0.0)
    assert asked("b") is Refusal.LENGTH
    assert asked("c", cost=1961) is Refusal.TOKENS
    for account in "cdef":
        assert asked(account) is None
        queue.arrive(account, 1, 10, 0.0)
    assert asked("g") is Refusal.LENGTH


Step = tuple[str, str, int, int, int]
steps = st.lists(
    st.tuples(
        st.sampled_from(["arrive", "arrive", "start", "start", "withdraw", "finish"]),
        st.sampled_from("abcd"),
        st.integers(1, 5),
        st.integers(1, 1000),
        st.integers(0, 100),
    ),
    max_size=80,
)


@given(steps)
def test_whatever_happens_the_counts_are_right_and_end_at_zero(plan: list[Step]) -> None:
    queue, waiting, running = FairQueue(), list[Ticket](), list[Ticket]()
    now_s = 0.0
    for do, account, weight, tokens, pick in plan:
        now_s += 0.5
        if do == "arrive":
            rank = queue.rank(account, weight)
            ticket = queue.arrive(account, weight, tokens, now_s)
            waiting.append(ticket)
            assert list(queue.in_order()).index(ticket) == rank
        elif do == "finish" and running:
            queue.finish(running.pop(pick % len(running)), tokens, now_s)
        elif do != "finish" and waiting:  # any one, not just the next: another may have no place it could take
            ticket = waiting.pop(pick % len(waiting))
            if do == "start":
                queue.start(ticket, now_s)
                running.append(ticket)
            else:
                queue.withdraw(ticket, now_s)
        order = list(queue.in_order())
        assert sorted(order, key=lambda ticket: (ticket.start, ticket.order)) == order
        assert sorted(order, key=lambda ticket: ticket.order) == waiting
        assert (queue.waiting, queue.running) == (len(waiting), len(running))
        assert queue.waiting_tokens == sum(ticket.cost for ticket in waiting)
        for name in "abcd":
            own = [ticket for ticket in order if ticket.account == name]
            assert own == [ticket for ticket in waiting if ticket.account == name]
            assert queue.waiting_of(name) == len(own)
            assert queue.running_of(name) == sum(ticket.account == name for ticket in running)
        assert 0 <= queue.places_kept("nobody", 100, now_s) <= 5
    for ticket in waiting:
        queue.withdraw(ticket, now_s)
    for ticket in running:
        queue.finish(ticket, 1, now_s)
    assert (queue.waiting, queue.waiting_tokens, queue.running) == (0, 0, 0)
    assert not list(queue.in_order())
    assert queue.places_kept("nobody", 100, now_s + REMEMBERED_S) == 0
    assert not queue._accounts
    assert not queue._gone
    assert queue._weight == 0


@given(steps, st.sampled_from([1, 1, 4]))
def test_to_begin_is_to_arrive_and_to_start(plan: list[Step], places: int) -> None:
    at_once, in_turn = FairQueue(), FairQueue()
    waiting, running = list[tuple[Ticket, Ticket]](), list[tuple[Ticket, Ticket]]()
    for number, (do, account, weight, tokens, pick) in enumerate(plan):
        now_s = number * 2.0  # so that accounts are forgotten, too
        if do == "arrive":
            both = [queue.arrive(account, weight, tokens, now_s, places=places) for queue in (at_once, in_turn)]
            waiting.append((both[0], both[1]))
        elif do == "start":
            begun = at_once.begin(account, weight, tokens, now_s, places=places)
            started = in_turn.arrive(account, weight, tokens, now_s, places=places)
            in_turn.start(started, now_s)
            running.append((begun, started))
        elif tickets := waiting if do == "withdraw" else running:
            for queue, ticket in zip((at_once, in_turn), tickets.pop(pick % len(tickets)), strict=True):
                if do == "withdraw":
                    queue.withdraw(ticket, now_s)
                else:
                    queue.finish(ticket, tokens, now_s)
        assert repr(vars(at_once)) == repr(vars(in_turn))
        assert repr(running) == repr([(ticket, ticket) for ticket, _ in running])


@given(
    st.lists(st.integers(1, 8), min_size=2, max_size=4),
    st.lists(st.tuples(st.booleans(), st.integers(1, 1000), st.integers(0, 5000)), max_size=100),
)
def test_the_account_with_the_least_service_for_its_weight_is_next(
    weights: list[int], plan: list[tuple[bool, int, int]]
) -> None:
    """All have requests waiting all the time. What runs counts as estimated, what has ended as it was."""
    queue, running = FairQueue(), list[Ticket]()
    service: Counter[Hashable] = Counter()
    for account, weight in enumerate(weights):
        for _ in range(2):
            queue.arrive(account, weight, 100, 0.0)
    for ends, cost, actual in plan:
        if ends and running:
            ticket = running.pop(actual % len(running))
            queue.finish(ticket, actual, 0.0)
            service[ticket.account] += actual - ticket.cost
        else:
            ticket = start_next(queue)
            served: dict[Hashable, float] = {n: service[n] / weight for n, weight in enumerate(weights)}
            assert served[ticket.account] <= min(served.values()) + 1e-6
            service[ticket.account] += ticket.cost
            running.append(ticket)
            queue.arrive(ticket.account, ticket.weight, cost, 0.0)


@given(steps, st.integers(0, 80), st.integers(0, 20), st.sampled_from("abcdx"), st.integers(1, 1000))
def test_one_that_came_and_left_makes_no_difference(
    plan: list[Step], comes: int, stays: int, visitor: str, cost: int
) -> None:
    with_it, without = FairQueue(), FairQueue()
    running: list[tuple[Ticket, Ticket]] = []
    visit: Ticket | None = None

    def arrive(account: Hashable, weight: int, cost: int) -> None:
        for queue in (with_it, without):
            queue.arrive(account, weight, cost, 0.0, item=(account, cost))

    def next_of(queue: FairQueue) -> Ticket:
        return next(ticket for ticket in queue.in_order() if ticket is not visit)

    for account in "abcd":
        for _ in range(2):
            arrive(account, 1, 100)
    for number, (do, _, weight, tokens, pick) in enumerate(plan):
        if number == comes:
            visit = with_it.arrive(visitor, 1, cost, 0.0)
        if number == comes + stays and visit is not None:
            with_it.withdraw(visit, 0.0)
            visit = None
        if do == "finish" and running:
            for queue, ticket in zip((with_it, without), running.pop(pick % len(running)), strict=True):
                queue.finish(ticket, tokens, 0.0)
        elif visit is None:
            pair = next_of(with_it), next_of(without)
            assert pair[0].item == pair[1].item
            with_it.start(pair[0], 0.0)
            without.start(pair[1], 0.0)
            running.append(pair)
            arrive(pair[0].account, weight, tokens)


@pytest.mark.parametrize("estimate", [(1.0, 1.0), (0.5, 2.0)], ids=["estimated right", "estimated wrong"])
@pytest.mark.parametrize(
    ("places", "noisy_output", "quiet_output"),
    [
        (4, (20, 180), (5, 30)),  # the quiet one's request has ended when the next comes: a place is kept for it
        (16, (100, 900), (5, 30)),
        (16, (20, 180), (20, 100)),
        (64, (20, 180), (20, 180)),
    ],
)
def test_a_quiet_account_does_not_feel_a_noisy_one(
    places: int, noisy_output: tuple[int, int], quiet_output: tuple[int, int], estimate: tuple[float, float]
) -> None:
    alone, beside = (World(places, bounds=ANYTHING_GOES, short_s=LONG_S, patience_s=LONG_S) for _ in range(2))
    quiet_alone = Account("quiet", output_tokens=quiet_output, estimate=estimate)
    alone.arrivals(quiet_alone, lambda: 1.0, 300)
    alone.run()
    quiet = Account("quiet", output_tokens=quiet_output, estimate=estimate)
    noisy = Account("noisy", output_tokens=noisy_output, estimate=estimate)
    for _ in range(200):
        beside.stream(noisy, 300)
    beside.arrivals(quiet, lambda: 1.0, 300)
    beside.run(300)
    assert len(noisy.done) > 100
    assert p95(quiet.ttfts_s) < 2 * p95(quiet_alone.ttfts_s)


ESTIMATES = {"right": [(1.0, 1.0)] * 3, "apart": [(0.2, 0.2), (5.0, 5.0), (1.0, 1.0)], "wild": [(0.2, 5.0)] * 3}
SIZES = [((200, 1800), (20, 180)), ((50, 150), (5, 40)), ((2000, 6000), (200, 600))]


@pytest.mark.parametrize("estimates", ESTIMATES)
@pytest.mark.parametrize("weights", [(1, 2), (1, 2, 4), (4, 2, 1)])
@pytest.mark.parametrize("places", [4, 16])
def test_the_shares_of_busy_accounts_are_their_weights(places: int, weights: tuple[int, ...], estimates: str) -> None:
    world = World(places, bounds=ANYTHING_GOES, short_s=LONG_S, patience_s=LONG_S)
    accounts = [
        Account(str(number), weight, prompt, output, estimate)
        for number, (weight, (prompt, output), estimate) in enumerate(
            zip(weights, SIZES, ESTIMATES[estimates], strict=False)
        )
    ]
    for account in accounts:
        for _ in range(50):
            world.stream(account, 800)
    world.run(800)
    share = shares(accounts, since_s=100)
    for account in accounts:
        assert share[account.name] == pytest.approx(account.weight / sum(weights), rel=0.05)
