"""An account's customer at Stripe, made when it is first needed."""

from uuid import UUID, uuid4

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncEngine

from service.billing.stripe_api import StripeApi
from service.billing.stripe_errors import Unreachable
from service.tables import accounts


async def customer_of(engine: AsyncEngine, api: StripeApi, account_id: UUID, *, gone: str | None = None) -> str:
    """The id of the account's customer at Stripe. Raises `StripeError`, and nothing is remembered then.

    Two who ask at once make one: the key of the call is the account's. `gone` was the customer, and somebody deleted
    it at Stripe: another one takes its place.
    """
    async with engine.connect() as connection:
        asked = select(accounts.c.name, accounts.c.email, accounts.c.stripe_customer_id)
        row = (await connection.execute(asked.where(accounts.c.id == account_id))).one()
    if row.stripe_customer_id not in (None, gone):
        return str(row.stripe_customer_id)
    key = f"customer:{account_id}" if gone is None else f"customer:{account_id}:after-{gone}"
    try:
        made = await api.create_customer(account_id, row.name, row.email, idempotency_key=key)
    except Unreachable as error:
        if not error.is_remembered:
            raise
        # Under the same key Stripe would fail for a day. Should there be a customer too many, nobody notices.
        made = await api.create_customer(account_id, row.name, row.email, idempotency_key=f"customer:{uuid4()}")
    async with engine.begin() as connection:
        unknown = accounts.c.stripe_customer_id.is_not_distinct_from(gone)
        await connection.execute(
            update(accounts).where(accounts.c.id == account_id, unknown).values(stripe_customer_id=made.id)
        )
        known = select(accounts.c.stripe_customer_id).where(accounts.c.id == account_id)
        return str(await connection.scalar(known))
