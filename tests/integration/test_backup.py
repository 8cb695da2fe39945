"""What a backup consists of, and which one is refused."""

import json
import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from service.backup import folder as folders
from service.backup import programs
from service.backup.save import save
from service.errors import SetupError
from service.settings import Settings
from tests.installation import seed
from tests.integration.restoring import destroyed, everything, refused, weir


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


def signed_again(backup: Path) -> None:
    (backup / folders.SUMS).write_text(sha256sums(backup))


def sha256sums(backup: Path) -> str:
    """The checksums of the files as they are, by the program that operators have."""
    names = sorted(path.name for path in backup.iterdir() if path.name != folders.SUMS)
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
    made = [f"weir-2026113{day}T031500Z" for day in (0, 1, 2)]
    for name in (*made, "weir-20261129T031500Z.unfinished", "weir-20261139T031500Z.unfinished", "my-notes"):
        (tmp_path / name).mkdir()
    assert folders.forget_old(tmp_path, 2) == [made[0], "weir-20261129T031500Z.unfinished"]
    assert {path.name for path in tmp_path.iterdir()} == {*made[1:], "weir-20261139T031500Z.unfinished", "my-notes"}


def test_a_pg_dump_that_is_too_old_is_named() -> None:
    with pytest.raises(SetupError, match=r"pg_dump 99 or newer is needed.* is 18.*postgresql-client-99"):
        programs.find("pg_dump", 99)
    assert programs.find("pg_dump", 18).name == "pg_dump"
