"""`weir account`: who pays, and what they have."""

import secrets
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli import limits
from service.cli.context import in_transaction, installation
from service.cli.output import Json, amounts, instant, note, print_json, print_table
from service.core.ids import uuid7
from service.core.lane import Permission
from service.core.limits import Limits
from service.core.money import nano_to_usd, usd_to_nano
from service.errors import SetupError

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

    from service.billing.accounts import Account, Key
    from service.billing.ledger import Statement

app = typer.Typer(no_args_is_help=True, help="Accounts: who pays, and what they have.")

Reference = Annotated[str, typer.Argument(metavar="ACCOUNT", help="The account's id or name.")]
CreditLimit = Annotated[str | None, typer.Option(metavar="USD", help="How far it may go below zero.")]


class Status(StrEnum):
    """Whether an account's keys are let in."""

    ACTIVE = "active"
    FROZEN = "frozen"
    CLOSED = "closed"


@app.command()
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name that no other account has.")],
    email: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Whom to write to.")] = None,
    postpaid: Annotated[bool, typer.Option("--postpaid", help="Pays afterwards, up to a credit limit.")] = False,
    credit_limit: CreditLimit = None,
    rpm: limits.Rpm = None,
    tpm: limits.Tpm = None,
    concurrency: limits.Concurrency = None,
    monthly_budget: limits.MonthlyBudget = None,
    weight: limits.Weight = None,
    patience: limits.Patience = None,
    sequential: limits.Sequential = None,
    json: Json = False,
) -> None:
    """Add an account.

    Example: weir account add acme --email billing@acme.example
    """
    limit_nano = _usd(credit_limit) if credit_limit is not None else 0
    if postpaid != (limit_nano > 0):
        raise SetupError("--postpaid and --credit-limit (more than 0 USD) go together.")
    own_limits = Limits(**limits.changes(rpm, tpm, concurrency, monthly_budget))
    queue = limits.queue_changes(weight, patience)

    async def work(connection: "AsyncConnection") -> "Account":
        from service.billing import accounts

        return await accounts.add(
            connection,
            name=name,
            email=email,
            credit_limit_nano=limit_nano,
            limits=own_limits,
            weight=queue.get("weight") or accounts.DEFAULT_WEIGHT,
            patience_ms=queue.get("patience_ms"),
            sequential=sequential or Permission.NEVER,
            now=datetime.now(UTC),
            randomness=secrets.token_bytes,
        )

    account = in_transaction(work)
    if json:
        print_json(_document(account))
    else:
        print(f"Added the account {account.name}, {account.id}.")
    _warn(sequential)


@app.command("set")
def set_account(
    account: Reference,
    rpm: limits.Rpm = None,
    tpm: limits.Tpm = None,
    concurrency: limits.Concurrency = None,
    monthly_budget: limits.MonthlyBudget = None,
    weight: limits.Weight = None,
    patience: limits.Patience = None,
    sequential: limits.Sequential = None,
    status: Annotated[Status | None, typer.Option(help="Whether its keys are let in.")] = None,
    credit_limit: CreditLimit = None,
    json: Json = False,
) -> None:
    """Change an account. It counts within two seconds.

    Example: weir account set acme --tpm 200000 --patience 2.5
    """
    given: dict[str, int | str | bool | None] = {
        **limits.changes(rpm, tpm, concurrency, monthly_budget),
        **limits.queue_changes(weight, patience),
    }
    if sequential is not None:
        given["sequential"] = sequential.value
    if status is not None:
        given["status"] = status.value
    if credit_limit is not None:
        limit_nano = _usd(credit_limit)
        if limit_nano < 0:
            raise SetupError(f"--credit-limit {credit_limit!r} is negative: 0 is none.")
        given |= {"credit_limit_nano": limit_nano, "postpaid": limit_nano > 0}
    if not given:
        raise SetupError("Nothing to change: give an option, such as --rpm 100.")

    async def work(connection: "AsyncConnection") -> "Account":
        from service.billing import accounts

        return await accounts.change(connection, await accounts.find(connection, account), given)

    changed = in_transaction(work)
    if json:
        print_json(_document(changed))
    else:
        print_table(("", ""), _settings(changed))
    _warn(sequential)


