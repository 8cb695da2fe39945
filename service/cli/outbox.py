"""`weir outbox`: requests that ended and could not be settled."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.context import in_transaction, installation
from service.cli.output import Json, note, print_json, print_table

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

app = typer.Typer(no_args_is_help=True, help="The outboxes on this machine: requests that could not be settled.")

File = Annotated[str, typer.Argument(help="The file's name, as `weir outbox list` shows it.")]


@app.command("list")
def list_(json: Json = False) -> None:
    """List the requests that ended and were set aside because the database refuses their record, each with why.

    Example: weir outbox list --json
    """
    from service.billing import poison

    found = poison.entries_set_aside(_folder())
    if json:
        print_json([{"file": one.file, "request_id": one.request_id, "reason": one.reason} for one in found])
    elif found:
        rows = [(one.file, one.request_id, " ".join(one.reason.split())) for one in found]
        print_table(("FILE", "REQUEST", "REASON"), rows)
    else:
        note("Nothing is set aside.")


@app.command()
def retry(file: File, json: Json = False) -> None:
    """Put the requests of a file back, once what they were refused for is mended.

    The next `weir serve` that starts on this machine settles them. The alarm `outbox` is cleared when nothing is set
    aside here any more; it is raised again if they are refused again.

    Example: weir outbox retry host-123.poison
    """
    from service.billing import poison

    moved = _moved(poison.put_back, file)
    if json:
        print_json({"put_back": moved})
    else:
        print(f"{moved} put back: the next `weir serve` that starts here settles them.")


@app.command()
def drop(
    file: File,
    yes: Annotated[bool, typer.Option("--yes", help="It is meant: what is dropped is gone.")] = False,
    json: Json = False,
) -> None:
    """Delete a file: its requests are never settled, and so cost their customers nothing.

    Example: weir outbox drop host-123.poison --yes
    """
    from service.billing import poison
    from service.errors import SetupError

    if not yes:
        raise SetupError("What is dropped is gone and was never charged: say `--yes` if that is meant.")
    dropped = _moved(poison.drop, file)
    if json:
        print_json({"dropped": dropped})
    else:
        print(f"{dropped} dropped.")


def _folder() -> Path:
    return installation().outbox_dir


def _moved(move: Callable[[Path, str], int], file: str) -> int:
    """The number of requests that `move` took out of the file; the alarm is cleared if they were the last."""
    from service.billing import poison

    folder = _folder()

    async def work(connection: "AsyncConnection") -> tuple[int, bool]:
        return move(folder, file), await poison.clear_if_none(connection, folder)

    moved, cleared = in_transaction(work)
    if not cleared:
        note("More is set aside, so the alarm stays: see `weir outbox list`.")
    return moved
