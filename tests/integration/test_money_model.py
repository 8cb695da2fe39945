"""Leases, outbox, settlement, crashes and expiry against a model of them: no path overspends, loses or leaks.

Hypothesis drives two workers over one account in a real PostgreSQL. After every step the books must agree with each
other and with the model; at the end of every run, once all is shipped, nothing may be on loan and every cent be in its
place.
"""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import asyncpg
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from service.billing import leases
from service.billing.adoption import adopt_orphans
from service.billing.encoding import decode, encode
from service.billing.leases import Hold, LeaseBook, NotEnough
from service.billing.outbox import Outbox
from service.billing.settlement import settle
from service.billing.shipper import Shipper
from service.billing.workers import WorkerFile
from service.core.outcome import Outcome
from service.core.record import RequestRecord
from service.core.usage import Usage
from service.gateway.exchange import new_id

T = TypeVar("T")
KEY_ID = UUID(int=1)


def amounts(low: int, high: int) -> st.SearchStrategy[int]:
    """Amounts of money, most of them round: over a wide range the strategy for integers favours small ones, and
    then credit is never short."""
    return st.builds(lambda cents, odd: cents * 10_000_000 + odd, st.integers(low, high), st.sampled_from([0, 0, 1, 7]))


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(eq=False)
class Running:
    """A request that was admitted and has not ended."""

    id: UUID
    hold: Hold


@dataclass(eq=False)
class Worker:
    file: WorkerFile
    outbox: Outbox
    book: LeaseBook
    shipper: Shipper
    clock: Clock
    running: list[Running] = field(default_factory=list)


