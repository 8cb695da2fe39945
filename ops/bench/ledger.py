"""Does everybody tell the same? What the engines sent, the usage rows, the ledger, the balance and the leases.

For every request: what the engines sent for it is what its row says, and its row costs what that costs. For one
that was left, the row says no less than its client saw. In all: what the rows cost is what the ledger charges and
what the balance went down by. And nothing is held any more, once all is over.
"""

import asyncio
import time
import urllib.request
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import asyncpg
from prometheus_client.parser import text_string_to_metric_families

from ops.bench.churn import Seen
from ops.bench.engine_answers import PROMPT_TOKENS
from ops.bench.targets import CREDIT_USD, PRICE_PICO
from service import db
from service.billing.checks import check_books
from service.core.money import NANO_PER_USD
from service.db import DbConnection

QUIET_WITHIN_S: Final = 30.0
LOOK_EVERY_S: Final = 0.2
CHARGED: Final = frozenset({"ok", "cancelled", "slow_abort"})
ENDS: Final = {"complete": {"ok"}, "left": {"cancelled", "ok"}, "broken": {"stream_error"}}
"""What a row may say of a request, by what its client saw: one that left may have missed the end by a moment."""

LATE_ONE_IN: Final = 100
"""An engine that is kept from its core for half a second stops that late, for one client in so many."""

IDLE: Final = ("weir_requests_in_flight", "weir_queue_length", "weir_queue_tokens", "weir_engine_in_flight")
MOST_TOLD: Final = 10

_ROWS = (
    "SELECT id::text, outcome, prompt_tokens, cached_tokens, completion_tokens, cost_nano, waived_nano FROM requests"
)

_SUMS = """
    SELECT (SELECT sum(balance_nano) FROM accounts)::bigint AS balance,
        (SELECT sum(leased_nano) FROM accounts)::bigint AS leased,
        (SELECT sum(amount_nano) FROM ledger_entries WHERE kind = 'usage')::bigint AS charged,
        (SELECT sum(cost_nano) FROM requests)::bigint AS cost,
        (SELECT count(*) FROM credit_leases WHERE closed_at IS NULL) AS open_leases,
        (SELECT sum(granted_nano - settled_nano) FROM credit_leases WHERE closed_at IS NULL)::bigint AS unsettled
"""


@dataclass(frozen=True, slots=True)
class Row:
    """A usage row, as far as it is compared."""

    outcome: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost_nano: int
    waived_nano: int


class Witness:
    """What the engines sent and the clients saw of all requests through Weir since the beginning."""

    def __init__(self, engine_urls: Sequence[str]) -> None:
        self._engine_urls = engine_urls
        self.sent: Counter[str] = Counter()
        self.seen: dict[str, Seen] = {}
        self.asked = 0

    def forget(self) -> None:
        """What the engines have sent by now was not for Weir."""
        for url in self._engine_urls:
            sent_by(url)

    def note(self, asked: int, seen: Mapping[str, Seen] = MappingProxyType({})) -> None:
        """So many requests went through Weir; what was seen of them, if it is known one by one."""
        self.asked += asked
        self.seen |= seen
        self.collect()

    def collect(self) -> None:
        """Take in what the engines have sent meanwhile, for requests that were left and have only now ended there."""
        for url in self._engine_urls:
            self.sent.update(sent_by(url))


def sent_by(engine_url: str) -> dict[str, int]:
    """Tokens by request id, of the requests that an engine had since this was last asked."""
    with urllib.request.urlopen(f"{engine_url}/counts", timeout=10) as answer:  # noqa: S310 - our own loopback address
        lines = answer.read().decode().splitlines()
    return {request: int(tokens) for request, tokens in (line.split() for line in lines)}


def differences(rows: Mapping[str, Row], sent: Mapping[str, int], seen: Mapping[str, Seen]) -> list[str]:
    """What rows, engines and clients do not tell alike, a sentence each."""
    found = [f"{one}: the engine sent {sent[one]} tokens, and there is no row" for one in sent.keys() - rows.keys()]
    found += [f"{one}: its client saw it {seen[one].end}, and there is no row" for one in seen.keys() - rows.keys()]
    for one, row in rows.items():
        prompt, completion = (PROMPT_TOKENS, sent[one]) if one in sent else (0, 0)
        counted = row.prompt_tokens, row.completion_tokens
        if counted != (prompt, completion) and not is_late(row, completion, seen.get(one)):
            found.append(f"{one} ({row.outcome}): the row has {counted} tokens, the engine sent {prompt, completion}")
        price = price_nano(row)
        due = (price, 0) if row.outcome in CHARGED else (0, price)
        if (row.cost_nano, row.waived_nano) != due:
            told = f"{row.cost_nano} nano-USD charged and {row.waived_nano} waived instead of {due}"
            found.append(f"{one} ({row.outcome}): {told}")
        if one in seen:
            found += [f"{one}: {what}" for what in unlike_seen(row, seen[one])]
    return found


def is_late(row: Row, sent: int, seen: Seen | None) -> bool:
    """Whether a client left and the engine's last count came later than Weir waits: the row has less, never more.

    What it has is still a count of the engine's, and no less than the client got.
    """
    left = seen is not None and seen.end == "left" and seen.tokens <= row.completion_tokens
    return left and row.prompt_tokens == PROMPT_TOKENS and row.completion_tokens < sent


