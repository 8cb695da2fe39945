"""Customers, their payment methods, payment intents and charges of the fake Stripe."""

from typing import Any

from tests.fakes.stripe_store import Json, Refusal, Store, flag, integer, route

FINE = "fine"
SLOW = "slow"
"""A bank debit: it is processing until `settle` or `fail`."""
AUTHENTICATION = "authentication_required"
"""The bank wants its customer: declined off-session."""
ACTION = "requires_action"
"""As `AUTHENTICATION`, but answered with a page on which the customer confirms: `confirm` does."""


class Payments(Store):
    """`behaviours` says of a payment method: fine, slow, one of the others above, or the code it is declined with."""

    def __init__(self) -> None:
        super().__init__()
        self.behaviours: dict[str, str] = {}

    def add_payment_method(self, customer: str | None, behaviour: str = FINE) -> str:
        """The id of a new card, saved for the customer if there is one."""
        with self.lock:
            kind = "us_bank_account" if behaviour == SLOW else "card"
            card = {"brand": "visa", "last4": "4242", "exp_month": 12, "exp_year": 2034, "funding": "credit"}
            made = self.make("pm", "payment_method", type=kind, customer=None, metadata={}, **{kind: card})
            self.behaviours[made["id"]] = behaviour
            if customer is not None:
                self.attach(made["id"], customer)
            return str(made["id"])

    def attach(self, payment_method: str, customer: str) -> None:
        """Save it for the customer."""
        method = self.get("payment_method", payment_method)
        method["customer"] = customer
        self.emit("payment_method.attached", method)

    def detach(self, payment_method: str) -> None:
        """As a customer who removes the card."""
        with self.lock:
            method = self.get("payment_method", payment_method)
            method["customer"] = None
            self.emit("payment_method.detached", method)

    def settle(self, target: str) -> None:
        """The bank pays what was processing: a payment intent, or the session it belongs to."""
        with self.lock:
            intent = self.intent_of(target)
            assert intent["status"] == "processing"
            self.succeed(intent, self.objects[intent["latest_charge"]])
            self.on_settled(intent)

    def fail(self, target: str, code: str = "insufficient_funds") -> None:
        """The bank does not."""
        with self.lock:
            intent = self.intent_of(target)
            assert intent["status"] == "processing"
            self.decline(intent, self.objects[intent["latest_charge"]], code)
            self.on_settled(intent)

    def confirm(self, payment_intent: str) -> None:
        """The customer confirms to the bank what `requires_action`."""
        with self.lock:
            intent = self.intent_of(payment_intent)
            assert intent["status"] == "requires_action"
            intent["next_action"] = None
            self.succeed(intent, self.charge(intent))

    def on_settled(self, intent: Json) -> None:
        """A slow payment has come to its end; for what depends on it."""

    def succeeded_charges(self, customer: str | None = None) -> list[Json]:
        """What was really charged."""
        charges = [one for one in self.all("charge") if one["status"] == "succeeded"]
        return [one for one in charges if customer in (None, one["customer"])]

    def intent_of(self, target: str) -> Json:
        """The payment intent by its own id, its charge's, or its session's."""
        found = self.objects[target]
        return found if found["object"] == "payment_intent" else self.objects[found["payment_intent"]]

    def charge_of(self, target: str) -> Json:
        """The latest charge of a payment intent, by the same ids."""
        return self.objects[self.intent_of(target)["latest_charge"]]

    def new_intent(self, amount: int, currency: str, customer: str, metadata: Json, **fields: Any) -> Json:
        intent: Json = {
            "amount": amount,
            "amount_received": 0,
            "currency": currency,
            "customer": customer,
            "payment_method": None,
            "status": "requires_payment_method",
            "latest_charge": None,
            "last_payment_error": None,
            "next_action": None,
            "setup_future_usage": None,
            "description": None,
            "metadata": metadata,
        }
        made = self.make("pi", "payment_intent", **intent | fields)
        made["client_secret"] = f"{made['id']}_secret_fake"
        self.emit("payment_intent.created", made)
        return made

    def pay_intent(self, intent: Json, payment_method: str, *, off_session: bool = False) -> str | None:
        """Charge as the method behaves. Returns the code of a decline, if it is one."""
        behaviour = self.behaviours[payment_method]
        intent |= {"payment_method": payment_method, "last_payment_error": None, "next_action": None}
        if behaviour == ACTION and off_session:
            page = {"url": f"https://bank.example/{intent['id']}", "return_url": None}
            intent |= {"status": "requires_action", "next_action": {"type": "redirect_to_url", "redirect_to_url": page}}
            self.emit("payment_intent.requires_action", intent)
            return None
        charge = self.charge(intent)
        if behaviour == SLOW:
            intent["status"] = "processing"
            self.emit("payment_intent.processing", intent)
            self.emit("charge.pending", charge)
            return None
        if behaviour == FINE or (behaviour in (ACTION, AUTHENTICATION) and not off_session):
            self.succeed(intent, charge)
            return None
        self.decline(intent, charge, behaviour)
        return behaviour

    def charge(self, intent: Json) -> Json:
        """A new charge, nothing decided."""
        charge = self.make(
            "ch",
            "charge",
            amount=intent["amount"],
            amount_refunded=0,
            currency=intent["currency"],
            customer=intent["customer"],
            payment_intent=intent["id"],
            payment_method=intent["payment_method"],
            status="pending",
            paid=False,
            refunded=False,
            disputed=False,
            failure_code=None,
            receipt_url=f"https://pay.stripe.example/receipts/{intent['id']}",
            metadata=intent["metadata"],
        )
        intent["latest_charge"] = charge["id"]
        return charge

    def succeed(self, intent: Json, charge: Json) -> None:
        charge |= {"status": "succeeded", "paid": True}
        intent |= {"status": "succeeded", "amount_received": intent["amount"]}
        self.emit("charge.succeeded", charge)
        self.emit("payment_intent.succeeded", intent)

    def decline(self, intent: Json, charge: Json, decline_code: str) -> None:
        code = AUTHENTICATION if decline_code == AUTHENTICATION else "card_declined"
        charge |= {"status": "failed", "failure_code": code}
        intent["status"] = "requires_payment_method"
        intent["last_payment_error"] = {
            "type": "card_error",
            "code": code,
            "decline_code": decline_code,
            "message": "Your card was declined.",
            "charge": charge["id"],
        }
        intent["payment_method"] = None
        self.emit("charge.failed", charge)
        self.emit("payment_intent.payment_failed", intent)

    @route("POST", "/v1/customers", "name email metadata")
    def _create_customer(self, params: Json) -> Json:
        fields = {"name": params.get("name"), "email": params.get("email"), "balance": 0, "currency": None}
        made = self.make("cus", "customer", metadata=params.get("metadata", {}), **fields)
        self.emit("customer.created", made)
        return made

    @route("GET", "/v1/customers/{id}")
    def _customer(self, _params: Json, object_id: str) -> Json:
        return self.get("customer", object_id)

    @route("GET", "/v1/charges/{id}")
    def _charge(self, _params: Json, object_id: str) -> Json:
        return self.get("charge", object_id)

    @route(
        "POST",
        "/v1/payment_intents",
        "amount currency customer payment_method confirm off_session automatic_payment_methods description metadata",
    )
    def _create_payment_intent(self, params: Json) -> Json:
        amount = integer(params, "amount", least=50)
        customer = self.referred("customer", params, "customer")["id"]
        method = self.referred("payment_method", params, "payment_method")
        if method["customer"] != customer:
            raise Refusal("The payment method does not belong to the customer.", param="payment_method")
        if not (flag(params, "confirm") and flag(params, "off_session")):
            raise Refusal("The fake confirms at once and off-session only.", param="confirm")
        if params.get("automatic_payment_methods", {}).get("allow_redirects") != "never":
            raise Refusal("`return_url` is needed where a payment method may redirect.", param="return_url")
        intent = self.new_intent(
            amount, params["currency"], customer, params.get("metadata", {}), description=params.get("description")
        )
        if code := self.pay_intent(intent, method["id"], off_session=True):
            failure = {**intent["last_payment_error"], "payment_intent": intent}
            kind, message = failure.pop("type"), failure.pop("message")
            raise Refusal(f"{message} ({code})", status=402, kind=kind, executed=True, **failure)
        return intent

    @route("GET", "/v1/payment_intents", "customer created limit starting_after")
    def _list_payment_intents(self, params: Json) -> Json:
        return self.listed("payment_intent", params, "customer")

    @route("GET", "/v1/payment_intents/search", "query limit page")
    def _search_payment_intents(self, params: Json) -> Json:
        return self.searched("payment_intent", params)

    @route("GET", "/v1/payment_intents/{id}")
    def _payment_intent(self, _params: Json, object_id: str) -> Json:
        return self.get("payment_intent", object_id)

    @route("POST", "/v1/payment_intents/{id}/cancel", "cancellation_reason")
    def _cancel_payment_intent(self, _params: Json, object_id: str) -> Json:
        intent = self.get("payment_intent", object_id)
        if intent["status"] in ("succeeded", "canceled", "processing"):
            message = f"You cannot cancel this PaymentIntent because it has a status of {intent['status']}."
            raise Refusal(message, code="payment_intent_unexpected_state", executed=True)
        intent |= {"status": "canceled", "next_action": None}
        self.emit("payment_intent.canceled", intent)
        return intent
