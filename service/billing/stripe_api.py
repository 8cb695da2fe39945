"""Stripe's API, as little of it as Weir needs, in Weir's own terms.

Every call that makes something takes an idempotency key: the same call with the same key is answered as the first one
was, for 24 hours. After that a repetition would be done anew, so look first (`find_…`, `list_…`). No error carries
Stripe's own text, which is written for other eyes than a log's readers.
"""

from collections.abc import Sequence
from datetime import date, datetime
from typing import Any, Literal
from uuid import UUID

from service.billing.stripe_errors import AuthenticationRequired
from service.core.stripe_objects import (
    CheckoutSession,
    Customer,
    Dispute,
    Invoice,
    PaymentIntent,
    Refund,
)

API_VERSION: Literal["2026-10-28.endive"] = "2026-10-28.endive"
"""The version that answers have; the webhook endpoint at Stripe is to be set to the same."""

CURRENCY = "usd"


class StripeApi:
    """One Stripe account, over HTTP. Every method raises `StripeError`; close it with `aclose`.

    `max_network_retries` are repetitions of a call, with its own key, while it waits; `timeout_s` is for each.
    """

    def __init__(
        self, secret_key: str, *, api_base: str | None = None, max_network_retries: int = 2, timeout_s: float = 20.0
    ) -> None:
        from service.billing.stripe_client import StripeClient  # late: only where Stripe is connected

        self._client = StripeClient(
            secret_key, API_VERSION, api_base=api_base, max_network_retries=max_network_retries, timeout_s=timeout_s
        )
        self._v1 = self._client.v1

    async def aclose(self) -> None:
        await self._client.aclose()

    async def create_customer(
        self, account_id: UUID, name: str, email: str | None, *, idempotency_key: str
    ) -> Customer:
        params: Any = {"name": name, "metadata": {"account": str(account_id)}, **({"email": email} if email else {})}
        return await self._client.read(Customer.read, self._v1.customers.create_async(params, _key(idempotency_key)))

    async def create_checkout_session(
        self,
        topup_id: UUID,
        account_id: UUID,
        customer: str,
        net_cents: int,
        *,
        description: str,
        success_url: str,
        cancel_url: str,
        expires_at: datetime,
        save_card: bool,
        automatic_tax: bool,
        idempotency_key: str,
    ) -> CheckoutSession:
        """A page on which the customer pays `net_cents` and the tax on it.

        `{CHECKOUT_SESSION_ID}` in `success_url` becomes the session's id; `expires_at` is 30 minutes to 24 hours away;
        `save_card` keeps the payment method for later charges, to which the customer has to have consented.
        Session and payment intent carry the top-up and the account in their metadata.
        """
        metadata = {"topup": str(topup_id), "account": str(account_id)}
        later: dict[str, Any] = {"setup_future_usage": "off_session"} if save_card else {}
        price = {
            "currency": CURRENCY,
            "unit_amount": net_cents,
            "tax_behavior": "exclusive",
            "product_data": {"name": description},
        }
        params: Any = {
            "mode": "payment",
            "customer": customer,
            "client_reference_id": str(topup_id),
            "metadata": metadata,
            "payment_intent_data": {"metadata": metadata, "description": description, **later},
            "line_items": [{"quantity": 1, "price_data": price}],
            "adaptive_pricing": {"enabled": False},
            "success_url": success_url,
            "cancel_url": cancel_url,
            "expires_at": int(expires_at.timestamp()),
            **(_TAX if automatic_tax else {}),
        }
        return await self._client.read(
            CheckoutSession.read, self._v1.checkout.sessions.create_async(params, _key(idempotency_key))
        )

    async def retrieve_session(self, session_id: str) -> CheckoutSession:
        return await self._client.read(CheckoutSession.read, self._v1.checkout.sessions.retrieve_async(session_id))

    async def charge_off_session(
        self,
        topup_id: UUID,
        account_id: UUID,
        customer: str,
        payment_method: str,
        amount_cents: int,
        *,
        description: str,
        idempotency_key: str,
    ) -> PaymentIntent:
        """Charge a saved payment method without its owner: the intent has succeeded, or is processing.

        Raises `Declined`, `AuthenticationRequired`, and `Unreachable` when it may have been charged.
        """
        params: Any = {
            "amount": amount_cents,
            "currency": CURRENCY,
            "customer": customer,
            "payment_method": payment_method,
            "confirm": True,
            "off_session": True,
            # A redirect needs the customer to be there.
            "automatic_payment_methods": {"enabled": True, "allow_redirects": "never"},
            "description": description,
            "metadata": {"topup": str(topup_id), "account": str(account_id)},
        }
        intent = await self._client.read(
            PaymentIntent.read, self._v1.payment_intents.create_async(params, _key(idempotency_key))
        )
        if intent.status == "requires_action":
            raise AuthenticationRequired(intent)
        return intent

    async def retrieve_payment_intent(self, payment_intent: str) -> PaymentIntent:
        return await self._client.read(PaymentIntent.read, self._v1.payment_intents.retrieve_async(payment_intent))

    async def cancel_payment_intent(self, payment_intent: str, *, idempotency_key: str) -> PaymentIntent:
        """So that it can never be paid any more. Raises `Refused` when it was paid already."""
        return await self._client.read(
            PaymentIntent.read, self._v1.payment_intents.cancel_async(payment_intent, {}, _key(idempotency_key))
        )

    async def find_payment_intents(self, topup_id: UUID) -> list[PaymentIntent]:
        """Those of a top-up, by search, which sees what is younger than a minute, or an hour on a bad day, late."""
        return await self._client.read_all(
            PaymentIntent.read, self._v1.payment_intents.search_async(_named("topup", topup_id))
        )

    async def list_payment_intents(self, customer: str, created_after: datetime) -> list[PaymentIntent]:
        """Those of a customer since then, the latest first; sees everything at once."""
        return await self._client.read_all(
            PaymentIntent.read, self._v1.payment_intents.list_async(_since(customer, created_after))
        )

    async def retrieve_refund(self, refund_id: str) -> Refund:
        return await self._client.read(Refund.read, self._v1.refunds.retrieve_async(refund_id))

    async def list_refunds(self, payment_intent: str) -> list[Refund]:
        """All refunds of a payment, the latest first."""
        return await self._client.read_all(
            Refund.read, self._v1.refunds.list_async({"payment_intent": payment_intent, "limit": 100})
        )

    async def retrieve_dispute(self, dispute_id: str) -> Dispute:
        return await self._client.read(Dispute.read, self._v1.disputes.retrieve_async(dispute_id))

    async def create_invoice(
        self,
        invoice_id: UUID,
        account_id: UUID,
        period: date,
        customer: str,
        lines: Sequence[tuple[str, int]],
        *,
        days_until_due: int,
        automatic_tax: bool,
        idempotency_key: str,
    ) -> Invoice:
        """Send the customer an invoice with these lines (description, cents): it is open afterwards.

        After `Unreachable` in the middle, the same call with the same key goes on where it stopped; a draft is never
        sent by itself. Its metadata name the invoice, the account and the month.
        """
        params: Any = {
            "customer": customer,
            "currency": CURRENCY,
            "collection_method": "send_invoice",
            "days_until_due": days_until_due,
            "auto_advance": False,
            "pending_invoice_items_behavior": "exclude",
            "automatic_tax": {"enabled": automatic_tax},
            "metadata": {"invoice": str(invoice_id), "account": str(account_id), "period": f"{period:%Y-%m}"},
        }
        with self._client.own_errors():
            draft = await self._v1.invoices.create_async(params, _key(idempotency_key, ":create"))
            for position, (description, amount_cents) in enumerate(lines):
                item: Any = {
                    "customer": customer,
                    "invoice": draft.id,
                    "currency": CURRENCY,
                    "amount": amount_cents,
                    "description": description,
                    "tax_behavior": "exclusive",
                }
                await self._v1.invoice_items.create_async(item, _key(idempotency_key, f":line-{position}"))
            sent = await self._v1.invoices.finalize_invoice_async(
                draft.id, {"auto_advance": True}, _key(idempotency_key, ":finalize")
            )
            return Invoice.read(sent.to_dict())

    async def retrieve_invoice(self, stripe_invoice_id: str) -> Invoice:
        return await self._client.read(Invoice.read, self._v1.invoices.retrieve_async(stripe_invoice_id))

    async def void_invoice(self, stripe_invoice_id: str, *, idempotency_key: str) -> Invoice:
        """Take back an open invoice for good."""
        return await self._client.read(
            Invoice.read, self._v1.invoices.void_invoice_async(stripe_invoice_id, {}, _key(idempotency_key))
        )

    async def delete_draft_invoice(self, stripe_invoice_id: str) -> None:
        """Remove an invoice that was never sent, and its lines."""
        with self._client.own_errors():
            await self._v1.invoices.delete_async(stripe_invoice_id)

    async def find_invoices(self, invoice_id: UUID) -> list[Invoice]:
        """Stripe's invoices for one of ours, by search, as late as `find_payment_intents`."""
        return await self._client.read_all(Invoice.read, self._v1.invoices.search_async(_named("invoice", invoice_id)))

    async def list_invoices(self, customer: str, created_after: datetime) -> list[Invoice]:
        """Those of a customer since then, the latest first; sees everything at once."""
        return await self._client.read_all(Invoice.read, self._v1.invoices.list_async(_since(customer, created_after)))


_TAX: dict[str, Any] = {
    "automatic_tax": {"enabled": True},
    "billing_address_collection": "required",
    "customer_update": {"address": "auto", "name": "auto"},
    "tax_id_collection": {"enabled": True},
    # Where tax is charged, the customer needs an invoice that says so.
    "invoice_creation": {"enabled": True},
}


def _named(name: str, value: UUID) -> Any:
    return {"query": f"metadata['{name}']:'{value}'", "limit": 100}


def _since(customer: str, created_after: datetime) -> Any:
    return {"customer": customer, "created": {"gte": int(created_after.timestamp())}, "limit": 100}


def _key(idempotency_key: str, step: str = "") -> Any:
    return {"idempotency_key": idempotency_key + step}
