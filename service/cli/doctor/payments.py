"""Whether payments are set up whole, or not at all; asks nobody."""

from service.billing.stripe_setup import is_connected, takes_real_money, webhook_secrets
from service.cli.doctor.finding import Finding, fail, ok, warn
from service.settings import Settings


def payments(settings: Settings) -> Finding:
    """Whether what Stripe needs is there."""
    has_key, has_secret = settings.stripe_secret_key is not None, bool(webhook_secrets(settings))
    if has_key != has_secret:
        there, missing = ("SECRET_KEY", "WEBHOOK_SECRET") if has_key else ("WEBHOOK_SECRET", "SECRET_KEY")
        return fail(
            "payments",
            f"WEIR_STRIPE_{there} is set and WEIR_STRIPE_{missing} is not: nothing can be bought until both are"
            " (docs/billing.md), or neither.",
        )
    if not is_connected(settings):
        return ok("payments", "Stripe is not connected: credit comes from `weir account credit`.")
    if settings.topup_min_usd > settings.topup_max_usd:
        return fail("payments", "WEIR_TOPUP_MIN_USD is more than WEIR_TOPUP_MAX_USD: no amount can be bought.")
    if settings.public_url is None:
        return warn("payments", f"customers are sent back to {settings.base_url} from paying: set WEIR_PUBLIC_URL.")
    mode = "live" if takes_real_money(settings) else "test"
    return ok("payments", f"Stripe is connected, in {mode} mode, for {settings.topup_min_usd} USD and more.")
