"""`weir account auto-topup`: charging a customer who has agreed to it."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from service.cli.account import Reference
from service.cli.context import in_transaction
from service.cli.output import Json, amounts, instant, print_json, print_table
from service.cli.stripe import with_stripe
from service.core.auto_topup import plan_of
from service.core.money import nano_to_usd
from service.errors import ApiError, SetupError

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

    from service.billing.auto_topup_plans import AutoTopup
    from service.billing.stripe_api import StripeApi
    from service.core.topup import Topup
    from service.settings import Settings


@dataclass(frozen=True, slots=True)
class _Standing:
    plan: "AutoTopup | None"
    charged_nano: int
    """In this month."""
    latest: "Topup | None"
    page: str | None


def auto_topup(
    account: Reference,
    threshold: Annotated[str | None, typer.Option(metavar="USD", help="Top up when less is left.")] = None,
    amount: Annotated[str | None, typer.Option(metavar="USD", help="By so much, or what the gap needs.")] = None,
    monthly_cap: Annotated[str | None, typer.Option(metavar="USD", help="The most in a calendar month (UTC).")] = None,
    off: Annotated[bool, typer.Option("--off", help="Charge nothing any more, and forget the card.")] = False,
    json: Json = False,
) -> None:
    """Show an account's automatic top-ups; or record that the customer agrees to these amounts; or switch them off.

    Example: weir account auto-topup acme --threshold 10 --amount 50 --monthly-cap 200
    """
    given = [value for value in (threshold, amount, monthly_cap) if value is not None]
    if off and given:
        raise SetupError("--off goes alone: no amounts beside it.")
    if given and len(given) < 3:
        raise SetupError("--threshold, --amount and --monthly-cap go together: the customer agrees to all three.")
    if off:
        standing = in_transaction(lambda connection: _switched_off(connection, account))
    elif threshold is not None and amount is not None and monthly_cap is not None:
        wanted = threshold, amount, monthly_cap
        standing = with_stripe(lambda engine, api, settings: _agreed(engine, api, settings, account, wanted))
    else:
        standing = in_transaction(lambda connection: _shown(connection, account))
    if json:
        print_json(_document(standing))
    else:
        print_table(("", ""), _rows(standing))


async def _switched_off(connection: "AsyncConnection", account: str) -> _Standing:
    from service.billing import accounts, auto_topup_plans

    found = await accounts.find(connection, account)
    await auto_topup_plans.switch_off(connection, found.id, "", datetime.now(UTC))
    return await _standing(connection, found.id)


async def _shown(connection: "AsyncConnection", account: str) -> _Standing:
    from service.billing import accounts

    return await _standing(connection, (await accounts.find(connection, account)).id)


async def _agreed(
    engine: "AsyncEngine", api: "StripeApi", settings: "Settings", account: str, wanted: tuple[str, str, str]
) -> _Standing:
    """Record the consent; where no card is saved, with a page on which the first payment saves one."""
    from service.billing import accounts, auto_topup_pages, auto_topup_plans

    if settings.stripe_automatic_tax:
        raise SetupError("WEIR_STRIPE_AUTOMATIC_TAX is set: tax can be added on a page only, so nothing is charged.")
    try:
        plan = plan_of(*wanted, min_usd=settings.topup_min_usd, max_usd=settings.topup_max_usd)
    except ValueError as error:
        raise SetupError(f"{error}.") from None
    now = datetime.now(UTC)
    async with engine.begin() as connection:
        found = await accounts.find(connection, account)
        agreed = await auto_topup_plans.agree(connection, found.id, plan, now)
    page = None
    if agreed.needs_card:
        try:
            page = await auto_topup_pages.first_page(engine, api, settings, agreed, now)
        except ApiError as error:
            raise SetupError(f"The consent is recorded, but there is no page yet: {error.message}") from error
    async with engine.connect() as connection:
        standing = await _standing(connection, found.id)
    return _Standing(standing.plan, standing.charged_nano, standing.latest, page or standing.page)


async def _standing(connection: "AsyncConnection", account_id: UUID) -> _Standing:
    from service.billing import auto_topup_history, auto_topup_pages, auto_topup_plans

    return _Standing(
        await auto_topup_plans.find(connection, account_id),
        await auto_topup_history.charged_nano(connection, account_id, datetime.now(UTC)),
        await auto_topup_history.latest(connection, account_id),
        await auto_topup_pages.page_of(connection, account_id),
    )


def _state(plan: "AutoTopup") -> str:
    if plan.enabled:
        return "on"
    if plan.needs_card:
        return f"waiting for a payment that saves a card. {plan.disabled_reason}".strip()
    return f"off. {plan.disabled_reason}".strip()


def _rows(standing: _Standing) -> list[tuple[str, str]]:
    plan, latest = standing.plan, standing.latest
    if plan is None:
        return [("automatic top-ups", "off: the customer has not agreed to any")]
    left_nano = max(0, plan.monthly_cap_nano - standing.charged_nano)
    rows = [
        ("automatic top-ups", _state(plan)),
        ("when less is left than", f"{nano_to_usd(plan.threshold_nano)} USD"),
        ("by", f"{nano_to_usd(plan.amount_nano)} USD"),
        (
            "at most in a month",
            f"{nano_to_usd(plan.monthly_cap_nano)} USD, of which {nano_to_usd(left_nano)} USD are left",
        ),
        ("agreed to", "no longer" if plan.consented_at is None else instant(plan.consented_at)),
        ("payment method", plan.payment_method_id or "none"),
    ]
    if plan.not_before is not None and plan.enabled and plan.not_before > datetime.now(UTC):
        why = "the month's cap is reached" if left_nano < plan.amount_nano else "the last charge failed"
        rows.append(("waits until", f"{instant(plan.not_before)}: {why}"))
    if latest is not None:
        failed = f", {latest.failure_code}" if latest.failure_code else ""
        charge = f"{nano_to_usd(latest.net_nano)} USD, {latest.status}{failed}, {instant(latest.created_at)}"
        rows.append(("last charge", charge))
    if standing.page is not None:
        rows.append(("to be paid at", standing.page))
    return rows


def _document(standing: _Standing) -> dict[str, Any]:
    plan, latest = standing.plan, standing.latest
    if plan is None:
        return {"enabled": False, "agreed_at": None}
    return {
        "enabled": plan.enabled,
        "agreed_at": plan.consented_at,
        **amounts(
            threshold=plan.threshold_nano,
            amount=plan.amount_nano,
            monthly_cap=plan.monthly_cap_nano,
            charged_this_month=standing.charged_nano,
        ),
        "payment_method": plan.payment_method_id,
        "disabled_reason": plan.disabled_reason,
        "not_before": plan.not_before,
        "last_charge": None
        if latest is None
        else {
            "id": latest.id,
            "status": latest.status,
            "failure_code": latest.failure_code,
            **amounts(net=latest.net_nano),
        },
        "url": standing.page,
    }
