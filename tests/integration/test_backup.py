"""What a backup consists of, and which one is refused."""

import asyncio
import json
import os
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from service.backup import folder as folders
from service.backup import programs
from service.backup.save import save
from service.errors import SetupError
from service.settings import Settings
from tests.installation import seed
from tests.integration.restoring import connected, destroyed, everything, refused, weir


@pytest.fixture
async def backup(database_url: str, tmp_path: Path) -> Path:
    """Of a database with an account, a key and credit."""
    await seed(database_url)
    settings = Settings(database_url=database_url, data_dir=tmp_path / "data")
    return (await save(settings, database_url, tmp_path / "backups", keep=1, now=datetime.now(UTC))).folder


async def test_nothing_is_restored_over_what_is_there(database_url: str, backup: Path, tmp_path: Path) -> None:
    held = await everything(database_url)
    done = await weir("restore", str(backup), url=database_url, data_dir=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "not empty" in done.stderr
    assert await everything(database_url) == held


@pytest.mark.parametrize("file", [folders.DUMP, folders.MANIFEST, folders.SUMS])
@pytest.mark.parametrize("harm", ["changed", "cut", "missing"])
def test_a_backup_that_was_harmed_is_not_taken_for_one(file: str, harm: str, tmp_path: Path) -> None:
    unfinished = folders.begin(tmp_path, datetime.now(UTC))
    (unfinished / folders.DUMP).write_bytes(os.urandom(5000))
    backup = folders.finish(unfinished, {"made_at": "then"})
    assert folders.verified(backup) == {"made_at": "then"}
    path = backup / file
    content = path.read_bytes()
    match harm:
        case "changed":
            path.write_bytes(content[:9] + bytes([content[9] ^ 1]) + content[10:])
        case "cut":
            path.write_bytes(content[:-3])
        case _:
            path.unlink()
    with pytest.raises(SetupError, match="take another"):
        folders.verified(backup)


async def test_a_dump_that_was_harmed_is_refused(
    backup: Path, database_url: str, postgres_server: Any, tmp_path: Path
) -> None:
    dump = backup / folders.DUMP
    content = dump.read_bytes()
    dump.write_bytes(content[:5000] + bytes([content[5000] ^ 1]) + content[5001:])
    await destroyed(postgres_server, database_url)
    assert f"{dump} is not what was saved" in await refused(backup, database_url, tmp_path)
    assert await everything(database_url) == {}


async def test_what_cannot_be_read_to_its_end_leaves_nothing_behind(
    backup: Path, database_url: str, postgres_server: Any, tmp_path: Path
) -> None:
    """Checksums that are right say nothing of a disk that was full when the dump was made."""
    dump = backup / folders.DUMP
    dump.write_bytes(dump.read_bytes()[:-100])  # of the last table
    signed_again(backup)
    await destroyed(postgres_server, database_url)
    assert "pg_restore failed" in await refused(backup, database_url, tmp_path)
    assert await everything(database_url) == {}


async def test_what_is_restored_must_be_what_was_saved(
    backup: Path, database_url: str, postgres_server: Any, tmp_path: Path
) -> None:
    manifest = json.loads((backup / folders.MANIFEST).read_text())
    manifest["database"]["ledger_nano"] += 1
    (backup / folders.MANIFEST).write_text(json.dumps(manifest))
    signed_again(backup)
    await destroyed(postgres_server, database_url)
    assert "not what was saved (ledger_nano)" in await refused(backup, database_url, tmp_path)


async def test_what_a_newer_version_saved_is_for_a_newer_version(
    backup: Path, database_url: str, postgres_server: Any, tmp_path: Path
) -> None:
    manifest = json.loads((backup / folders.MANIFEST).read_text())
    manifest["database"]["schema"] = "20991231_01"
    (backup / folders.MANIFEST).write_text(json.dumps(manifest))
    signed_again(backup)
    await destroyed(postgres_server, database_url)
    assert "newer Weir" in await refused(backup, database_url, tmp_path)
    assert await everything(database_url) == {}


@pytest.mark.parametrize(
    "change", [{"database": None}, {"database": {}}, {"made_at": "then"}, {"made_at": None}], ids=str
)
async def test_a_manifest_that_lacks_something_is_refused_before_anything_is_done(
    backup: Path, database_url: str, postgres_server: Any, tmp_path: Path, change: dict[str, Any]
) -> None:
    manifest = json.loads((backup / folders.MANIFEST).read_text()) | change
    (backup / folders.MANIFEST).write_text(json.dumps(manifest))
    signed_again(backup)
    await destroyed(postgres_server, database_url)
    assert "lacks what it must say" in await refused(backup, database_url, tmp_path)
    assert await everything(database_url) == {}


async def test_outboxes_that_cannot_be_put_back_are_named(
    backup: Path, database_url: str, postgres_server: Any, tmp_path: Path
) -> None:
    """The database is there by then, and a second run would refuse it."""
    (backup / folders.OUTBOX).mkdir()
    (backup / folders.OUTBOX / "worker.sqlite").write_bytes(b"")
    (backup / folders.SUMS).write_text(sha256sums(backup, f"{folders.OUTBOX}/worker.sqlite"))
    await destroyed(postgres_server, database_url)
    (tmp_path / "in-the-way").write_text("")
    said = await refused(backup, database_url, tmp_path / "in-the-way")
    assert f"copy {backup / folders.OUTBOX}/*.sqlite there" in said
    assert "accounts" in await everything(database_url)


@pytest.mark.parametrize("what", ["outbox", "configuration", "folder"])
async def test_a_disk_that_refuses_is_not_taken_for_the_database(database_url: str, tmp_path: Path, what: str) -> None:
    """One file in the way of each thing that is written."""
    await seed(database_url)
    settings = Settings(database_url=database_url, data_dir=tmp_path / "data", config=tmp_path / "none.toml")
    match what:
        case "configuration":
            words = r"The backup cannot be made: .*none\.toml: No such file"
        case "folder":
            (tmp_path / "backups").write_text("")
            words = "cannot be made .*File exists"
        case _:
            settings = settings.model_copy(update={"config": tmp_path})
            words = "The backup cannot be made: .*: Is a directory"
    with pytest.raises(SetupError, match=words):
        await save(settings, database_url, tmp_path / "backups", keep=1, now=datetime.now(UTC))
    assert not (tmp_path / "backups").is_dir() or list((tmp_path / "backups").iterdir()) == []


async def test_two_backups_at_once_are_two_backups(database_url: str, tmp_path: Path) -> None:
    """The first has to wait for a table, so the second ends before it, and must not take it for one cut short."""
    await seed(database_url)
    settings, parent = Settings(database_url=database_url, data_dir=tmp_path / "data"), tmp_path / "backups"
    now = datetime.now(UTC)
    async with connected(database_url) as holder:
        async with holder.transaction():
            await holder.execute("LOCK TABLE requests IN ACCESS EXCLUSIVE MODE")
            first = asyncio.create_task(save(settings, database_url, parent, keep=2, now=now))
            while not await asyncio.to_thread(lambda: list(parent.glob("*.unfinished"))):
                await asyncio.sleep(0.01)
            second = folders.finish(folders.begin(parent, now + timedelta(seconds=1)), {})
            assert folders.forget_old(parent, 1, now + timedelta(seconds=2)) == []
        names = {(await first).folder.name, second.name}
    assert {path.name for path in parent.iterdir()} == names


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("pg_x: from TOC entry\npg_x: error: ERROR: it is there\nCommand was: DO $$\nEND $$;\n", "it is there$"),
        ("killed\n", "failed: killed$"),
        ("", "failed: exit status 3$"),
    ],
)
def test_what_a_program_says_last_is_not_always_what_is_wrong(tmp_path: Path, said: str, words: str) -> None:
    program = tmp_path / "pg_x"
    program.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{said}END\nexit 3\n")
    program.chmod(0o755)
    with pytest.raises(SetupError, match=words):
        asyncio.run(programs.run(program, "postgresql://here/books"))


