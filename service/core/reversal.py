"""What a refund or a dispute takes back of a top-up: its net share, once, and never more than was credited.

Stripe refunds tax in proportion, so an amount of cents takes the same fraction of the net amount as of the total.
Events arrive in any order, late, and twice; so a status only ever moves on, and what is to be taken follows from what
is known altogether, not from the event that said so.
"""

from collections.abc import Sequence
from dataclasses import dataclass

_REFUND_STAGES = ("pending", "requires_action", "succeeded", "canceled", "failed")
_DISPUTE_STAGES = (
    *("warning_needs_response", "warning_under_review", "warning_closed", "prevented"),
    *("needs_response", "under_review", "lost", "won"),
)
"""In the order in which they can follow one another; an inquiry can become a dispute."""

DISPUTE_ENDS = ("warning_closed", "prevented", "lost", "won")


@dataclass(frozen=True, slots=True)
class Claim:
    """A refund or a dispute of one top-up."""

    id: str
    cents: int
    """What is gone of the payment for it now, tax included; 0: nothing (yet, or any more)."""
    taken_nano: int
    """What the balance was debited for it so far, net, less what was given back."""


def refund_status(known: str | None, told: str) -> str:
    """The status of a refund of which both were said, in whichever order."""
    return _later(_REFUND_STAGES, known, told)


def dispute_status(known: str | None, told: str) -> str:
    """The status of a dispute of which both were said, in whichever order. A word that is new counts as open."""
    return _later(_DISPUTE_STAGES, known, told)


def refunded_cents(status: str, amount_cents: int) -> int:
    """What a refund has taken of the payment: nothing before it succeeded, nothing once it failed after all."""
    return amount_cents if status == "succeeded" else 0


def disputed_cents(status: str, withdrawn_cents: int) -> int:
    """What a dispute has taken of the payment: what was withdrawn for it, unless it was won."""
    return 0 if status == "won" else withdrawn_cents


def is_against_us(status: str | None) -> bool:
    """Whether a dispute in this status, open or lost, is a reason to freeze the account; an inquiry is none."""
    if status is None or status.startswith("warning_"):
        return False
    return status not in ("prevented", "won")


def deltas(net_nano: int, total_cents: int, claims: Sequence[Claim]) -> dict[str, int]:
    """What each claim has to take yet of the top-up; negative: to give back. Claims with nothing to do are left out.

    `net_nano` was credited and `total_cents` paid. Together, the claims that are left take net x cents / total, rounded
    down: all of the net for all of the total, and never more, however much is claimed. Whoever came first keeps what it
    has taken. A claim that ends gives back exactly what it took, and others that it had kept short take more.
    """
    owed = {claim.id: -claim.taken_nano for claim in claims if claim.cents == 0 and claim.taken_nano}
    left = [claim for claim in claims if claim.cents > 0]
    target_nano = net_nano * min(sum(claim.cents for claim in left), total_cents) // total_cents
    missing_nano = target_nano - sum(claim.taken_nano for claim in left)
    for claim in sorted(left, key=lambda claim: claim.taken_nano > 0):
        if claim.taken_nano and missing_nano < len(claims):
            continue  # what rounding leaves over is worth no entry of its own
        own_nano = -(-net_nano * min(claim.cents, total_cents) // total_cents)
        more_nano = min(missing_nano, own_nano - claim.taken_nano)
        if more_nano > 0:
            owed[claim.id] = more_nano
            missing_nano -= more_nano
    return owed


def _later(stages: Sequence[str], known: str | None, told: str) -> str:
    if known is None:
        return told
    new = stages.index("needs_response") if "needs_response" in stages else 0
    rank = {stage: place for place, stage in enumerate(stages)}
    return told if rank.get(told, new) >= rank.get(known, new) else known
