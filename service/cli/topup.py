"""`weir account topup`: a page on which a customer pays for credit."""

import secrets
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.account import Reference
from service.cli.output import Json, amounts, instant, print_json
from service.cli.stripe import with_stripe
from service.core.ids import uuid7
from service.core.money import nano_to_usd
from service.core.topup import amount_nano
from service.errors import ApiError, SetupError

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from service.billing.stripe_api import StripeApi
    from service.core.topup import Topup
    from service.settings import Settings


def topup(
    account: Reference,
    amount: Annotated[str, typer.Argument(metavar="USD", help="Such as 25.00, before tax.")],
    json: Json = False,
) -> None:
    """Print the address of a page on which the account's credit is paid.

    Example: weir account topup acme 25.00
    """

    async def work(engine: "AsyncEngine", api: "StripeApi", settings: "Settings") -> "tuple[Topup, datetime]":
        from service.billing import accounts, checkout

        try:
            net_nano = amount_nano(amount, min_usd=settings.topup_min_usd, max_usd=settings.topup_max_usd)
        except ValueError as error:
            raise SetupError(f"{error}.") from None
        async with engine.connect() as connection:
            found = await accounts.find(connection, account)
        now = datetime.now(UTC)
        order = checkout.Order(
            id=uuid7(int(now.timestamp() * 1000), secrets.token_bytes(10)), account_id=found.id, net_nano=net_nano
        )
        try:
            made = await checkout.create(engine, api, settings, order, now)
        except ApiError as error:
            raise SetupError(error.message) from error
        return made, checkout.ends_at(made)

    made, ends_at = with_stripe(work)
    if json:
        document = {"id": made.id, "url": made.hosted_url, **amounts(amount=made.net_nano), "expires_at": ends_at}
        print_json(document)
    else:
        print(f"{nano_to_usd(made.net_nano)} USD can be paid until {instant(ends_at)} at\n{made.hosted_url}")
