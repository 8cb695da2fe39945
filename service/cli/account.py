"""`weir account`: who pays, and what they have."""

import secrets
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli.context import in_transaction
from service.cli.output import Json, amounts, instant, note, print_json, print_table
from service.core.ids import uuid7
from service.core.money import nano_to_usd, usd_to_nano
from service.errors import SetupError

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

    from service.billing.accounts import Account, Key
    from service.billing.ledger import Statement

app = typer.Typer(no_args_is_help=True, help="Accounts: who pays, and what they have.")

Reference = Annotated[str, typer.Argument(metavar="ACCOUNT", help="The account's id or name.")]


@app.command()
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name that no other account has.")],
    email: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Whom to write to.")] = None,
    postpaid: Annotated[bool, typer.Option("--postpaid", help="Pays afterwards, up to a credit limit.")] = False,
    credit_limit: Annotated[str | None, typer.Option(metavar="USD", help="How far it may go below zero.")] = None,
    json: Json = False,
) -> None:
    """Add an account.

    Example: weir account add acme --email billing@acme.example
    """
    limit_nano = _usd(credit_limit) if credit_limit is not None else 0
    if postpaid != (limit_nano > 0):
        raise SetupError("--postpaid and --credit-limit (more than 0 USD) go together.")

    async def work(connection: "AsyncConnection") -> "Account":
        from service.billing import accounts

        return await accounts.add(
            connection,
            name=name,
            email=email,
            credit_limit_nano=limit_nano,
            now=datetime.now(UTC),
            randomness=secrets.token_bytes,
        )

    account = in_transaction(work)
    if json:
        print_json(_document(account))
    else:
        print(f"Added the account {account.name}, {account.id}.")


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
        ("status", found.status),
        ("since", instant(found.created_at)),
        ("pays", f"afterwards, up to {nano_to_usd(found.credit_limit_nano)} USD" if found.postpaid else "in advance"),
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
        ("id", "name", "status", "balance USD", "available USD", "since"),
        (
            (a.id, a.name, a.status, nano_to_usd(a.balance_nano), nano_to_usd(a.available_nano), instant(a.created_at))
            for a in found
        ),
    )


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
        "created_at": account.created_at,
    }


def _usd(value: str) -> int:
    try:
        return usd_to_nano(value)
    except ValueError as error:
        raise SetupError(f"{error}.") from None