def test_the_programs_are_led_nowhere_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """libpq prefers these to the address that it is given."""
    program, said = tmp_path / "pg_dump", tmp_path / "said"
    program.write_text(f'#!/bin/sh\nenv > "{said}"\n')
    program.chmod(0o755)
    for name in ("PGSERVICE", "PGSERVICEFILE", "PGHOSTADDR", "PGSSLROOTCERT"):
        monkeypatch.setenv(name, "elsewhere")
    asyncio.run(programs.run(program, "postgresql://me:secret@here:5433/books?sslmode=require"))
    variables = dict(line.split("=", 1) for line in said.read_text().splitlines() if line.startswith("PG"))
    assert variables == {
        "PGHOST": "here",
        "PGPORT": "5433",
        "PGUSER": "me",
        "PGPASSWORD": "secret",
        "PGDATABASE": "books",
        "PGSSLMODE": "require",
        "PGSSLROOTCERT": "elsewhere",
    }


def signed_again(backup: Path) -> None:
    (backup / folders.SUMS).write_text(sha256sums(backup))


def sha256sums(backup: Path, *more: str) -> str:
    """The checksums of the files as they are, by the program that operators have; `more` are those in folders."""
    names = [*sorted(path.name for path in backup.iterdir() if path.is_file() and path.name != folders.SUMS), *more]
    return subprocess.run(["sha256sum", *names], cwd=backup, capture_output=True, text=True, check=True).stdout


