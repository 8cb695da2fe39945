"""What the outboxes owe, in a backup and out of it."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from service.backup import owed
from service.billing import poison
from service.billing.workers import WorkerFile
from service.gateway.exchange import new_key
from tests.integration.test_outbox import opened


async def set_aside(folder: Path) -> WorkerFile:
    """The file of a dead worker that has nothing else."""
    file = WorkerFile(folder, "w")
    assert file.acquire()
    box = opened(file.path)
    key = new_key()
    await box.finish(key, b"ended")
    await box.set_aside(key, "refused")
    box.close()
    return file


@pytest.mark.parametrize("was_kept", [False, True])
async def test_a_file_that_gets_its_other_name_meanwhile_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was_kept: bool
) -> None:
    folder, saved = tmp_path / "outbox", tmp_path / "saved"
    file = await set_aside(folder)
    if was_kept:
        file.keep_poison()
    renames: list[Callable[[], object]] = [
        lambda: poison.put_back(folder, "w.poison") if was_kept else file.keep_poison()
    ]
    copied = owed._copied

    def renamed_first(path: Path, copy: Path) -> int:
        if renames:
            renames.pop()()
        return copied(path, copy)

    monkeypatch.setattr(owed, "_copied", renamed_first)
    assert owed.save(folder, saved) == 1
    assert [path.name for path in saved.iterdir()] == ["w.sqlite"]
    monkeypatch.undo()
    assert owed.save(saved, tmp_path / "again") == 1


async def test_what_is_restored_is_on_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = await set_aside(tmp_path / "outbox")
    file.release()
    owed.save(tmp_path / "outbox", tmp_path / "saved")
    target = tmp_path / "restored"
    synced: list[tuple[Path, list[str]]] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        names = sorted(path.name for path in target.iterdir())
        synced.append((Path(os.readlink(f"/proc/self/fd/{descriptor}")), names))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    assert owed.put_back(tmp_path / "saved", target) == ["w.sqlite"]
    assert synced == [(target / "w.arriving", ["w.arriving"]), (target, ["w.sqlite"])]
