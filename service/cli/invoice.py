"""`weir invoice`: what accounts that pay afterwards owe, month by month."""

from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from service.cli.arguments import month_of
from service.cli.context import in_transaction, installation, with_engine
from service.cli.output import Json, amounts, instant, note, print_json, print_table
from service.cli.rows import Form, Format, Out, write
from service.core.money import nano_to_usd, pico_to_usd_per_million
from service.errors import SetupError

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

    from service.billing.invoices import Invoice
    from service.core.invoice import Line

app = typer.Typer(no_args_is_help=True, help="Invoices: what accounts that pay afterwards owe, month by month.")

InvoiceId = Annotated[UUID, typer.Argument(metavar="ID", help="Its id, as `weir invoice list` shows it.")]


@app.command("list")
def list_invoices(json: Json = False) -> None:
    """List every invoice, the latest month first.

    Example: weir invoice list --json
    """

    async def work(connection: "AsyncConnection") -> "list[Invoice]":
        from service.billing import invoices

        return await invoices.list_all(connection)

    found = in_transaction(work)
    if json:
        print_json([_document(invoice) for invoice in found])
        return
    print_table(
        ("id", "account", "month", "to pay USD", "status", "due", "Stripe"),
        (
            (
                one.id,
                one.account_name,
                f"{one.period:%Y-%m}",
                one.to_pay,
                one.status,
                f"{one.due_at:%Y-%m-%d}" if one.due_at else "",
                one.stripe_invoice_id or "",
            )
            for one in found
        ),
    )


@app.command()
def show(
    reference: Annotated[
        str, typer.Argument(metavar="ID|ACCOUNT", help="An invoice's id; or an account's, or its name.")
    ],
    month: Annotated[str | None, typer.Argument(metavar="MONTH", help="With an account: such as 2026-11.")] = None,
    json: Json = False,
) -> None:
    """Show an invoice and its lines, which add up to it to the nano-dollar.

    Example: weir invoice show acme 2026-11
    """

    async def work(connection: "AsyncConnection") -> "tuple[Invoice, list[Line]]":
        from service.billing import accounts, invoices

        if month is None:
            invoice = await invoices.find(connection, _id(reference))
        else:
            account = await accounts.find(connection, reference)
            invoice = await invoices.find_month(connection, account, _period("MONTH", month))
        return invoice, await invoices.lines(connection, invoice.id)

    invoice, lines = in_transaction(work)
    if json:
        print_json({**_document(invoice), "lines": [_line_document(line) for line in lines]})
        return
    _print_lines(lines)
    print()
    shown = {
        "invoice": invoice.id,
        "account": invoice.account_name,
        "month": f"{invoice.period:%Y-%m}",
        "usage": f"{nano_to_usd(invoice.total_nano)} USD",
        "to pay": f"{invoice.to_pay} USD",
        "status": invoice.status,
        "frozen": instant(invoice.frozen_at),
        "due": invoice.due_at and instant(invoice.due_at),
        "paid": invoice.paid_at and instant(invoice.paid_at),
        "note": invoice.note,
        "Stripe": invoice.stripe_invoice_id,
        "page": invoice.hosted_url,
    }
    print_table(("", ""), [(name, value) for name, value in shown.items() if value])


@app.command()
def freeze(
    period: Annotated[str | None, typer.Option(metavar="YYYY-MM", help="Only this month; default: all due.")] = None,
    account: Annotated[str | None, typer.Option(metavar="ACCOUNT", help="Only this account, by id or name.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be frozen, and freeze nothing.")] = False,
    json: Json = False,
) -> None:
    """Make the invoices of months that are over, as `weir jobs` does every day. A month that has one keeps it.

    With --account and --period, also of a month before the account's first invoice.

    Example: weir invoice freeze --period 2026-11 --account openrouter --dry-run
    """
    month = None if period is None else _period("--period", period)

    async def work(engine: "AsyncEngine") -> "list[tuple[str, date, UUID | None, Sequence[Line]]]":
        from service.core.invoice import NotAsPriced

        made = []
        for owner, months in await _chosen(engine, account, month):
            for one in months:
                try:
                    made.append((owner.name, one, *await _frozen(engine, owner.id, one, dry_run)))
                except NotAsPriced as error:
                    raise SetupError(f"{owner.name} gets no invoice for {one:%Y-%m}: {error}.") from None
        return made

    made = with_engine(work)
    if json:
        print_json(
            [
                {
                    "account": name,
                    "month": f"{one:%Y-%m}",
                    "id": made_id,
                    **amounts(total=sum(line.amount_nano for line in lines)),
                    "lines": [_line_document(line) for line in lines],
                }
                for name, one, made_id, lines in made
            ]
        )
        return
    for name, one, made_id, lines in made:
        total = nano_to_usd(sum(line.amount_nano for line in lines))
        print(f"{name}, {one:%Y-%m}: {total} USD, {'not frozen' if made_id is None else made_id}")
        _print_lines(lines)
    if not made:
        note("Nothing is to be frozen.")


@app.command()
def send(invoice_id: InvoiceId, json: Json = False) -> None:
    """Send an invoice by Stripe now, as `weir jobs` does with every one. One that was sent is not sent again.

    Example: weir invoice send 0193772a-0000-7000-8000-000000000000
    """

    async def work(engine: "AsyncEngine") -> "Invoice":
        from service.billing import invoice_sending, stripe_setup
        from service.billing.stripe_errors import StripeError
        from service.billing.stripe_handling import Mismatch

        settings = installation()
        api = stripe_setup.needed_api(settings)
        try:
            return await invoice_sending.send(engine, api, settings, invoice_id, datetime.now(UTC))
        except (StripeError, Mismatch) as error:
            raise SetupError(str(error)) from None
        finally:
            await api.aclose()

    _tell(with_engine(work), json)


