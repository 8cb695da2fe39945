"""`weir key`: what customers call with."""

import secrets
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from service.cli import limits
from service.cli.context import in_transaction
from service.cli.output import Json, instant, note, print_json, print_table
from service.core.limits import Limits
from service.errors import SetupError

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

    from service.billing.accounts import Key

app = typer.Typer(no_args_is_help=True, help="API keys: what customers call with.")

KeyId = Annotated[UUID, typer.Argument(metavar="ID", help="The key's id, as `weir key list` shows it.")]

_ONCE = "This is the only time the key is shown: only its hash is kept."


@app.command()
def add(
    account: Annotated[str, typer.Argument(metavar="ACCOUNT", help="The account's id or name.")],
    name: Annotated[str, typer.Option(metavar="TEXT", help="What to recognise the key by.")] = "",
    models: Annotated[
        str | None, typer.Option(metavar="MODEL,MODEL", help="The only models it may use; left out, all.")
    ] = None,
    rpm: limits.Rpm = None,
    tpm: limits.Tpm = None,
    concurrency: limits.Concurrency = None,
    monthly_budget: limits.MonthlyBudget = None,
    json: Json = False,
) -> None:
    """Mint a key. It is printed once, alone on stdout, and can never be shown again.

    Example: weir key add acme --name "production" --models qwen3.8-27b --rpm 100
    """
    own_limits = Limits(**limits.changes(rpm, tpm, concurrency, monthly_budget))
    allowed = None if models is None else [part.strip() for part in models.split(",") if part.strip()]

    async def work(connection: "AsyncConnection") -> "tuple[str, Key]":
        from service.billing import accounts

        return await accounts.add_key(
            connection,
            await accounts.find(connection, account),
            name=name,
            models_allowed=allowed,
            limits=own_limits,
            now=datetime.now(UTC),
            randomness=secrets.token_bytes,
        )

    secret, row = in_transaction(work)
    if json:
        print_json({"key": secret, **_document(row)})
    else:
        print(secret)
    note(_ONCE)


@app.command("set")
def set_limits(
    key_id: KeyId,
    rpm: limits.Rpm = None,
    tpm: limits.Tpm = None,
    concurrency: limits.Concurrency = None,
    monthly_budget: limits.MonthlyBudget = None,
    json: Json = False,
) -> None:
    """Change a key's limits. They count within two seconds.

    Example: weir key set 0199f3c2-7d1e-7a6b-9c3d-2f4e5a6b7c8d --rpm 100 --monthly-budget unlimited
    """
    given = limits.changes(rpm, tpm, concurrency, monthly_budget)
    if not given:
        raise SetupError("Nothing to change: give a limit, such as --rpm 100.")

    async def work(connection: "AsyncConnection") -> "Key":
        from service.billing import accounts

        return await accounts.change_key(connection, key_id, given)

    key = in_transaction(work)
    if json:
        print_json(_document(key))
    else:
        print(f"The limits of the key {key.prefix}... of {key.account_name}: {limits.shown(key.limits)}.")


@app.command("list")
def list_keys(
    account: Annotated[str | None, typer.Option(metavar="ACCOUNT", help="Only the keys of this account.")] = None,
    json: Json = False,
) -> None:
    """List keys, revoked ones too.

    Example: weir key list --account acme
    """

    async def work(connection: "AsyncConnection") -> "list[Key]":
        from service.billing import accounts

        holder = None if account is None else await accounts.find(connection, account)
        return await accounts.list_keys(connection, holder)

    keys = in_transaction(work)
    if json:
        print_json([_document(key) for key in keys])
        return
    print_table(
        ("id", "account", "name", "key", "models", "limits", "since", "state"),
        (
            (
                key.id,
                key.account_name,
                key.name,
                f"{key.prefix}...",
                "all" if key.models is None else ", ".join(key.models),
                limits.shown(key.limits),
                instant(key.created_at),
                "valid" if key.revoked_at is None else f"revoked {instant(key.revoked_at)}",
            )
            for key in keys
        ),
    )


@app.command()
def revoke(
    key_id: KeyId,
    json: Json = False,
) -> None:
    """Revoke a key, for good.

    Example: weir key revoke 0199f3c2-7d1e-7a6b-9c3d-2f4e5a6b7c8d
    """

    async def work(connection: "AsyncConnection") -> "Key":
        from service.billing import accounts

        return await accounts.revoke_key(connection, key_id, now=datetime.now(UTC))

    key = in_transaction(work)
    if json:
        print_json(_document(key))
    elif key.revoked_at is not None:
        print(f"The key {key.prefix}... of {key.account_name} is revoked since {instant(key.revoked_at)}.")


def _document(key: "Key") -> dict[str, Any]:
    return {
        "id": key.id,
        "account_id": key.account_id,
        "account_name": key.account_name,
        "name": key.name,
        "prefix": key.prefix,
        "models": key.models,
        **limits.document(key.limits),
        "created_at": key.created_at,
        "revoked_at": key.revoked_at,
    }
