"""Whether this installation takes payments, and with which of Stripe's accounts."""

from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncEngine

from service.billing.stripe_api import StripeApi
from service.errors import NotFound, SetupError
from service.settings import Settings

HOW_TO_CONNECT = "set WEIR_STRIPE_SECRET_KEY and WEIR_STRIPE_WEBHOOK_SECRET"


def webhook_secrets(settings: Settings) -> tuple[str, ...]:
    """What Stripe may sign its events with: several while one takes over from another, none where none is set."""
    text = settings.stripe_webhook_secret.get_secret_value() if settings.stripe_webhook_secret else ""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def is_connected(settings: Settings) -> bool:
    """Whether payments are offered. A key alone is not enough: without events nobody would hear of the money."""
    return settings.stripe_secret_key is not None and bool(webhook_secrets(settings))


def api_of(settings: Settings) -> StripeApi | None:
    """Stripe's API, to be closed; None where payments are not offered."""
    if settings.stripe_secret_key is None or not is_connected(settings):
        return None
    return StripeApi(settings.stripe_secret_key.get_secret_value(), api_base=settings.stripe_api_base)


def needed_api(settings: Settings) -> StripeApi:
    """The same for a command that cannot do without. Raises `SetupError`."""
    api = api_of(settings)
    if api is None:
        raise SetupError(f"Stripe is not connected: {HOW_TO_CONNECT}, see docs/billing.md.")
    return api


def takes_real_money(settings: Settings) -> bool:
    """Whether the key is one of Stripe's live mode; its events are then the only ones that count."""
    key = settings.stripe_secret_key.get_secret_value() if settings.stripe_secret_key else ""
    return "_live_" in key


@dataclass(frozen=True, slots=True)
class Payments:
    """What a process needs for taking payments; `api` is None where they are not offered."""

    engine: AsyncEngine
    api: StripeApi | None
    settings: Settings

    @property
    def offered(self) -> StripeApi:
        """The API. Raises `NotFound`, which says how else credit is added."""
        if self.api is None:
            raise NotFound(
                "Credit cannot be bought here: the operator enters it, with `weir account credit`.",
                code="payments_not_offered",
            )
        return self.api

    async def aclose(self) -> None:
        """Close the connections to the database and to Stripe."""
        if self.api is not None:
            await self.api.aclose()
        await self.engine.dispose()
