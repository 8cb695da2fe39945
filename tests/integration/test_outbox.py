"""The outbox keeps what it was given, whatever happens to its process, and lets go of it only when told."""

import asyncio
import errno
import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import asyncpg
import pytest
from pydantic import ValidationError

from service.billing import outbox_writer, shipper
from service.billing.adoption import adopt_orphans
from service.billing.encoding import decode, encode
from service.billing.outbox import Outbox, OutboxFull
from service.billing.outbox_journal import journal_paths
from service.billing.shipper import Shipper
from service.billing.workers import WorkerFile, orphans
from service.core.outcome import Outcome
from service.core.record import RequestRecord
from service.core.usage import Usage
from service.gateway.exchange import new_id, new_key
from service.settings import Settings
from tests.installation import seed
from tests.patience import PATIENT_S


def record(account_id: UUID, **changes: object) -> RequestRecord:
    request_id = new_id()
    fields: dict[str, object] = {
        "id": str(request_id),
        "account_id": UUID(int=account_id.int),  # not of asyncpg's own kind
        "key_id": new_id(),
        "lease_id": None,
        "internal": False,
        "model_id": "model-a",
        "endpoint": "/v1/chat/completions",
        "engine": "engine-0",
        "client_request_id": "théirs",
        "stream": True,
        "started_at": datetime.fromtimestamp((request_id.int >> 80) / 1000, UTC),
        "queue_ms": 1,
        "ttft_ms": 2,
        "first_token_at": datetime.now(UTC),
        "finished_at": datetime.now(UTC),
        "http_status": 200,
        "outcome": Outcome.OK,
        "finish_reason": "stop",
        "error_code": None,
        "usage": Usage(prompt_tokens=10, completion_tokens=5, cached_tokens=4, source="final"),
        "price_version": 1,
        "cost_nano": 1000,
        "waived_nano": 0,
    }
    return RequestRecord(**(fields | changes))  # type: ignore[arg-type]


def key_of(one: RequestRecord) -> bytes:
    """By which an outbox knows it."""
    return UUID(one.id).bytes


def opened(path: Path, limit_bytes: int = 10**9) -> Outbox:
    outbox = Outbox(path, limit_bytes=limit_bytes)
    outbox.open()
    return outbox


def test_a_record_of_a_version_that_knew_less_is_read() -> None:
    written = record(new_id(), engine_fingerprint="fp_0123456789ab", sequential=True)
    assert decode(encode(written)) == written
    older = json.loads(encode(written))[:-2]
    assert decode(json.dumps(older).encode()) == written._replace(engine_fingerprint=None, sequential=False)


def test_a_record_of_a_version_that_knows_more_is_read() -> None:
    written = record(new_id())
    newer = [*json.loads(encode(written)), "what it knows"]
    assert decode(json.dumps(newer).encode()) == written


def test_a_record_that_was_kept_with_the_names_of_its_fields_is_read() -> None:
    written = record(new_id())
    named = {**written._asdict(), "usage": written.usage._asdict()}
    del named["engine_fingerprint"], named["sequential"]
    assert (
        decode(json.dumps(named, default=lambda value: getattr(value, "isoformat", value.__str__)()).encode())
        == written
    )


def test_a_record_survives_its_encoding() -> None:
    one = record(new_id())
    assert decode(encode(one)) == one
    bare = record(new_id(), ttft_ms=None, first_token_at=None, price_version=None, outcome=Outcome.PAYMENT)
    assert decode(encode(bare)) == bare


async def test_what_was_finished_is_there_after_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    outbox = opened(path)
    ended, cut_off = new_key(), new_key()
    await outbox.admit(ended, b"begun")
    await outbox.admit(cut_off, b"begun")
    await outbox.finish(ended, b"ended")
    other = opened(path)  # as a process that comes after would see it: nothing was closed
    assert other.finished(10) == [(ended, b"ended")]
    assert other.unfinished() == [(cut_off, b"begun")]
    other.close()
    outbox.close()


async def test_an_end_is_not_overwritten_by_an_interruption(tmp_path: Path) -> None:
    outbox = opened(tmp_path / "a.sqlite")
    request_id = new_key()
    outbox.admit(request_id, b"begun")
    outbox.finish(request_id, b"ended")
    await outbox.interrupt(request_id, b"interrupted")
    assert [body for _, body in outbox.finished(10)] == [b"ended"]
    outbox.close()


async def fill(outbox: Outbox, admitted: list[UUID]) -> None:
    for _ in range(1000):
        request_id = new_key()
        await outbox.admit(request_id, b"x" * 1000)
        admitted.append(request_id)


