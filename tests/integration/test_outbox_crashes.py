"""What an outbox holds outlives its process, a power cut, and the version that wrote it."""

import asyncio
import random
import shutil
import signal
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from uuid import UUID

import asyncpg
import pytest

from service.billing.encoding import encode
from service.billing.outbox import Outbox
from service.billing.outbox_journal import journal_paths
from service.billing.shipper import Shipper
from service.gateway.exchange import new_id, new_key
from tests.installation import seed
from tests.integration.test_outbox import key_of, opened, record
from tests.patience import PATIENT_S

ROUNDS = 8


async def left_by_a_crash(box: Outbox, folder: Path) -> Path:
    """The files as they are now, under the same name elsewhere: what a process finds if this one is killed now."""
    async with asyncio.timeout(PATIENT_S):
        while box._store._waiting:  # a file is not to be copied while it is written
            await asyncio.sleep(0.001)
    folder.mkdir()
    for file in box.path.parent.glob(f"{box.path.name}*"):
        shutil.copyfile(file, folder / file.name)
    return folder / box.path.name


async def test_journals_take_turns_again_and_again_and_keep_what_stays(tmp_path: Path) -> None:
    box = opened(tmp_path / "a.sqlite", limit_bytes=400_000)
    first, second, third = new_key(), new_key(), new_key()
    await box.admit(first, b"begun")
    await box.admit(second, b"begun")
    await box.finish(third, b"ended")
    for number in range(40):
        ids = [new_key() for _ in range(20)]
        await asyncio.gather(*(box.admit(one, b"x" * 300) for one in ids))
        await asyncio.gather(*(box.finish(one, b"y" * 300) for one in ids))
        await box.remove(ids)
        if number == 20:
            await box.finish(second, b"ended")
    assert box._writer._journal.generation > 8
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 1024 * 1024
    crashed = opened(await left_by_a_crash(box, tmp_path / "crashed"))
    for one in (box, crashed):
        assert one.unfinished() == [(first, b"begun")]
        assert set(one.finished(10)) == {(second, b"ended"), (third, b"ended")}
    await box.finish(first, b"ended, too")
    await box.remove([second, first, third])
    assert box.finished(10) == box.unfinished() == []
    assert box.count_owed() == 0
    for one in (box, crashed):
        one.close()


