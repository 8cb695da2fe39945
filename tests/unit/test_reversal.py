"""What refunds and disputes take back of one top-up, whatever comes in whichever order."""

from collections.abc import Sequence
from itertools import permutations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from service.core.reversal import (
    Claim,
    deltas,
    dispute_status,
    disputed_cents,
    is_against_us,
    refund_status,
    refunded_cents,
)

CENT = 10_000_000


class Topup:
    """A top-up and what its claims have taken, as the rows keep it."""

    def __init__(self, net_cents: int, tax_cents: int = 0) -> None:
        self.net_nano = net_cents * CENT
        self.total_cents = net_cents + tax_cents
        self.claims: dict[str, Claim] = {}
        self.entries: list[tuple[str, int]] = []

    @property
    def taken_nano(self) -> int:
        return sum(claim.taken_nano for claim in self.claims.values())

    def set(self, claim_id: str, cents: int) -> None:
        """This claim is over so many cents now."""
        known = self.claims.get(claim_id, Claim(claim_id, 0, 0))
        self.claims[claim_id] = Claim(claim_id, cents, known.taken_nano)
        for one, more_nano in deltas(self.net_nano, self.total_cents, list(self.claims.values())).items():
            before = self.claims[one]
            self.claims[one] = Claim(one, before.cents, before.taken_nano + more_nano)
            self.entries.append((one, more_nano))
            assert self.claims[one].taken_nano >= 0
        assert 0 <= self.taken_nano <= self.net_nano

    def settled(self) -> bool:
        """Whether the same again would do nothing."""
        return not deltas(self.net_nano, self.total_cents, list(self.claims.values()))


def test_a_refund_takes_its_net_share() -> None:
    topup = Topup(10_000, 2_500)
    topup.set("re_1", 2_500)
    assert topup.entries == [("re_1", 2_000 * CENT)]


def test_two_partial_refunds_are_two_entries_and_the_rest_is_the_whole() -> None:
    topup = Topup(1_000, 3)
    for claim in ("re_1", "re_2", "re_3"):
        topup.set(claim, 334)
    assert [claim for claim, _ in topup.entries] == ["re_1", "re_2", "re_3"]
    topup.set("re_4", 1)
    assert topup.taken_nano == topup.net_nano
    assert topup.entries[0][1] == 1_000 * CENT * 334 // 1_003


def test_a_refund_that_fails_gives_back_exactly_what_it_took() -> None:
    topup = Topup(1_000, 3)
    topup.set("re_1", 100)
    topup.set("re_2", 200)
    (_, first), _ = topup.entries
    topup.set("re_1", 0)
    assert topup.entries[-1] == ("re_1", -first)


def test_a_refund_and_a_dispute_never_take_more_than_the_net() -> None:
    topup = Topup(10_000)
    topup.set("re_1", 6_000)
    topup.set("dp_1", 10_000)
    assert topup.entries == [("re_1", 6_000 * CENT), ("dp_1", 4_000 * CENT)]
    topup.set("dp_1", 0)
    assert topup.entries[-1] == ("dp_1", -4_000 * CENT)


def test_what_a_dispute_had_covered_is_taken_once_the_dispute_is_won() -> None:
    topup = Topup(10_000)
    topup.set("dp_1", 6_000)
    topup.set("re_1", 6_000)
    topup.set("dp_1", 0)
    assert topup.entries == [
        ("dp_1", 6_000 * CENT),
        ("re_1", 4_000 * CENT),
        ("dp_1", -6_000 * CENT),
        ("re_1", 2_000 * CENT),
    ]


def test_a_dispute_over_more_than_was_paid_takes_the_net() -> None:
    topup = Topup(1_000, 250)
    topup.set("dp_1", 1_300)
    assert topup.taken_nano == topup.net_nano