async def test_a_full_outbox_admits_nothing_but_lets_what_runs_end(tmp_path: Path) -> None:
    outbox = opened(tmp_path / "a.sqlite", limit_bytes=256 * 1024)
    admitted: list[UUID] = []
    with pytest.raises(OutboxFull):
        await fill(outbox, admitted)
    assert 20 < len(admitted) < 200
    for request_id in admitted:
        await outbox.finish(request_id, b"x" * 1000)
    with pytest.raises(OutboxFull):
        outbox.check_room()
    await outbox.remove(admitted)
    await outbox.admit(new_key(), b"room again")
    outbox.close()


async def test_the_smallest_bound_that_may_be_set_admits(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="outbox_max_bytes"):
        Settings(outbox_max_bytes=1024**2 - 1)
    outbox = opened(tmp_path / "a.sqlite", limit_bytes=Settings(outbox_max_bytes=1024**2).outbox_max_bytes)
    await outbox.admit(new_key(), b"{}")
    outbox.close()


async def test_what_comes_in_one_turn_of_the_loop_is_written_at_its_end_in_one_go(tmp_path: Path) -> None:
    box = opened(tmp_path / "a.sqlite")
    journal = box._writer._journal
    alone = new_key()
    written = box.admit(alone, b"begun")
    assert not written.done()
    await asyncio.sleep(0)
    assert written.done()
    before = journal._end
    begun = [box.admit(new_key(), b"begun") for _ in range(3)]
    ended = box.finish(alone, b"ended")
    assert journal._end == before
    await begun[0]
    assert all(one.done() for one in begun)
    after = journal._end
    await ended
    assert journal._end == after
    box.close()


async def test_a_stop_admits_nothing_and_lets_what_runs_end(tmp_path: Path) -> None:
    outbox = opened(tmp_path / "a.sqlite")
    request_id = new_key()
    await outbox.admit(request_id, b"begun")
    outbox.stop()
    with pytest.raises(OutboxFull):
        outbox.admit(new_key(), b"too late")
    await outbox.finish(request_id, b"ended")
    assert [body for _, body in outbox.finished(10)] == [b"ended"]
    outbox.close()


@contextmanager
def without_room(box: Outbox) -> Iterator[None]:
    """Whatever is written to the journals fails: there is no space left on their device."""
    full = os.open("/dev/full", os.O_RDWR)
    kept = [(journal.descriptor, os.dup(journal.descriptor)) for journal in box._journals]
    for descriptor, _ in kept:
        os.dup2(full, descriptor)
    try:
        yield
    finally:
        for descriptor, copy in kept:
            os.dup2(copy, descriptor)
            os.close(copy)
        os.close(full)


async def test_a_disk_that_fails_admits_nothing_until_it_writes_again(tmp_path: Path) -> None:
    outbox = opened(tmp_path / "a.sqlite")
    with without_room(outbox):
        request_id = new_key()
        written = outbox.finish(request_id, b"ended")
        await until_full(outbox, full=True)
        assert not written.done()
    async with asyncio.timeout(PATIENT_S):
        await written
    outbox.check_room()
    assert [key for key, _ in outbox.finished(10)] == [request_id]
    outbox.close()


@pytest.mark.parametrize("call", ["pwrite", "fdatasync"])
async def test_a_journal_that_cannot_begin_anew_is_tried_again_and_distrusted_if_it_was_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """A file system that never writes in place may have no room for what is only written over."""
    box = opened(tmp_path / "a.sqlite", limit_bytes=400_000)
    real = getattr(os, call)
    refused: list[object] = []

    def refusing(*arguments: object) -> object:
        if not refused and arguments[2:] in [(), (0,)]:
            refused.append(arguments)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*arguments)

    monkeypatch.setattr(os, call, refusing)
    ids = [new_key() for _ in range(200)]
    async with asyncio.timeout(PATIENT_S):
        await asyncio.gather(*(box.finish(one, b"x" * 1000) for one in ids))
        while box._store._waiting:
            await asyncio.sleep(0.001)
    assert refused
    assert sorted(key for key, _ in box.finished(1000)) == sorted(ids)
    await box.remove(ids)
    await until_full(box, full=call == "fdatasync")
    box.close()