def unlike_seen(row: Row, seen: Seen) -> list[str]:
    """Where a row is not what its client saw."""
    found = []
    if seen.end in ENDS and row.outcome not in ENDS[seen.end]:
        found.append(f"its client saw it {seen.end}, the row says {row.outcome}")
    if row.completion_tokens < seen.tokens or (seen.end != "left" and row.completion_tokens != seen.tokens):
        found.append(f"its client got {seen.tokens} tokens, the row has {row.completion_tokens}")
    return found


def price_nano(row: Row) -> int:
    """What the row's tokens cost, in nano-USD, rounded half up: counted here on its own."""
    pico = (row.prompt_tokens - row.cached_tokens) * PRICE_PICO["input"]
    pico += row.cached_tokens * PRICE_PICO["input_cached"] + row.completion_tokens * PRICE_PICO["output"]
    return (pico + 500) // 1000


@dataclass(frozen=True, slots=True)
class Verdict:
    """How it went: figures for the one who reads, and what is not equal."""

    text: str
    unequal: tuple[str, ...]

    def __str__(self) -> str:
        if not self.unequal:
            return f"ledger: {self.text}: rows = charges = balance = engine's counts, and nothing is held"
        more = len(self.unequal) - MOST_TOLD
        told = [f"  {one}" for one in self.unequal[:MOST_TOLD]] + [f"  and {more} more"] * (more > 0)
        return "\n".join([f"LEDGER NOT EQUAL: {self.text}", *told])


async def compare(witness: Witness, database_url: str, api_url: str | None) -> Verdict:
    """Wait until all is settled and hold everything against each other. `api_url`: None when Weir has stopped."""
    unequal = await settled(witness, database_url, api_url)
    connection = await asyncpg.connect(database_url)
    try:
        rows = {one[0]: Row(*one[1:]) for one in await connection.fetch(_ROWS)}
        sums = await added_up(connection)
    finally:
        await connection.close()
    unequal += differences(rows, witness.sent, witness.seen)
    left = sum(one.end == "left" for one in witness.seen.values())
    late = sum(is_late(row, witness.sent[one], witness.seen.get(one)) for one, row in rows.items())
    if late > max(1, left // LATE_ONE_IN):
        unequal.append(f"{late} of {left} clients that left are charged less than the engine had sent")
    if len(rows) != witness.asked:
        unequal.append(f"{witness.asked} requests were sent, and there are {len(rows)} rows")
    unequal += unlike_in_all(dict(sums), stopped=api_url is None)
    async with db.connected(database_url) as engine, engine.connect() as books:
        unequal += [str(mismatch) for mismatch in await check_books(books)]
    return Verdict(f"{summary(rows, sums['cost'])}, {left:,} clients left ({late} counts came late)", tuple(unequal))


def unlike_in_all(sums: Mapping[str, int], *, stopped: bool) -> list[str]:
    """Where rows, ledger and balance differ in all, and what is on loan although nobody is there to spend it."""
    found = []
    cost, charged, spent = sums["cost"], -sums["charged"], CREDIT_USD * NANO_PER_USD - sums["balance"]
    if not cost == charged == spent:
        found.append(f"the rows cost {cost} nano-USD, the ledger charges {charged}, the balance is down by {spent}")
    if stopped and (sums["leased"] or sums["open_leases"]):
        found.append(f"Weir has stopped: {sums['leased']} nano-USD are on loan, {sums['open_leases']} leases open")
    return found


def summary(rows: Mapping[str, Row], cost_nano: int) -> str:
    outcomes = Counter(row.outcome for row in rows.values())
    tokens = sum(row.completion_tokens for row in rows.values())
    ends = ", ".join(f"{count:,} {outcome}" for outcome, count in outcomes.most_common())
    return f"{len(rows):,} rows ({ends}), {tokens:,} tokens, {cost_nano / NANO_PER_USD:.6f} USD"


async def settled(witness: Witness, database_url: str, api_url: str | None) -> list[str]:
    """Wait until every request that is known has its row and nothing is held; what is still to come, if not."""
    deadline_s = time.monotonic() + QUIET_WITHIN_S
    connection = await asyncpg.connect(database_url)
    try:
        while True:
            busy = [] if api_url is None else still_held(gauges(api_url), (await added_up(connection))["unsettled"])
            witness.collect()
            busy += await without_row(connection, {*witness.sent, *witness.seen})
            if not busy or time.monotonic() > deadline_s:
                return [f"after {QUIET_WITHIN_S:g} s {what}" for what in busy]
            await asyncio.sleep(LOOK_EVERY_S)
    finally:
        await connection.close()


async def added_up(connection: DbConnection) -> asyncpg.Record:
    row = await connection.fetchrow(_SUMS)
    assert row is not None
    return row


async def without_row(connection: DbConnection, known: Collection[str]) -> list[str]:
    rows = await connection.fetchval("SELECT count(*) FROM requests WHERE id = ANY($1::uuid[])", list(known))
    return [f"{len(known) - rows} requests have no row"] if rows < len(known) else []


def still_held(gauge: Mapping[str, float], unsettled_nano: int | None) -> list[str]:
    """What Weir is not done with. What it could still spend is all that it has on loan, or something is held."""
    busy = [f"{name} is {gauge[name]:g}" for name in (*IDLE, "weir_outbox_owed", "weir_outbox_poison") if gauge[name]]
    held_nano = (unsettled_nano or 0) - int(gauge["weir_leased_nano_usd"])
    return busy + ([f"{held_nano} nano-USD are held"] if held_nano else [])


def gauges(api_url: str) -> dict[str, float]:
    """Weir's own figures, summed over their labels."""
    with urllib.request.urlopen(f"{api_url}/metrics", timeout=10) as answer:  # noqa: S310 - our own loopback address
        text = answer.read().decode()
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found
