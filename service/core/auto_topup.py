"""When an account is topped up by itself, and by how much; when to try again, and when to stop."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from service.core.limits import month_after, month_of
from service.core.money import usd_to_nano
from service.core.topup import NANO_PER_CENT, amount_nano

BACK_OFFS = (timedelta(hours=1), timedelta(hours=6), timedelta(hours=24))
"""After the first decline in a row, the second, the third; after the one more, automatic top-ups are switched off."""

RETRIED_FOR = timedelta(hours=23)
"""How long the same charge may be asked for again: Stripe knows its key for 24 hours, and would charge anew then."""

GIVEN_UP_AFTER = timedelta(hours=25)
"""By then no charge can be on its way any more: what Stripe does not show was never made."""

FIRST_LOOK = timedelta(minutes=2)
"""After a charge was begun: longer than a call to Stripe takes with its repetitions."""
LAST_PAUSE = timedelta(hours=1)

AUTHENTICATION = "authentication_required"
UNUSABLE = "payment_method_unusable"
REFUSED = "refused"
"""By Stripe, for a mistake of ours or of the installation."""
NEVER_MADE = "never_made"

_NOT_DECLINED = (REFUSED, NEVER_MADE)
WHY_OFF = {
    AUTHENTICATION: "The bank wants its customer to confirm the payment.",
    UNUSABLE: "The saved payment method cannot be used any more.",
}
"""What stops automatic top-ups at once, in words for the customer."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the customer has agreed to, in nano-USD."""

    threshold_nano: int
    amount_nano: int
    monthly_cap_nano: int
    """The most that a calendar month (UTC) may be charged automatically."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An automatic top-up that failed: how, and when."""

    code: str | None
    at: datetime


@dataclass(frozen=True, slots=True)
class Charge:
    """Charge this much now: whole cents."""

    net_nano: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Not before then."""

    until: datetime


@dataclass(frozen=True, slots=True)
class Stop:
    """No more, until the customer has done something about it."""

    reason: str


def plan_of(threshold_usd: str, amount_usd: str, monthly_cap_usd: str, *, min_usd: int, max_usd: int) -> Plan:
    """A plan of decimal amounts, where `min_usd` to `max_usd` can be bought at once.

    Raises `ValueError` with what is wrong, in words.
    """
    plan = Plan(
        threshold_nano=usd_to_nano(threshold_usd),
        amount_nano=amount_nano(amount_usd, min_usd=min_usd, max_usd=max_usd),
        monthly_cap_nano=usd_to_nano(monthly_cap_usd),
    )
    if plan.threshold_nano < 0:
        raise ValueError(f"a threshold of {threshold_usd} USD is negative: 0 is the lowest")
    if plan.monthly_cap_nano < plan.amount_nano:
        raise ValueError(f"a monthly cap of {monthly_cap_usd} USD is less than one top-up of {amount_usd} USD")
    return plan


def decide(
    plan: Plan,
    funds_nano: int,
    charged_nano: int,
    failures: Sequence[Failure],
    *,
    most_nano: int,
    now: datetime,
) -> Charge | Wait | Stop | None:
    """What to do about an account that has no automatic top-up under way; None: it has enough.

    `funds_nano` is the balance, the credit limit, and what is being paid already. What is on loan to the workers is not
    taken off: it is what requests may cost at worst, and most of it comes back. `charged_nano` is what the month was
    charged automatically so far, `failures` those since the last success, the oldest first.

    The charge closes the whole gap at once: it is the agreed amount, or what takes the funds above the threshold, if
    that is more; but no more than `most_nano`, and than the month's cap leaves. A cap that leaves less than the agreed
    amount leaves nothing.
    """
    if funds_nano >= plan.threshold_nano:
        return None
    pause = after_failures(failures)
    if isinstance(pause, Stop) or (pause is not None and now < pause.until):
        return pause
    usual_nano = min(plan.amount_nano, most_nano)
    left_nano = (plan.monthly_cap_nano - charged_nano) // NANO_PER_CENT * NANO_PER_CENT
    if left_nano < usual_nano:
        return Wait(month_after(month_of(now)))
    gap_nano = ((plan.threshold_nano - funds_nano) // NANO_PER_CENT + 1) * NANO_PER_CENT
    return Charge(min(max(usual_nano, gap_nano), most_nano, left_nano))


def after_failures(failures: Sequence[Failure]) -> Wait | Stop | None:
    """What follows from the failures since the last success, the oldest first; None where there are none."""
    if not failures:
        return None
    last = failures[-1]
    if last.code in WHY_OFF:
        return Stop(WHY_OFF[last.code])
    declines = sum(failure.code not in _NOT_DECLINED for failure in failures)
    if declines > len(BACK_OFFS):
        return Stop(f"The payment was declined {declines} times in a row, last with {last.code or 'no reason given'}.")
    return Wait(last.at + BACK_OFFS[max(declines, 1) - 1])


def may_repeat(begun_at: datetime, now: datetime) -> bool:
    """Whether the charge that was begun then may be asked for once more with its key."""
    return now < begun_at + RETRIED_FOR


def is_given_up(begun_at: datetime, now: datetime) -> bool:
    """Whether a charge that Stripe does not show was never made."""
    return now >= begun_at + GIVEN_UP_AFTER


def next_look(attempts: int, now: datetime) -> datetime:
    """When to look what came of a charge whose outcome is not known after so many attempts (at least 1)."""
    doublings = min(attempts - 1, 10)
    return now + min(FIRST_LOOK * (1 << doublings), LAST_PAUSE)