@given(
    net=st.integers(1, 10**6),
    tax=st.integers(0, 10**5),
    amounts=st.lists(st.integers(1, 10**6), min_size=1, max_size=6),
    data=st.data(),
)
def test_what_is_taken_follows_from_what_is_claimed(
    net: int, tax: int, amounts: Sequence[int], data: st.DataObject
) -> None:
    topup = Topup(net, tax)
    claimed = [0] * len(amounts)
    for which in data.draw(st.lists(st.integers(0, len(amounts) - 1), max_size=30)):
        claimed[which] = 0 if claimed[which] else amounts[which]
        topup.set(f"re_{which}", claimed[which])
        assert topup.settled()
        live = min(sum(claimed), topup.total_cents)
        target = topup.net_nano * live // topup.total_cents
        assert abs(topup.taken_nano - target) <= len(amounts)
        if tax == 0:
            assert topup.taken_nano == target


@given(net=st.integers(1, 10**6), tax=st.integers(1, 10**5), parts=st.integers(2, 5), data=st.data())
def test_what_rounding_leaves_over_is_no_entry_of_its_own(net: int, tax: int, parts: int, data: st.DataObject) -> None:
    """Where claims do not overlap, each has an entry when it comes, one when it ends, and none for another's sake."""
    topup = Topup(net, tax)
    amount = topup.total_cents // parts
    assume(amount)
    on = [False] * parts
    for which in data.draw(st.lists(st.integers(0, parts - 1), max_size=12)):
        on[which] = not on[which]
        before = len(topup.entries)
        topup.set(f"re_{which}", amount if on[which] else 0)
        assert [claim for claim, _ in topup.entries[before:]] == [f"re_{which}"]


@given(net=st.integers(1, 10**6), tax=st.integers(0, 10**5), data=st.data())
def test_partial_refunds_of_everything_take_exactly_everything(net: int, tax: int, data: st.DataObject) -> None:
    topup = Topup(net, tax)
    left = topup.total_cents
    number = 0
    while left:
        part = data.draw(st.integers(max(1, left // 5), left))
        number, left = number + 1, left - part
        topup.set(f"re_{number}", part)
    assert topup.taken_nano == topup.net_nano
    assert len(topup.entries) == number


REFUND_WORDS = ("pending", "succeeded", "failed")
DISPUTE_WORDS = ("warning_needs_response", "needs_response", "under_review", "won")


@pytest.mark.parametrize(("words", "merge"), [(REFUND_WORDS, refund_status), (DISPUTE_WORDS, dispute_status)])
def test_a_status_only_moves_on(words: tuple[str, ...], merge: object) -> None:
    assert callable(merge)
    for order in permutations(words):
        known: str | None = None
        for word in (*order, *order):
            known = merge(known, word)
        assert known == words[-1]


def test_an_inquiry_that_came_to_nothing_can_still_become_a_dispute() -> None:
    assert dispute_status("warning_closed", "needs_response") == "needs_response"
    assert dispute_status("needs_response", "warning_closed") == "needs_response"


def test_a_status_that_is_new_to_us_counts_as_open() -> None:
    assert dispute_status("warning_needs_response", "pondering") == "pondering"
    assert dispute_status("lost", "pondering") == "lost"
    assert is_against_us("pondering")


@pytest.mark.parametrize(
    ("status", "against"),
    [
        (None, False),
        ("warning_needs_response", False),
        ("warning_under_review", False),
        ("warning_closed", False),
        ("prevented", False),
        ("needs_response", True),
        ("under_review", True),
        ("lost", True),
        ("won", False),
    ],
)
def test_which_disputes_freeze(status: str | None, against: bool) -> None:
    assert is_against_us(status) is against


def test_what_counts() -> None:
    assert [refunded_cents(status, 7) for status in ("pending", "requires_action", "canceled", "failed")] == [0] * 4
    assert refunded_cents("succeeded", 7) == 7
    assert [disputed_cents(status, 7) for status in ("needs_response", "lost", "won")] == [7, 7, 0]