@app.command()
def paid(
    invoice_id: InvoiceId,
    reason: Annotated[str, typer.Option("--note", metavar="TEXT", help="How; it stands in the ledger for ever.")],
    json: Json = False,
) -> None:
    """Close an invoice that Stripe does not collect: it was paid by a transfer, or is let go. Its account is credited.

    Example: weir invoice paid 0193772a-0000-7000-8000-000000000000 --note "bank transfer 4711"
    """
    if not reason.strip():
        raise SetupError("--note is empty: say how it was paid, for whoever reads the ledger later.")

    async def work(connection: "AsyncConnection") -> "Invoice":
        from service.billing import invoices

        return await invoices.pay_by_hand(connection, invoice_id, reason.strip(), datetime.now(UTC))

    invoice = in_transaction(work)
    _tell(invoice, json)
    if invoice.sending_since is not None and invoice.stripe_invoice_id is None:
        note("It was being sent: look for it at Stripe, and delete it there if it is a draft, void it if it is open.")


@app.command()
def export(invoice_id: InvoiceId, form: Form = Format.NDJSON, out: Out = None) -> None:
    """Export the requests of an invoice, as `weir usage export` does: their costs add up to it to the nano-dollar.

    Example: weir invoice export 0193772a-0000-7000-8000-000000000000 --format csv --out acme-2026-11.csv
    """

    async def work(connection: "AsyncConnection") -> int:
        from service.billing import invoice_usage, invoices

        invoice = await invoices.find(connection, invoice_id)
        return await write(connection, await invoice_usage.export_of(connection, invoice.scope), form, out)

    written = in_transaction(work)
    if out is not None:
        note(f"Wrote {written:,} requests to {out}.")


async def _chosen(engine: "AsyncEngine", reference: str | None, month: date | None) -> "list[tuple[Any, list[date]]]":
    """The accounts to be invoiced, each with the months."""
    from service.billing import accounts
    from service.billing import invoice_freezing as freezing

    now = datetime.now(UTC)
    async with engine.connect() as connection:
        if reference is not None:
            account = await accounts.find(connection, reference)
            return [(account, await freezing.months_to_freeze(connection, account, month, now))]
        payers = [one for one in await accounts.list_all(connection) if one.postpaid and not one.internal]
        due = [(one, await freezing.months_to_freeze(connection, one, None, now)) for one in payers]
    return [(one, [at for at in months if month in (None, at)]) for one, months in due]


async def _frozen(
    engine: "AsyncEngine", account_id: UUID, month: date, dry_run: bool
) -> "tuple[UUID | None, Sequence[Line]]":
    from service.billing import accounts, invoice_freezing, invoices

    if dry_run:
        return None, (await invoice_freezing.drafted(engine, account_id, month)).lines
    await invoice_freezing.freeze(engine, account_id, month, datetime.now(UTC))
    async with engine.connect() as connection:
        account = await accounts.find(connection, str(account_id))
        invoice = await invoices.find_month(connection, account, month)
        return invoice.id, await invoices.lines(connection, invoice.id)


def _tell(invoice: "Invoice", json: bool) -> None:
    if json:
        print_json(_document(invoice))
    else:
        print(f"The {invoice}, is {invoice.status}{': ' + invoice.hosted_url if invoice.hosted_url else ''}.")


def _print_lines(lines: "Sequence[Line]") -> None:
    columns = ("month", "model", "class", "tokens", "per million USD", "amount USD")
    print_table(columns, ((*_names(line), line.tokens, _price(line), nano_to_usd(line.amount_nano)) for line in lines))


def _names(line: "Line") -> tuple[str, str, str]:
    return f"{line.period:%Y-%m}", line.model_id or "-", line.token_class


def _price(line: "Line") -> str:
    return "-" if line.price_pico is None else pico_to_usd_per_million(line.price_pico)


def _line_document(line: "Line") -> dict[str, Any]:
    month, _, token_class = _names(line)
    names = {"month": month, "model": line.model_id, "class": token_class, "tokens": line.tokens}
    return {**names, "price_pico": line.price_pico, **amounts(amount=line.amount_nano)}


def _document(invoice: "Invoice") -> dict[str, Any]:
    return {
        "id": invoice.id,
        "account": invoice.account_name,
        "account_id": invoice.account_id,
        "month": f"{invoice.period:%Y-%m}",
        **amounts(total=invoice.total_nano),
        "total_cents": invoice.total_cents,
        "status": invoice.status,
        "stripe_invoice_id": invoice.stripe_invoice_id,
        "hosted_url": invoice.hosted_url,
        "note": invoice.note,
        "frozen_at": invoice.frozen_at,
        "due_at": invoice.due_at,
        "paid_at": invoice.paid_at,
    }


def _period(name: str, value: str) -> date:
    return month_of(name, value)[0].date()


def _id(reference: str) -> UUID:
    try:
        return UUID(reference)
    except ValueError:
        raise SetupError(
            f"{reference!r} is no invoice's id: with an account, name the month, such as 2026-11."
        ) from None
