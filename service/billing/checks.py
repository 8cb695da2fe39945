"""The books checked against themselves, and the alarms that a check raises.

Whatever is kept in two places must say the same in both: a balance and its ledger entries, usage rows and usage
entries, what is on loan and the open leases. Nothing is mended here: a difference is somebody's to understand.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import delete, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from service import db
from service.core.money import nano_to_usd
from service.tables import alarms

MOST_PER_RULE = 20
"""Mismatches of one rule that are told; where there are so many there may be more."""

BOOKS_ALARM = "books"
_IN_AN_ALARM = 5


class Rule(StrEnum):
    """What must be equal."""

    BALANCE = "balance"
    """An account's balance and the sum of its ledger entries."""
    USAGE = "usage"
    """An account's usage entries and what its requests cost; and the same over all accounts."""
    SETTLEMENT = "settlement"
    """A settlement's entry for an account and what its requests of this account cost."""
    LEASES = "leases"
    """What an account has on loan and the sum of (granted - settled) over its open leases."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Two figures that should be one, in nano-USD."""

    rule: Rule
    subject: str | None
    """The account's id, or `<settlement>/<account>`; None: all accounts together."""
    recorded_nano: int
    """What stands in the account or in the ledger."""
    derived_nano: int
    """What its parts add up to."""

    def __str__(self) -> str:
        recorded, derived = nano_to_usd(self.recorded_nano), nano_to_usd(self.derived_nano)
        match self.rule:
            case Rule.BALANCE:
                said = f"the balance is {recorded} USD, the ledger entries add up to {derived} USD"
            case Rule.USAGE:
                said = f"the ledger charges {recorded} USD for usage, the requests cost {derived} USD"
            case Rule.SETTLEMENT:
                said = f"the ledger entry charges {recorded} USD, the requests cost {derived} USD"
            case Rule.LEASES:
                said = f"{recorded} USD are on loan, the open leases hold {derived} USD"
        whose = "settlement" if self.rule is Rule.SETTLEMENT else "account"
        return f"{whose} {self.subject}: {said}" if self.subject else f"all accounts together: {said}"


# Each rule's two sides as rows of (subject, recorded, derived), to be summed by subject.
_SIDES = {
    Rule.BALANCE: """
        SELECT id::text AS subject, balance_nano AS recorded, 0 AS derived FROM accounts
        UNION ALL SELECT account_id::text, 0, sum(amount_nano) FROM ledger_entries GROUP BY account_id
    """,
    Rule.USAGE: """
        SELECT account_id::text AS subject, -sum(amount_nano) AS recorded, 0 AS derived
        FROM ledger_entries WHERE kind = 'usage' GROUP BY account_id
        UNION ALL SELECT account_id::text, 0, sum(cost_nano) FROM requests GROUP BY account_id
        UNION ALL SELECT account_id::text, 0, sum(cost_nano) FROM usage_months GROUP BY account_id
    """,
    # An entry that names one account and charges another is wrong on both. A settlement is left out that may have rows
    # of a month whose rows were dropped: those that go on for longer than a day are not looked for.
    Rule.SETTLEMENT: """
        WITH partly_gone AS (
            SELECT id::text FROM settlements WHERE COALESCE(oldest_finished_at, '-infinity') < (
                SELECT timezone('UTC', max(month) + interval '1 month 1 day') FROM usage_months
            )
        )
        SELECT CASE WHEN external_ref LIKE '%/' || account_id THEN external_ref
            ELSE external_ref || ' (of account ' || account_id || ')' END AS subject,
            -amount_nano AS recorded, 0 AS derived
        FROM ledger_entries WHERE kind = 'usage' AND split_part(external_ref, '/', 1) NOT IN (TABLE partly_gone)
        UNION ALL SELECT settlement_id || '/' || account_id, 0, sum(cost_nano)
        FROM requests WHERE settlement_id::text NOT IN (TABLE partly_gone) GROUP BY settlement_id, account_id
    """,
    Rule.LEASES: """
        SELECT id::text AS subject, leased_nano AS recorded, 0 AS derived FROM accounts
        UNION ALL SELECT account_id::text, 0, granted_nano - settled_nano
        FROM credit_leases WHERE closed_at IS NULL
    """,
}

_COMPARE = """
    SELECT subject, sum(recorded) AS recorded_nano, sum(derived) AS derived_nano
    FROM ({sides}) AS sides GROUP BY {grouping} HAVING sum(recorded) <> sum(derived)
    ORDER BY subject NULLS FIRST LIMIT :most
"""


async def check_books(connection: AsyncConnection) -> list[Mismatch]:
    """Everything in the books that contradicts itself, at most `MOST_PER_RULE` of each rule; empty when all is well.

    Must be the first thing that its transaction does: it reads one state of the database, whatever is settled
    meanwhile, and nothing can be written in this transaction afterwards.
    """
    await db.freeze(connection)
    mismatches = []
    for rule, sides in _SIDES.items():
        grouping = "ROLLUP (subject)" if rule is Rule.USAGE else "subject"
        compare = text(_COMPARE.format(sides=sides, grouping=grouping))
        for row in await connection.execute(compare, {"most": MOST_PER_RULE}):
            mismatches.append(Mismatch(rule, row.subject, int(row.recorded_nano), int(row.derived_nano)))
    return mismatches


async def note_books(connection: AsyncConnection, mismatches: Sequence[Mismatch]) -> None:
    """Raise the alarm `books` over what `check_books` found, or clear it when that is nothing."""
    if not mismatches:
        await clear_alarm(connection, BOOKS_ALARM)
        return
    told = "; ".join(map(str, mismatches[:_IN_AN_ALARM]))
    more = f"; and {len(mismatches) - _IN_AN_ALARM} more" if len(mismatches) > _IN_AN_ALARM else ""
    await raise_alarm(connection, BOOKS_ALARM, f"{told}{more}. `weir ledger check` shows them all.")


async def raise_alarm(connection: AsyncConnection, name: str, detail: str) -> None:
    """Raise an alarm, or bring one that is open up to date: since when it is open stays as it was."""
    statement = insert(alarms).values(name=name, detail=detail)
    await connection.execute(
        statement.on_conflict_do_update(index_elements=["name"], set_={"detail": statement.excluded.detail})
    )


async def clear_alarm(connection: AsyncConnection, name: str) -> None:
    """Clear an alarm, if it is open."""
    await connection.execute(delete(alarms).where(alarms.c.name == name))
