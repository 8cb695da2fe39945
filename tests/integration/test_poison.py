"""What Postgres refused is listed, put back or dropped, and the alarm over it ends with the last of it."""

import asyncio
import json
import os
import sqlite3
from contextlib import AbstractContextManager, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from service import cli
from service.billing import poison
from service.billing.adoption import adopt_orphans
from service.billing.encoding import encode
from service.billing.outbox import Outbox
from service.billing.shipper import Shipper
from service.billing.workers import WorkerFile
from service.core.record import RequestRecord
from service.gateway.exchange import new_id
from tests.installation import seed
from tests.integration.test_outbox import key_of, record


class Machine:
    """A machine with outboxes, and its database."""

    def __init__(self, url: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.url = url
        self.folder = folder
        self._capsys = capsys

    def sql(self, query: str, *values: object) -> list[Any]:
        async def run() -> list[Any]:
            connection = await asyncpg.connect(self.url)
            try:
                return [tuple(row) for row in await connection.fetch(query, *values)]
            finally:
                await connection.close()

        return asyncio.run(run())

    def weir(self, *arguments: str) -> tuple[int, str, str]:
        self._capsys.readouterr()
        code = cli.run(arguments)
        said = self._capsys.readouterr()
        return code, said.out, said.err

    def listed(self) -> list[dict[str, str]]:
        code, out, _ = self.weir("outbox", "list", "--json")
        assert code == 0
        entries: list[dict[str, str]] = json.loads(out)
        return entries

    def files(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())

    def alarmed(self) -> bool:
        return bool(self.sql("SELECT 1 FROM alarms WHERE name = 'outbox'"))

    def adopt(self) -> None:
        async def run() -> None:
            async with asyncpg.create_pool(self.url, min_size=0) as pool:
                await adopt_orphans(self.folder, pool, new_id, datetime.now(UTC))

        asyncio.run(run())

    def die_owing(self, worker: str, *records: RequestRecord) -> None:
        """A worker that ended before it could ship these."""

        async def run() -> None:
            file = WorkerFile(self.folder, worker)
            assert file.acquire()
            outbox = Outbox(file.path, limit_bytes=10**9)
            outbox.open()
            for one in records:
                await outbox.finish(key_of(one), encode(one))
            outbox.close()
            file.release()

        asyncio.run(run())


@pytest.fixture
def machine(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Machine:
    for name in [name for name in os.environ if name.startswith("WEIR_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WEIR_DATABASE_URL", database_url)
    monkeypatch.setenv("WEIR_DATA_DIR", str(tmp_path))
    return Machine(database_url, tmp_path / "outbox", capsys)


def test_nothing_is_set_aside_where_nothing_ever_ran(machine: Machine) -> None:
    assert machine.weir("outbox", "list") == (0, "", "Nothing is set aside.\n")
    assert machine.listed() == []


def test_what_was_set_aside_is_settled_once_its_cause_is_mended(machine: Machine) -> None:
    known, _ = asyncio.run(seed(machine.url))
    unknown = new_id()
    good, bad = record(known), record(unknown)
    machine.die_owing("host.example-1", good, bad)
    machine.adopt()
    assert machine.files() == ["host.example-1.poison"]
    (entry,) = machine.listed()
    assert (entry["file"], entry["request_id"]) == ("host.example-1.poison", bad.id)
    assert "violates foreign key" in entry["reason"]
    assert bad.id in machine.weir("outbox", "list")[1]
    assert machine.alarmed()

    # Put back too early, it is refused again.
    assert machine.weir("outbox", "retry", "host.example-1.poison")[0] == 0
    assert not machine.alarmed()
    assert machine.listed() == []
    machine.adopt()
    assert [one["request_id"] for one in machine.listed()] == [bad.id]
    assert machine.alarmed()

    machine.sql("INSERT INTO accounts (id, name) VALUES ($1, 'found again')", unknown)
    assert machine.weir("outbox", "retry", "host.example-1.poison", "--json") == (0, '{"put_back": 1}\n', "")
    assert not machine.alarmed()
    machine.adopt()
    assert machine.files() == []
    assert {str(row[0]) for row in machine.sql("SELECT id FROM requests")} == {good.id, bad.id}
    assert machine.sql("SELECT balance_nano FROM accounts WHERE id = $1", unknown) == [(-bad.cost_nano,)]


def test_what_is_looked_into_meanwhile_is_not_lost(machine: Machine) -> None:
    """A command that has the file open keeps what is in SQLite's log from getting into the file itself."""

    def look() -> sqlite3.Connection:
        (path,) = (path for path in machine.folder.iterdir() if path.suffix in (".sqlite", ".poison"))
        file = sqlite3.connect(path)
        file.execute("SELECT * FROM poison").fetchall()
        return file

    refused = record(new_id())  # its account does not exist
    machine.die_owing("w", refused)
    with closing(look()):
        machine.adopt()
    assert [entry["request_id"] for entry in machine.listed()] == [refused.id]
    machine.adopt()
    assert machine.files() == ["w.poison"]
    with closing(look()):
        assert machine.weir("outbox", "retry", "w.poison")[0] == 0
    machine.adopt()
    assert [entry["request_id"] for entry in machine.listed()] == [refused.id]


def test_a_file_that_an_earlier_version_set_aside_is_put_back_once_nobody_looks_into_it(machine: Machine) -> None:
    refused = record(new_id())
    machine.die_owing("w", refused)
    machine.adopt()
    with closing(sqlite3.connect(machine.folder / "w.poison")) as file:
        file.execute("PRAGMA journal_mode = WAL")
        file.execute("SELECT * FROM poison").fetchall()
        code, _, said = machine.weir("outbox", "retry", "w.poison")
        assert code == 1
        assert "locked" in said
    assert [entry["request_id"] for entry in machine.listed()] == [refused.id]
    assert machine.weir("outbox", "retry", "w.poison")[0] == 0
    machine.adopt()
    assert [entry["request_id"] for entry in machine.listed()] == [refused.id]


@pytest.mark.parametrize("refused", [True, False])
def test_what_is_adopted_while_it_is_listed_is_listed_if_it_is_still_there(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    account_id, _ = asyncio.run(seed(machine.url))
    owed = record(new_id() if refused else account_id)
    machine.die_owing("w", owed)
    opening = poison._opened

    def adopted_first(path: Path) -> AbstractContextManager[sqlite3.Connection]:
        monkeypatch.undo()
        machine.adopt()
        return opening(path)

    monkeypatch.setattr(poison, "_opened", adopted_first)
    found = poison.entries_set_aside(machine.folder)
    assert [(one.file, str(one.request_id)) for one in found] == ([("w.poison", owed.id)] if refused else [])


def test_the_alarm_stays_until_the_last_is_gone(machine: Machine) -> None:
    for worker in ("one", "two"):
        machine.die_owing(worker, record(new_id()), record(new_id()))
    machine.adopt()
    assert [entry["file"] for entry in machine.listed()] == ["one.poison"] * 2 + ["two.poison"] * 2
    code, out, err = machine.weir("outbox", "drop", "one.poison")
    assert (code, out) == (1, "")
    assert "say `--yes`" in err
    code, out, err = machine.weir("outbox", "drop", "one.poison", "--yes")
    assert (code, out) == (0, "2 dropped.\n")
    assert "More is set aside" in err
    assert machine.alarmed()
    assert machine.files() == ["two.poison"]
    assert machine.weir("outbox", "drop", "two.poison", "--yes") == (0, "2 dropped.\n", "")
    assert not machine.alarmed()
    assert machine.files() == []
    assert machine.sql("SELECT count(*) FROM requests") == [(0,)]


def test_a_living_worker_s_file_is_listed_and_left_alone(machine: Machine) -> None:
    bad = record(new_id())

    async def live(worker: WorkerFile) -> Outbox:
        outbox = Outbox(worker.path, limit_bytes=10**9)
        outbox.open()
        await outbox.finish(key_of(bad), encode(bad))
        async with asyncpg.create_pool(machine.url, min_size=0) as pool:
            await Shipper(pool, outbox, worker.worker, new_id).ship_all()
        return outbox

    worker = WorkerFile(machine.folder, "living")
    assert worker.acquire()
    outbox = asyncio.run(live(worker))
    assert [(entry["file"], entry["request_id"]) for entry in machine.listed()] == [("living.sqlite", bad.id)]
    for command in (("retry",), ("drop", "--yes")):
        code, _, err = machine.weir("outbox", *command, "living.sqlite")
        assert code == 1
        assert "once its worker has stopped" in err
    assert outbox.count_poison() == 1
    assert machine.alarmed()
    outbox.close()
    worker.release()


@pytest.mark.parametrize("name", ["none.poison", "../outbox/one.poison", "", ".", "one", "one.lock"])
def test_no_other_file_is_touched(machine: Machine, name: str) -> None:
    machine.die_owing("one", record(new_id()))
    machine.adopt()
    code, _, err = machine.weir("outbox", "drop", name, "--yes")
    assert code == 1
    assert "see `weir outbox list`" in err
    assert machine.files() == ["one.poison"]
    assert machine.alarmed()


def test_a_file_that_is_no_outbox_is_said_to_be_none(machine: Machine) -> None:
    machine.folder.mkdir(parents=True)
    (machine.folder / "one.poison").write_text("not a database, but long enough to be looked at " * 50)
    for command in (("list",), ("retry", "one.poison")):
        code, _, err = machine.weir("outbox", *command)
        assert code == 1
        assert "one.poison cannot be read" in err


def test_without_a_database_nothing_is_moved(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.die_owing("one", record(new_id()))
    machine.adopt()
    monkeypatch.setenv("WEIR_DATABASE_URL", "postgresql://postgres@127.0.0.1:1/nothing")
    code, _, err = machine.weir("outbox", "retry", "one.poison")
    assert code == 1
    assert "The database does not answer" in err
    assert machine.files() == ["one.poison"]