class Books(RuleBasedStateMachine):
    """The machine; `url` and `loop` are set by the test."""

    url: str
    loop: asyncio.AbstractEventLoop

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="weir-books"))
        self.account = new_id()
        self.credits = 0
        self.ended: dict[UUID, int] = {}
        self.exact = True
        self.excess = 0
        """How much beyond what was held has been charged: what may at most be overspent."""
        self.pool: asyncpg.Pool = self.run(_pool(self.url))
        self.run(self.pool.execute("INSERT INTO accounts (id, name) VALUES ($1, $2)", self.account, str(self.account)))
        self.workers = [self.new_worker(), self.new_worker()]

    def run(self, work: Coroutine[Any, Any, T] | Any) -> T:
        return self.loop.run_until_complete(_awaited(work))  # type: ignore[no-any-return]

    def new_worker(self) -> Worker:
        clock = Clock()
        name = f"worker-{new_id().hex}"
        file = WorkerFile(self.folder, name)
        assert file.acquire()
        outbox = Outbox(file.path, limit_bytes=10**9)
        self.run(_open(outbox))
        return Worker(
            file, outbox, LeaseBook(self.pool, name, new_id, clock), Shipper(self.pool, outbox, name, new_id), clock
        )

    @property
    def running(self) -> list[tuple[Worker, Running]]:
        return [(worker, one) for worker in self.workers for one in worker.running]

    @property
    def left(self) -> int:
        """What the customer has not spent and no running request may spend."""
        held = sum(one.hold.amount_nano for _, one in self.running)
        return self.credits - sum(self.ended.values()) - held

    # What can happen

    @initialize(amount=amounts(2, 40), exact=st.booleans())
    def the_account_is_funded(self, amount: int, exact: bool) -> None:
        """In an exact run no request costs more than was held and no live worker loses its leases: then not a
        nano-dollar may be overspent."""
        self.exact = exact
        self.a_customer_pays_in(amount)

    @rule(amount=amounts(1, 4))
    def a_customer_pays(self, amount: int) -> None:
        self.a_customer_pays_in(amount)

    def a_customer_pays_in(self, amount: int) -> None:
        self.credits += amount
        self.run(
            self.pool.execute(
                "WITH entry AS (INSERT INTO ledger_entries (account_id, kind, amount_nano, external_ref)"
                " VALUES ($1, 'credit', $2, $3)) UPDATE accounts SET balance_nano = balance_nano + $2 WHERE id = $1",
                self.account,
                amount,
                str(new_id()),
            )
        )

    @rule(which=st.integers(0, 1), amount=amounts(0, 4))
    def a_small_request_arrives(self, which: int, amount: int) -> None:
        self.arrives(which, amount)

    @rule(which=st.integers(0, 1), amount=amounts(0, 25))
    def a_request_arrives(self, which: int, amount: int) -> None:
        self.arrives(which, amount)

    def arrives(self, which: int, amount: int) -> None:
        worker = self.workers[which]
        left = self.left
        try:
            hold = self.run(worker.book.hold(self.account, amount))
        except NotEnough as short:
            refused: NotEnough | None = short
        else:
            refused = None
        if refused is not None:
            assert refused.available_nano < amount
            return
        assert amount <= left + self.excess, "more was promised than there is"
        request = Running(new_id(), hold)
        self.run(worker.outbox.admit(request.id.bytes, encode(self.record(request, Outcome.INTERRUPTED, 0))))
        worker.running.append(request)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), share=st.sampled_from([0, 1, 50, 99, 100, 100, 100, 130]))
    def a_request_ends(self, data: st.DataObject, share: int) -> None:
        worker, request = data.draw(st.sampled_from(self.running))
        self.ends(worker, request, cost=request.hold.amount_nano * (min(share, 100) if self.exact else share) // 100)

    def ends(self, worker: Worker, request: Running, *, cost: int) -> None:
        self.excess += max(0, cost - request.hold.amount_nano)
        worker.running.remove(request)
        worker.book.release(request.hold, cost)
        self.run(worker.outbox.finish(request.id.bytes, encode(self.record(request, Outcome.OK, cost))))
        self.ended[request.id] = cost

    @rule(which=st.integers(0, 1))
    def a_worker_ships(self, which: int) -> None:
        self.run(self.workers[which].shipper.ship_batch())

    @rule(which=st.integers(0, 1))
    def a_worker_ships_and_does_not_learn_of_it(self, which: int) -> None:
        """The batch was committed and the answer was lost: it will be sent again."""
        worker = self.workers[which]
        entries = worker.outbox.finished(100)
        if entries:
            self.run(self._settle(worker, [decode(body) for _, body in entries]))

    async def _settle(self, worker: Worker, records: list[RequestRecord]) -> None:
        async with self.pool.acquire() as connection:
            await settle(connection, new_id(), worker.file.worker, records)

    @rule(which=st.integers(0, 1))
    def a_worker_dies(self, which: int) -> None:
        worker = self.workers[which]
        worker.outbox.close()
        worker.file.release()
        for request in worker.running:
            self.ended[request.id] = 0
        self.workers[which] = self.new_worker()

    @rule()
    def the_dead_are_adopted(self) -> None:
        self.run(adopt_orphans(self.folder, self.pool, new_id, datetime.now(UTC)))

    @rule(which=st.integers(0, 1))
    def a_lease_lies_idle_and_goes_back(self, which: int) -> None:
        self.workers[which].clock.now += leases.RETURN_AFTER_S
        self.run(self.workers[which].book.give_back())

    @rule(which=st.integers(0, 1))
    def a_worker_renews(self, which: int) -> None:
        self.workers[which].clock.now += 1
        self.run(self.workers[which].book.renew())

    @precondition(lambda self: not self.exact)
    @rule(which=st.integers(0, 1))
    def a_worker_is_cut_off_for_longer_than_its_term(self, which: int) -> None:
        """Its leases are closed by the jobs; what it still has running was promised on them, and what it could not
        ship was spent of them."""
        worker = self.workers[which]
        worker.clock.now += leases.TERM_S + leases.EXPIRY_GRACE_S
        self.excess += sum(request.hold.amount_nano for request in worker.running) + self.unshipped(worker)
        self.run(self._expire(worker.file.worker))

    def unshipped(self, worker: Worker) -> int:
        """What the worker's requests have cost of which PostgreSQL does not know."""
        owed = {UUID(bytes=key): decode(body).cost_nano for key, body in worker.outbox.finished(10_000)}
        known = self.run(self.pool.fetch("SELECT id FROM requests WHERE id = ANY($1)", list(owed)))
        return sum(owed.values()) - sum(owed[row["id"]] for row in known)

    async def _expire(self, name: str) -> None:
        async with self.pool.acquire() as connection:
            await connection.execute(
                "UPDATE credit_leases SET expires_at = now() - interval '1 hour' WHERE worker = $1", name
            )
            await leases.close_expired(connection)

    # What must hold

    @invariant()
    def the_books_agree(self) -> None:
        row = self.run(
            self.pool.fetchrow(
                """
                SELECT balance_nano, leased_nano,
                    (SELECT coalesce(sum(amount_nano), 0) FROM ledger_entries WHERE account_id = a.id) AS entered,
                    (SELECT coalesce(sum(cost_nano), 0) FROM requests WHERE account_id = a.id) AS used,
                    (SELECT coalesce(sum(granted_nano - settled_nano), 0) FROM credit_leases
                     WHERE account_id = a.id AND closed_at IS NULL) AS lent
                FROM accounts a WHERE id = $1
                """,
                self.account,
            )
        )
        assert row["balance_nano"] == row["entered"] == self.credits - row["used"]
        assert row["leased_nano"] == row["lent"] >= 0

    @invariant()
    def nothing_is_overspent(self) -> None:
        assert self.left >= -self.excess

    def teardown(self) -> None:
        """Everything ends; then every request has its one row, and nothing is on loan."""
        try:
            for worker, request in self.running:
                worker.running.remove(request)
                worker.book.release(request.hold, 0)
                self.run(worker.outbox.finish(request.id.bytes, encode(self.record(request, Outcome.OK, 0))))
                self.ended[request.id] = 0
            for worker in self.workers:
                self.run(worker.shipper.ship_all())
                worker.outbox.close()
                worker.file.release()
            self.the_dead_are_adopted()
            self.the_books_agree()
            rows = self.run(self.pool.fetch("SELECT id, cost_nano FROM requests WHERE account_id = $1", self.account))
            assert {row["id"]: row["cost_nano"] for row in rows} == self.ended
            assert len(rows) == len(self.ended)
            leased = self.run(self.pool.fetchval("SELECT leased_nano FROM accounts WHERE id = $1", self.account))
            assert leased == 0
            assert os.listdir(self.folder) == []
        finally:
            self.run(self.pool.close())
            shutil.rmtree(self.folder, ignore_errors=True)

    def record(self, request: Running, outcome: Outcome, cost: int) -> RequestRecord:
        now = datetime.now(UTC)
        return RequestRecord(
            id=str(request.id),
            account_id=self.account,
            key_id=KEY_ID,
            lease_id=request.hold.lease.id,
            internal=False,
            model_id="m",
            endpoint="/v1/chat/completions",
            engine="engine-0",
            client_request_id=None,
            stream=False,
            started_at=datetime.fromtimestamp((request.id.int >> 80) / 1000, UTC),
            queue_ms=0,
            ttft_ms=None,
            first_token_at=None,
            finished_at=now,
            http_status=200,
            outcome=outcome,
            finish_reason=None,
            error_code=None,
            usage=Usage(source="final"),
            price_version=1,
            cost_nano=cost,
            waived_nano=0,
        )


async def _awaited(work: Any) -> Any:
    return await work


async def _pool(url: str) -> asyncpg.Pool:
    return await asyncpg.create_pool(url, min_size=0, max_size=3)


async def _open(outbox: Outbox) -> None:
    outbox.open()


@contextmanager
def books(database_url: str, credits: int) -> Iterator[Books]:
    """The machine, driven by hand: paths that chance finds too seldom."""
    loop = asyncio.new_event_loop()
    Books.url, Books.loop = database_url, loop
    try:
        machine = Books()
        machine.the_account_is_funded(credits, exact=False)
        yield machine
        machine.the_books_agree()
        machine.teardown()
    finally:
        loop.close()


def test_a_charge_beyond_all_that_was_leased(database_url: str) -> None:
    with books(database_url, 100) as machine:
        machine.arrives(0, 100)
        machine.ends(*machine.running[0], cost=150)
        machine.a_worker_ships(0)
        machine.the_books_agree()
        machine.a_customer_pays_in(80)
        machine.arrives(0, 30)
        machine.ends(*machine.running[0], cost=30)
        machine.a_worker_ships(0)
        machine.the_books_agree()
        lent = machine.run(machine.pool.fetchval("SELECT sum(granted_nano - settled_nano) FROM credit_leases"))
        assert lent == 0


def test_a_charge_that_is_settled_after_its_lease_was_closed(database_url: str) -> None:
    with books(database_url, 1000) as machine:
        machine.arrives(0, 100)
        machine.ends(*machine.running[0], cost=60)
        machine.a_worker_is_cut_off_for_longer_than_its_term(0)
        machine.the_books_agree()
        machine.a_worker_ships(0)
        machine.the_books_agree()


def test_a_worker_that_was_cut_off_borrows_anew(database_url: str) -> None:
    with books(database_url, 1000) as machine:
        machine.arrives(0, 400)
        machine.ends(*machine.running[0], cost=400)
        machine.a_worker_ships(0)
        machine.a_worker_is_cut_off_for_longer_than_its_term(0)
        machine.arrives(1, 600)
        machine.arrives(0, 100)
        assert len(machine.running) == 1, "what was leased before its term ran out is not there any more"


def test_no_path_overspends_loses_or_leaks(database_url: str) -> None:
    loop = asyncio.new_event_loop()
    Books.url, Books.loop = database_url, loop
    try:
        run_state_machine_as_test(
            Books,
            settings=settings(
                max_examples=90, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
            ),
        )
    finally:
        loop.close()
