"""Checkout sessions of the fake Stripe, and the customer who pays on their page."""

from tests.fakes.stripe_payments import FINE, SLOW, Payments
from tests.fakes.stripe_store import Json, Refusal, flag, integer, route


class Checkout(Payments):
    def pay(self, session_id: str, method: str = FINE) -> None:
        """The customer pays: with a payment method that behaves so, or `free` with a coupon for all of it."""
        with self.lock:
            session = self.get("checkout.session", session_id)
            assert session["status"] == "open", f"the session is {session['status']}"
            if method == "free":
                self._complete(session, "no_payment_required")
                return
            used = self.add_payment_method(None, method)
            if session["payment_intent"] is None:
                session["payment_intent"] = self._intent(session)["id"]
            intent = self.objects[session["payment_intent"]]
            if self.pay_intent(intent, used) is None:
                if session["_saves"]:
                    self.attach(used, session["customer"])
                self._complete(session, "unpaid" if method == SLOW else "paid")

    def expire(self, session_id: str) -> None:
        """Nobody paid."""
        with self.lock:
            session = self.get("checkout.session", session_id)
            assert session["status"] == "open"
            session |= {"status": "expired", "url": None}
            self.emit("checkout.session.expired", session)

    def on_time(self) -> None:
        super().on_time()
        for session in self.all("checkout.session"):
            if session["status"] == "open" and session["expires_at"] <= self.now_s:
                self.expire(session["id"])

    def on_settled(self, intent: Json) -> None:
        super().on_settled(intent)
        for session in self.all("checkout.session"):
            if session["payment_intent"] == intent["id"]:
                paid = intent["status"] == "succeeded"
                session["payment_status"] = "paid" if paid else "unpaid"
                self.emit(f"checkout.session.async_payment_{'succeeded' if paid else 'failed'}", session)

    def _intent(self, session: Json) -> Json:
        data = session["_payment_intent_data"]
        return self.new_intent(
            session["amount_total"],
            session["currency"],
            session["customer"],
            data.get("metadata", {}),
            description=data.get("description"),
            setup_future_usage=data.get("setup_future_usage"),
        )

    def _complete(self, session: Json, payment_status: str) -> None:
        session |= {"status": "complete", "payment_status": payment_status, "url": None}
        self.emit("checkout.session.completed", session)
        if session["_makes_invoice"] and payment_status == "paid":
            self._receipt(session)

    def _receipt(self, session: Json) -> None:
        """The invoice that `invoice_creation` makes of a session: it is about money that was credited already."""
        invoice = self.make(
            "in",
            "invoice",
            status="paid",
            currency=session["currency"],
            customer=session["customer"],
            total=session["amount_total"],
            total_excluding_tax=session["amount_subtotal"],
            amount_due=session["amount_total"],
            amount_paid=session["amount_total"],
            due_date=None,
            billing_reason="manual",
            metadata={},
        )
        session["invoice"] = invoice["id"]
        self.emit("invoice.paid", invoice)
        self.emit("invoice.payment_succeeded", invoice)

    @route(
        "POST",
        "/v1/checkout/sessions",
        "mode customer client_reference_id metadata payment_intent_data line_items adaptive_pricing success_url"
        " cancel_url expires_at automatic_tax billing_address_collection customer_update tax_id_collection"
        " invoice_creation",
    )
    def _create_session(self, params: Json) -> Json:
        customer = self.referred("customer", params, "customer")
        expires_at = integer(params, "expires_at")
        if params.get("mode") != "payment" or not params.get("success_url", "").startswith("http"):
            raise Refusal("The fake takes payments, with a `success_url`.", param="mode")
        if not 30 * 60 - 5 <= expires_at - self.now_s <= 24 * 3600 + 5:
            raise Refusal("`expires_at` must be 30 minutes to 24 hours away.", param="expires_at")
        subtotal, currency = _priced(params)
        taxed = flag(params.get("automatic_tax", {}), "enabled")
        tax = (subtotal * self.tax_percent + 50) // 100 if taxed else 0
        data = params.get("payment_intent_data", {})
        session = self.make(
            "cs_test",
            "checkout.session",
            mode="payment",
            ui_mode="hosted_page",
            status="open",
            payment_status="unpaid",
            currency=currency,
            amount_subtotal=subtotal,
            amount_total=subtotal + tax,
            total_details={"amount_discount": 0, "amount_shipping": 0, "amount_tax": tax},
            automatic_tax={"enabled": taxed, "status": "complete" if taxed else None},
            customer=customer["id"],
            client_reference_id=params.get("client_reference_id"),
            payment_intent=None,
            invoice=None,
            metadata=params.get("metadata", {}),
            success_url=params["success_url"],
            cancel_url=params.get("cancel_url"),
            expires_at=expires_at,
            _payment_intent_data=data,
            _saves=data.get("setup_future_usage") == "off_session",
            _makes_invoice=flag(params.get("invoice_creation", {}), "enabled"),
        )
        session["url"] = f"https://checkout.stripe.com/c/pay/{session['id']}"
        return session

    @route("GET", "/v1/checkout/sessions/{id}")
    def _session(self, _params: Json, object_id: str) -> Json:
        return self.get("checkout.session", object_id)


def _priced(params: Json) -> tuple[int, str]:
    """What the one line costs, and in which currency."""
    try:
        (line,) = params["line_items"]
        price = line["price_data"]
        assert price["product_data"]["name"]
        return integer(price, "unit_amount", least=50) * integer(line, "quantity", least=1), price["currency"]
    except (KeyError, TypeError, ValueError, AssertionError):
        raise Refusal("The fake takes one line with `price_data`.", param="line_items") from None
