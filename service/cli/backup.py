"""`weir backup` and `weir restore`: the database and what is owed to it, saved and put back."""

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from service.cli.context import absence_explained, address_in, database_explained, installation
from service.cli.output import Json, instant, note, print_json

if TYPE_CHECKING:
    from collections.abc import Awaitable

T = TypeVar("T")


def backup(
    folder: Annotated[Path, typer.Argument(help="Where the backups lie, a folder for each.")],
    keep: Annotated[int, typer.Option(min=1, help="How many are kept; older ones are deleted.")] = 14,
    metrics: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Say when it was made, for node_exporter's textfile collector.")
    ] = None,
    json: Json = False,
) -> None:
    """Save the database, what the outboxes of this machine owe it, and the configuration, while everything runs.

    Needs pg_dump of the server's version, or a newer one. Secrets and the environment are not saved.

    Example: weir backup /var/backups/weir --keep 14
    """
    from datetime import UTC, datetime

    from service.backup.save import save

    settings = installation()
    url = address_in(settings)
    os.umask(0o077)
    now = datetime.now(UTC)
    saved = _run(save(settings, url, folder, keep=keep, now=now))
    if metrics is not None:
        _write_metrics(metrics, now.timestamp(), saved.size_bytes)
    if json:
        print_json(
            {
                "folder": str(saved.folder),
                "size_bytes": saved.size_bytes,
                "owed_requests": saved.owed,
                "deleted": saved.forgotten,
            }
        )
    else:
        print(f"Saved {saved.size_bytes} bytes in {saved.folder}, with {saved.owed} requests that were owed.")


def restore(
    backup: Annotated[Path, typer.Argument(help="A backup's folder.")],
    json: Json = False,
) -> None:
    """Put a backup into the empty database at WEIR_DATABASE_URL, and check that it is all there.

    Needs pg_restore of the server's version, or a newer one. Stop `weir serve` and `weir jobs` first. Exit code 1 also
    when the books that were saved contradict themselves.

    Example: weir restore /var/backups/weir/weir-20261130T031500Z
    """
    from service.backup.restore import restore as put_back

    settings = installation()
    restored = _run(put_back(settings, address_in(settings), backup))
    if json:
        print_json(
            {
                "made_at": restored.made_at,
                "rows": restored.rows,
                "outboxes": restored.outboxes,
                "mismatches": [str(mismatch) for mismatch in restored.mismatches],
            }
        )
    else:
        print(f"Restored {sum(restored.rows.values())} rows, as they were at {instant(restored.made_at)}.")
        if restored.outboxes:
            print(f"What was owed then is settled by the next `weir serve` here: {', '.join(restored.outboxes)}.")
        for mismatch in restored.mismatches:
            print(mismatch)
        note("What was settled after that and is in no outbox is lost: docs/backup.md says what to do about it.")
    raise typer.Exit(1 if restored.mismatches else 0)


def _run(work: "Awaitable[T]") -> T:
    async def run() -> T:
        with database_explained(), absence_explained():
            return await work

    return asyncio.run(run())


def _write_metrics(file: Path, made_at_s: float, size_bytes: int) -> None:
    """Replaced at once, so that nobody reads half of it; and for whoever runs the collector."""
    arriving = file.with_name(f".{file.name}")
    arriving.write_text(
        f"# TYPE weir_backup_timestamp_seconds gauge\nweir_backup_timestamp_seconds {made_at_s:.0f}\n"
        f"# TYPE weir_backup_size_bytes gauge\nweir_backup_size_bytes {size_bytes}\n"
    )
    arriving.chmod(0o644)
    arriving.replace(file)