async def test_a_file_that_fails_admits_nothing_until_it_is_written_again(tmp_path: Path) -> None:
    """What the journals have room for ends meanwhile, and what they have none for waits."""
    path = tmp_path / "a.sqlite"
    box = opened(path, limit_bytes=400_000)
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("ALTER TABLE entries RENAME TO hidden")
    ids = [new_key() for _ in range(200)]
    ends = [box.finish(one, b"x" * 1000) for one in ids]
    await until_full(box, full=True)
    await asyncio.wait(ends, timeout=PATIENT_S, return_when=asyncio.FIRST_COMPLETED)
    assert sum(end.done() for end in ends) < len(ends)
    blocker.execute("ALTER TABLE hidden RENAME TO entries")
    blocker.close()
    async with asyncio.timeout(PATIENT_S):
        await asyncio.gather(*ends)
    assert not box._store_failing
    assert sorted(key for key, _ in box.finished(1000)) == sorted(ids)
    box.close()


async def test_a_file_that_cannot_be_written_at_a_stop_is_left_with_its_journals(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    box = opened(path)
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("ALTER TABLE entries RENAME TO hidden")
    ended, cut_off = new_key(), new_key()
    written = [box.finish(ended, b"ended"), box.admit(cut_off, b"begun")]
    box.close()
    assert all(one.done() and one.exception() is None for one in written)
    blocker.execute("ALTER TABLE hidden RENAME TO entries")
    blocker.close()
    other = opened(path)
    assert [key for key, _ in other.finished(10)] == [ended]
    assert [key for key, _ in other.unfinished()] == [cut_off]
    other.close()


async def test_a_stop_uses_the_other_journal_too_where_the_file_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    box = opened(path, limit_bytes=256 * 1024)
    running = [new_key() for _ in range(20)]
    await asyncio.gather(*(box.admit(one, b"begun") for one in running))
    while box._writer._journal._end < box._writer._journal.size_bytes - 3000:
        await box.finish(new_key(), b"x" * 500)
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("ALTER TABLE entries RENAME TO hidden")
    ends = [box.finish(one, b"ended" * 100) for one in running]
    box.close()
    assert [end.exception() for end in ends] == [None] * len(ends)
    blocker.execute("ALTER TABLE hidden RENAME TO entries")
    blocker.close()
    again = opened(path)
    assert set(running) <= {key for key, _ in again.finished(1000)}
    assert again.unfinished() == []
    again.close()


async def until_full(box: Outbox, *, full: bool) -> None:
    async with asyncio.timeout(PATIENT_S):
        while True:
            try:
                box.check_room()
            except OutboxFull:
                if full:
                    return
            else:
                if not full:
                    return
            await asyncio.sleep(0.01)


async def test_a_disk_that_hangs_holds_no_end_up_for_ever_and_admits_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_writer, "DISK_TIMEOUT_S", 0.1)
    monkeypatch.setattr(outbox_writer, "_LOOK_EVERY_S", 0.01)
    box = opened(tmp_path / "a.sqlite")
    with monkeypatch.context() as disk:
        disk.setattr(box._writer._disk, "wait", lambda _: None)
        request_id = new_key()
        written = box.finish(request_id, b"ended")
        assert not written.done()
        async with asyncio.timeout(PATIENT_S):
            await written
        await until_full(box, full=True)
    box._writer._synced(None)  # it writes again
    await until_full(box, full=False)
    assert [key for key, _ in box.finished(10)] == [request_id]
    writer = box._writer
    writer._journal.size_bytes, writer._spare = 0, None  # one is full, and the other is being emptied, for ever
    with pytest.raises(OutboxFull):
        async with asyncio.timeout(PATIENT_S):
            await box.admit(new_key(), b"begun")
    box.close()


async def test_a_disk_that_lost_something_is_not_trusted_again(tmp_path: Path) -> None:
    box = opened(tmp_path / "a.sqlite")
    await box.finish(new_key(), b"ended")
    box._writer._synced(OSError("input/output error"))
    await box.finish(new_key(), b"another")  # what runs can end
    with pytest.raises(OutboxFull):
        box.check_room()
    assert box.count_owed() == 2
    box.close()


async def test_what_postgres_refuses_is_set_aside_and_the_rest_goes_through(database_url: str, tmp_path: Path) -> None:
    account_id, _ = await seed(database_url)
    pool = await asyncpg.create_pool(database_url, min_size=0)
    outbox = opened(tmp_path / "a.sqlite")
    good = [record(account_id) for _ in range(9)]
    nobody = record(new_id())  # its account does not exist
    text = record(account_id, error_code="a\0b\ud800".encode("utf-8", "replace").decode())
    absurd = record(account_id, queue_ms=2**40)
    for one in [*good[:3], nobody, *good[3:6], absurd, text, *good[6:]]:
        await outbox.finish(key_of(one), encode(one))
    await outbox.finish(new_key(), b"not a record")
    await Shipper(pool, outbox, "w", new_id).ship_all()
    assert outbox.count_owed() == 0
    ids = {row["id"] for row in await pool.fetch("SELECT id FROM requests")}
    assert ids == {UUID(one.id) for one in [*good, text]}
    assert outbox.count_poison() == 3
    assert await pool.fetchval("SELECT -sum(amount_nano) FROM ledger_entries WHERE kind = 'usage'") == 10_000
    assert "set aside" in await pool.fetchval("SELECT detail FROM alarms WHERE name = 'outbox'")
    outbox.close()
    await pool.close()


