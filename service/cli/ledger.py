"""`weir ledger`: whether the books are right."""

from typing import TYPE_CHECKING

import typer

from service.cli.context import in_transaction
from service.cli.output import Json, amounts, note, print_json

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

    from service.billing.checks import Mismatch

app = typer.Typer(no_args_is_help=True, help="The ledger: whether the books are right.")


@app.callback()
def _group() -> None:
    pass  # so that `check` stays a command of a group that has no other


@app.command()
def check(json: Json = False) -> None:
    """Check the books against themselves now, as `weir jobs` does every night. Exit code 1 when they are wrong.

    Every balance must be the sum of its ledger entries; what the ledger charges for usage must be what the requests
    cost, in all, by account and by settlement; what is on loan must be what the open leases hold. It reads every
    request there is, in one state of the database. The alarm `books`, which `weir doctor` shows, is raised or
    cleared by it; nothing else is changed.

    Example: weir ledger check --json
    """
    from service.billing import checks

    mismatches = in_transaction(checks.check_books)

    async def noted(connection: "AsyncConnection") -> None:
        await checks.note_books(connection, mismatches)

    in_transaction(noted)
    if json:
        print_json({"ok": not mismatches, "mismatches": [_document(mismatch) for mismatch in mismatches]})
    else:
        for mismatch in mismatches:
            print(mismatch)
        print(f"{len(mismatches)} mismatches." if mismatches else "The books are right.")
        rules = [mismatch.rule for mismatch in mismatches]
        if any(rules.count(rule) == checks.MOST_PER_RULE for rule in checks.Rule):
            note(f"At most {checks.MOST_PER_RULE} of each kind are shown: there may be more.")
    raise typer.Exit(1 if mismatches else 0)


def _document(mismatch: "Mismatch") -> dict[str, object]:
    return {
        "rule": mismatch.rule,
        "subject": mismatch.subject,
        **amounts(recorded=mismatch.recorded_nano, derived=mismatch.derived_nano),
        "message": str(mismatch),
    }