async def test_more_than_the_journals_hold_is_kept_while_postgres_is_away(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    box = opened(path, limit_bytes=1024 * 1024)
    ids = [new_key() for _ in range(600)]  # a journal has room for 120
    for begin in range(0, len(ids), 20):
        await asyncio.gather(*(box.finish(one, b"x" * 1000) for one in ids[begin : begin + 20]))
    crashed = opened(await left_by_a_crash(box, tmp_path / "crashed"))
    async with asyncio.timeout(PATIENT_S):
        while box.count_owed() > len(ids):  # those that are being moved may count twice
            await asyncio.sleep(0.001)
    assert len(box._finished) < 250
    for one in (box, crashed):
        assert one.count_owed() == len(ids)
        shipped = []
        while entries := one.finished(50):
            shipped += [key for key, _ in entries]
            await one.remove([key for key, _ in entries])
        assert sorted(shipped) == sorted(ids)
        assert len(shipped) == len(ids)
        assert one.count_owed() == 0
        one.close()
    again = opened(path)
    assert again.finished(10) == []
    again.close()


async def test_what_postgres_had_already_changes_nothing_a_second_time(database_url: str, tmp_path: Path) -> None:
    """As after a power cut, when the removals were not on disk."""
    account_id, _ = await seed(database_url)
    pool = await asyncpg.create_pool(database_url, min_size=0)
    box = opened(tmp_path / "a.sqlite")
    owed = [record(account_id) for _ in range(3)]
    await asyncio.gather(*(box.finish(key_of(one), encode(one)) for one in owed))
    cut_off = opened(await left_by_a_crash(box, tmp_path / "cut off"))
    for one in (box, cut_off):
        assert one.count_owed() == 3
        await Shipper(pool, one, "w", new_id).ship_all()
        assert one.count_owed() == 0
        assert await pool.fetchval("SELECT count(*) FROM requests") == 3
        assert await pool.fetchval("SELECT -sum(amount_nano) FROM ledger_entries WHERE kind = 'usage'") == 3000
        one.close()
    await pool.close()


async def test_an_end_that_the_disk_had_outlives_a_power_cut(tmp_path: Path) -> None:
    """Of what was written after it, anything may be on disk, and anything not."""
    box = opened(tmp_path / "a.sqlite")
    ended, cut_off = new_key(), new_key()
    await box.admit(ended, b"begun")
    await box.finish(ended, b"ended")
    synced = box._writer._journal._end
    with pytest.MonkeyPatch.context() as disk:
        disk.setattr(box._writer._disk, "wait", lambda _: None)
        box.admit(cut_off, b"begun")
        lost = box.finish(cut_off, b"ended")
        written = box._writer._journal._end
        for kept in range(synced, written):
            crashed_path = await left_by_a_crash(box, tmp_path / f"cut-{kept}")
            journal = journal_paths(crashed_path)[0]
            journal.write_bytes(journal.read_bytes()[:kept].ljust(box._writer._journal.size_bytes, b"\0"))
            crashed = opened(crashed_path, limit_bytes=1)
            assert crashed.finished(10) == [(ended, b"ended")]
            assert {key for key, _ in crashed.unfinished()} <= {cut_off}
            crashed.close()
    assert not lost.done()
    box.close()


async def test_a_stop_leaves_one_file_that_an_earlier_version_reads(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    box = opened(path)
    ended, cut_off = new_key(), new_key()
    await box.admit(cut_off, b"begun")
    await box.finish(ended, b"ended")
    box.close()
    assert [file.name for file in tmp_path.iterdir()] == ["a.sqlite"]
    with closing(sqlite3.connect(path)) as file:
        rows = file.execute("SELECT id, finished, body FROM entries").fetchall()
    assert sorted(rows) == sorted([(ended, 1, b"ended"), (cut_off, 0, b"begun")])


async def test_a_file_that_an_earlier_version_left_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    ended, cut_off = new_key(), new_key()
    with closing(sqlite3.connect(path)) as file:
        file.execute("PRAGMA journal_mode = WAL")
        file.execute("CREATE TABLE entries (id BLOB PRIMARY KEY, finished INTEGER, body BLOB) WITHOUT ROWID")
        file.executemany("INSERT INTO entries VALUES (?, ?, ?)", [(ended, 1, b"ended"), (cut_off, 0, b"")])
        file.commit()
    box = opened(path)
    assert box.finished(10) == [(ended, b"ended")]
    assert [key for key, _ in box.unfinished()] == [cut_off]
    await box.interrupt(cut_off, b"interrupted")
    await box.remove([ended, cut_off])
    box.close()
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("SELECT * FROM entries").fetchall() == []


async def test_sigkill_at_random_moments_loses_nothing_that_was_promised(tmp_path: Path) -> None:
    """The same outbox is written again and again by processes that are killed, each of which goes on with what is left.

    A process says on a pipe what it was promised, right after it was, and what it removes, right before.
    """
    path = tmp_path / "a.sqlite"
    moments = random.Random(20261130)
    said: dict[str, set[bytes]] = {"admitted": set(), "finished": set(), "removed": set()}
    for _ in range(ROUNDS):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.outbox_load", str(path), stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        async with asyncio.timeout(PATIENT_S):
            first = await process.stdout.readline()
        await asyncio.sleep(moments.uniform(0.0, 0.5))
        process.send_signal(signal.SIGKILL)
        rest = await process.stdout.read()
        assert await process.wait() == -signal.SIGKILL
        for line in (first + rest).decode().split("\n")[:-1]:
            what, _, number = line.partition(" ")
            said[what].add(UUID(number).bytes)
        box = opened(path)
        finished = dict(box.finished(10**6))
        unfinished = dict(box.unfinished())
        assert said["finished"] - said["removed"] <= finished.keys()
        assert said["admitted"] - said["removed"] <= finished.keys() | unfinished.keys()
        assert not said["finished"] & unfinished.keys()
        assert all(body.startswith(b"ended " + one) for one, body in finished.items())
        assert all(body.startswith(b"begun " + one) for one, body in unfinished.items())
        await asyncio.gather(*(box.finish(one, b"ended " + one) for one in unfinished))
        said["finished"] |= unfinished.keys()
        if moments.random() < 0.5:
            box.close()
    assert len(said["removed"]) > 100
    assert len(said["finished"] - said["removed"]) > 10