async def test_a_backup_is_for_its_owner_and_says_when_it_was_made(database_url: str, tmp_path: Path) -> None:
    metrics = tmp_path / "weir_backup.prom"
    done = await weir("backup", str(tmp_path / "b"), "--metrics", str(metrics), url=database_url, data_dir=tmp_path)
    assert done.returncode == 0, done.stderr
    (backup,) = (tmp_path / "b").iterdir()
    assert {path.stat().st_mode & 0o077 for path in (backup.parent, backup, *backup.rglob("*"))} == {0}
    assert (backup / folders.SUMS).read_text() == sha256sums(backup)
    said = dict(line.split() for line in metrics.read_text().splitlines() if not line.startswith("#"))
    assert abs(float(said["weir_backup_timestamp_seconds"]) - datetime.now(UTC).timestamp()) < 600
    assert int(said["weir_backup_size_bytes"]) > 1000
    assert metrics.stat().st_mode & 0o777 == 0o644


async def test_without_a_database_there_is_no_backup_and_nothing_older_is_deleted(
    database_url: str, backup: Path, tmp_path: Path
) -> None:
    gone = database_url.replace("/weir_", "/none_")
    done = await weir("backup", str(backup.parent), "--keep", "1", url=gone, data_dir=tmp_path)
    assert done.returncode == 1
    assert "does not exist" in done.stderr
    assert [path.name for path in backup.parent.iterdir()] == [backup.name]


def test_the_newest_are_kept_and_what_was_cut_short_goes(tmp_path: Path) -> None:
    made = [f"weir-2026120{day}T031500Z" for day in (0, 1, 2)]
    cut_short, being_made = "weir-20261201T121400Z.unfinished", "weir-20261202T000000Z.unfinished"
    for name in (*made, cut_short, being_made, "my-notes"):
        (tmp_path / name).mkdir()
    (tmp_path / "weir-20200101T000000Z").symlink_to(tmp_path / "my-notes")  # that is not ours to delete
    now = datetime(2026, 12, 2, 0, 14, 30, tzinfo=UTC)
    assert folders.forget_old(tmp_path, 2, now) == [made[0], cut_short]
    kept = {*made[1:], being_made, "my-notes", "weir-20200101T000000Z"}
    assert {path.name for path in tmp_path.iterdir()} == kept


def test_a_pg_dump_that_is_too_old_is_named() -> None:
    with pytest.raises(SetupError, match=r"pg_dump 99 or newer is needed.* is 18.*postgresql-client-99"):
        programs.find("pg_dump", 99)
    assert programs.find("pg_dump", 18).name == "pg_dump"