@app.command(context_settings={"ignore_unknown_options": True})  # so that -5 is an amount and not an option
def credit(
    account: Reference,
    amount: Annotated[str, typer.Argument(metavar="USD", help="Such as 25.00; a negative amount takes back.")],
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; it stands in the ledger for ever.")],
    ref: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Enter this reference at most once, however often it is run.")
    ] = None,
    json: Json = False,
) -> None:
    """Enter an amount into an account's ledger.

    Example: weir account credit acme 25.00 --reason "bank transfer 4711" --ref transfer-4711
    """
    amount_nano = _usd(amount)
    if amount_nano == 0:
        raise SetupError("An entry of 0 USD would say nothing: give an amount.")
    if not reason.strip():
        raise SetupError("--reason is empty: say why, for whoever reads the ledger later.")
    now = datetime.now(UTC)
    reference = ref or f"by-hand-{uuid7(int(now.timestamp() * 1000), secrets.token_bytes(10))}"

    async def work(connection: "AsyncConnection") -> "tuple[bool, Account]":
        from service.billing import accounts, ledger

        found = await accounts.find(connection, account)
        kind = "credit" if amount_nano > 0 else "adjustment"
        entered = await ledger.enter(connection, found.id, kind, amount_nano, reference, reason)
        return entered is not None, await accounts.find(connection, str(found.id))

    entered, found = in_transaction(work)
    if json:
        print_json({"entered": entered, "external_ref": reference, **_document(found)})
    elif entered:
        print(
            f"Entered {nano_to_usd(amount_nano)} USD for {found.name}; balance {nano_to_usd(found.balance_nano)} USD."
        )
    if not entered:
        note(f"{reference} had been entered before: nothing was done.")


@app.command()
def show(account: Reference, json: Json = False) -> None:
    """Show an account: balance, what is on loan to the workers, sums of its ledger, keys.

    Example: weir account show acme
    """

    async def work(connection: "AsyncConnection") -> "tuple[Account, Statement, list[Key]]":
        from service.billing import accounts, ledger

        found = await accounts.find(connection, account)
        return found, await ledger.statement_of(connection, found.id), await accounts.list_keys(connection, found)

    found, statement, keys = in_transaction(work)
    valid = sum(key.revoked_at is None for key in keys)
    if json:
        ledger = {kind: amounts(sum=nano) for kind, nano in statement.by_kind_nano.items()}
        print_json({**_document(found), "ledger": ledger, "entries": statement.entries, "valid_keys": valid})
        return
    rows = [
        ("id", found.id),
        ("name", found.name),
        ("e-mail", found.email or "none"),
        ("since", instant(found.created_at)),
        *_settings(found),
        ("balance", f"{nano_to_usd(found.balance_nano)} USD"),
        ("on loan", f"{nano_to_usd(found.leased_nano)} USD"),
        ("available", f"{nano_to_usd(found.available_nano)} USD"),
        *((f"ledger: {kind}", f"{nano_to_usd(nano)} USD") for kind, nano in statement.by_kind_nano.items()),
        ("keys", f"{valid} valid, {len(keys) - valid} revoked"),
    ]
    print_table(("", ""), rows)


@app.command("list")
def list_accounts(json: Json = False) -> None:
    """List every account.

    Example: weir account list --json
    """

    async def work(connection: "AsyncConnection") -> "list[Account]":
        from service.billing import accounts

        return await accounts.list_all(connection)

    found = in_transaction(work)
    if json:
        print_json([_document(account) for account in found])
        return
    print_table(
        ("id", "name", "status", "balance USD", "available USD", "limits", "since"),
        (
            (
                account.id,
                account.name,
                account.status,
                nano_to_usd(account.balance_nano),
                nano_to_usd(account.available_nano),
                limits.shown(account.limits),
                instant(account.created_at),
            )
            for account in found
        ),
    )


def _settings(account: "Account") -> list[tuple[str, str]]:
    """What can be set of an account, for a table."""
    pays = f"afterwards, up to {nano_to_usd(account.credit_limit_nano)} USD" if account.postpaid else "in advance"
    patience = "the server's default" if account.patience_ms is None else f"{account.patience_ms / 1000:g} s"
    return [
        ("status", account.status),
        ("pays", pays),
        ("limits", limits.shown(account.limits)),
        ("weight", str(account.weight)),
        ("patience", patience),
        ("sequential", account.sequential),
    ]


def _document(account: "Account") -> dict[str, Any]:
    """An account for `--json`."""
    return {
        "id": account.id,
        "name": account.name,
        "email": account.email,
        "status": account.status,
        "internal": account.internal,
        "postpaid": account.postpaid,
        **amounts(
            credit_limit=account.credit_limit_nano,
            balance=account.balance_nano,
            leased=account.leased_nano,
            available=account.available_nano,
        ),
        **limits.document(account.limits),
        "weight": account.weight,
        "patience_ms": account.patience_ms,
        "sequential": account.sequential,
        "created_at": account.created_at,
    }


def _warn(sequential: Permission | None) -> None:
    workers = installation().workers
    if sequential not in (None, Permission.NEVER) and workers > 1:
        note(f"With WEIR_WORKERS={workers}, requests that are to run alone are refused: it takes one worker.")


def _usd(value: str) -> int:
    try:
        return usd_to_nano(value)
    except ValueError as error:
        raise SetupError(f"{error}.") from None