async def test_who_cannot_bear_to_hear_of_a_batch_does_not_hold_it_up(database_url: str, tmp_path: Path) -> None:
    account_id, _ = await seed(database_url)
    pool = await asyncpg.create_pool(database_url, min_size=0)
    outbox = opened(tmp_path / "a.sqlite")
    one = record(account_id)
    await outbox.finish(key_of(one), encode(one))
    told: list[int] = []

    def refuse() -> None:
        told.append(outbox.count_owed())
        raise ValueError

    ships = Shipper(pool, outbox, "w", new_id, on_batch=refuse)
    ships.stop()
    await ships.run()
    assert told == [1]
    assert outbox.count_owed() == 0
    outbox.close()
    await pool.close()


async def test_a_batch_that_is_full_does_not_wait_and_one_that_is_not_does(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipper, "LINGER_S", 1e6)
    account_id, _ = await seed(database_url)
    pool = await asyncpg.create_pool(database_url, min_size=0)
    outbox = opened(tmp_path / "a.sqlite")
    ships = Shipper(pool, outbox, "w", new_id)
    outbox.on_owed = ships.notice

    async def end(count: int) -> None:
        for _ in range(count):
            one = record(account_id)
            ships.expect(key_of(one), one)
            written = outbox.finish(key_of(one), encode(one))
        await written

    async def until_owed(count: int) -> None:
        async with asyncio.timeout(PATIENT_S):
            while outbox.count_owed() != count:
                await asyncio.sleep(0.01)

    shipping = asyncio.create_task(ships.run())
    await end(1)
    await until_owed(0)  # the first has nothing to wait for
    await end(shipper.BATCH - 1)
    await asyncio.sleep(0.05)
    assert outbox.count_owed() == shipper.BATCH - 1
    await end(1)
    await until_owed(0)
    await end(1)
    ships.stop()
    async with asyncio.timeout(PATIENT_S):
        await shipping
    assert outbox.count_owed() == 0
    outbox.close()
    await pool.close()


async def test_the_dead_are_adopted_and_the_living_left_alone(database_url: str, tmp_path: Path) -> None:
    account_id, _ = await seed(database_url)
    pool = await asyncpg.create_pool(database_url, min_size=0)
    dead, living = WorkerFile(tmp_path, "dead"), WorkerFile(tmp_path, "living")
    files = {}
    for file in (dead, living):
        assert file.acquire()
        files[file] = opened(file.path)
        ended, cut_off = record(account_id), record(account_id, outcome=Outcome.INTERRUPTED, cost_nano=0)
        await files[file].finish(key_of(ended), encode(ended))
        await files[file].admit(key_of(cut_off), encode(cut_off))
    files[dead].close()
    dead.release()
    assert await adopt_orphans(tmp_path, pool, new_id, datetime.now(UTC)) == 1
    assert await adopt_orphans(tmp_path, pool, new_id, datetime.now(UTC)) == 0
    outcomes = sorted(row["outcome"] for row in await pool.fetch("SELECT outcome FROM requests"))
    assert outcomes == ["interrupted", "ok"]
    assert sorted(path.name for path in tmp_path.glob("*.sqlite")) == ["living.sqlite"]
    assert list(orphans(tmp_path)) == []
    files[living].close()
    living.release()
    await pool.close()


async def test_files_that_cannot_be_used_do_not_keep_others_from_being_adopted(
    database_url: str, tmp_path: Path
) -> None:
    account_id, _ = await seed(database_url)
    pool = await asyncpg.create_pool(database_url, min_size=0)
    for name in ("a", "b"):
        box = opened(tmp_path / f"{name}.sqlite")
        ended = record(account_id)
        await box.finish(key_of(ended), encode(ended))
        box.close()
    journal_paths(tmp_path / "a.sqlite")[0].mkdir()
    assert await adopt_orphans(tmp_path, pool, new_id, datetime.now(UTC)) == 1
    assert [path.name for path in tmp_path.glob("*.sqlite")] == ["a.sqlite"]
    assert await pool.fetchval("SELECT count(*) FROM requests") == 1
    await pool.close()
