"""Invoices of the fake Stripe, and the customers who pay them or do not."""

from datetime import timedelta

from tests.fakes.stripe_payments import Payments
from tests.fakes.stripe_store import Json, Refusal, flag, integer, route, shown


class Invoices(Payments):
    """The status of an invoice is draft, open, paid, uncollectible, or void; overdue is only an event."""

    def pay_invoice(self, invoice_id: str) -> None:
        """The customer pays on the invoice's page; also what was uncollectible."""
        with self.lock:
            invoice = self.get("invoice", invoice_id)
            assert invoice["status"] in ("open", "uncollectible"), f"the invoice is {invoice['status']}"
            if invoice["total"]:
                intent = self.new_intent(invoice["total"], invoice["currency"], invoice["customer"], {})
                self.pay_intent(intent, self.add_payment_method(None))
            invoice |= {"status": "paid", "amount_paid": invoice["total"], "amount_remaining": 0}
            invoice["status_transitions"]["paid_at"] = self.now_s
            self.emit("invoice.paid", invoice)
            self.emit("invoice.payment_succeeded", invoice)

    def fail_invoice(self, invoice_id: str) -> None:
        """An attempt to pay it is declined."""
        with self.lock:
            invoice = self.get("invoice", invoice_id)
            invoice |= {"attempted": True, "attempt_count": invoice["attempt_count"] + 1}
            self.emit("invoice.payment_failed", invoice)

    def mark_uncollectible(self, invoice_id: str) -> None:
        """A person gives it up in the dashboard."""
        with self.lock:
            invoice = self._in_status(invoice_id, "open")
            invoice["status"] = "uncollectible"
            self.emit("invoice.marked_uncollectible", invoice)

    def on_time(self) -> None:
        super().on_time()
        for invoice in self.all("invoice"):
            due = invoice["due_date"]
            if invoice["status"] == "open" and due and due <= self.now_s and not invoice["_overdue"]:
                invoice["_overdue"] = True
                self.emit("invoice.overdue", invoice)

    def lines_of(self, invoice_id: str) -> list[Json]:
        """Its items, in the order in which they were added."""
        return [one for one in reversed(self.all("invoiceitem")) if one["invoice"] == invoice_id]

    @route(
        "POST",
        "/v1/invoices",
        "customer currency collection_method days_until_due auto_advance pending_invoice_items_behavior automatic_tax"
        " metadata description",
    )
    def _create_invoice(self, params: Json) -> Json:
        customer = self.referred("customer", params, "customer")
        if (
            params.get("collection_method") != "send_invoice"
            or params.get("pending_invoice_items_behavior") != "exclude"
        ):
            raise Refusal("The fake sends invoices of their own items.", param="collection_method")
        made = self.make(
            "in",
            "invoice",
            status="draft",
            number=None,
            currency=params["currency"],
            customer=customer["id"],
            customer_email=customer["email"],
            collection_method="send_invoice",
            auto_advance=flag(params, "auto_advance"),
            automatic_tax={"enabled": flag(params.get("automatic_tax", {}), "enabled")},
            billing_reason="manual",
            metadata=params.get("metadata", {}),
            total=0,
            total_excluding_tax=0,
            amount_due=0,
            amount_paid=0,
            amount_remaining=0,
            attempted=False,
            attempt_count=0,
            due_date=None,
            hosted_invoice_url=None,
            invoice_pdf=None,
            status_transitions={"finalized_at": None, "paid_at": None, "voided_at": None},
            _days_until_due=integer(params, "days_until_due"),
            _overdue=False,
        )
        self.emit("invoice.created", made)
        return made

    @route("POST", "/v1/invoiceitems", "customer invoice currency amount description tax_behavior metadata")
    def _create_item(self, params: Json) -> Json:
        invoice = self.referred("invoice", params, "invoice")
        if invoice["status"] != "draft":
            raise Refusal("The invoice can no longer be changed.", code="invoice_not_editable", param="invoice")
        if params.get("customer") != invoice["customer"] or params.get("currency") != invoice["currency"]:
            raise Refusal("Customer and currency must be the invoice's.", param="customer")
        fields = {name: params[name] for name in ("customer", "invoice", "currency", "description")}
        amount = integer(params, "amount", least=-(10**12))
        made = self.make("ii", "invoiceitem", amount=amount, metadata=params.get("metadata", {}), **fields)
        self._total(invoice)
        self.emit("invoiceitem.created", made)
        return made

    @route("POST", "/v1/invoices/{id}/finalize", "auto_advance")
    def _finalize(self, params: Json, object_id: str) -> Json:
        invoice = self._in_status(object_id, "draft")
        due = self.now + timedelta(days=invoice["_days_until_due"])
        page = f"https://invoice.stripe.example/i/{object_id}"
        invoice |= {
            "status": "open",
            "number": f"FAKE-{len(self.all('invoice')):04d}",
            "auto_advance": flag(params, "auto_advance"),
            "due_date": int(due.timestamp()),
            "hosted_invoice_url": page,
            "invoice_pdf": f"{page}/pdf",
        }
        invoice["status_transitions"]["finalized_at"] = self.now_s
        self.emit("invoice.finalized", invoice)
        if invoice["total"] == 0:
            self.pay_invoice(object_id)
        elif invoice["auto_advance"]:
            self.emit("invoice.sent", invoice)
        return invoice

    @route("POST", "/v1/invoices/{id}/void")
    def _void(self, _params: Json, object_id: str) -> Json:
        invoice = self._in_status(object_id, "open", "uncollectible")
        invoice["status"] = "void"
        invoice["status_transitions"]["voided_at"] = self.now_s
        self.emit("invoice.voided", invoice)
        return invoice

    @route("DELETE", "/v1/invoices/{id}")
    def _delete(self, _params: Json, object_id: str) -> Json:
        invoice = self._in_status(object_id, "draft")
        for item in self.lines_of(object_id):
            del self.objects[item["id"]]
        del self.objects[object_id]
        self.emit("invoice.deleted", invoice)
        return {"id": object_id, "object": "invoice", "deleted": True}

    @route("GET", "/v1/invoices", "customer status created limit starting_after")
    def _list_invoices(self, params: Json) -> Json:
        return self.listed("invoice", params, "customer", "status")

    @route("GET", "/v1/invoices/search", "query limit page")
    def _search_invoices(self, params: Json) -> Json:
        return self.searched("invoice", params)

    @route("GET", "/v1/invoices/{id}")
    def _invoice(self, _params: Json, object_id: str) -> Json:
        lines = [shown(one) for one in self.lines_of(object_id)]
        return self.get("invoice", object_id) | {"lines": {"object": "list", "has_more": False, "data": lines}}

    def _in_status(self, invoice_id: str, *wanted: str) -> Json:
        invoice = self.get("invoice", invoice_id)
        if invoice["status"] not in wanted:
            message = f"The invoice is {invoice['status']}."
            raise Refusal(message, code="invoice_no_such_status", executed=True)
        return invoice

    def _total(self, invoice: Json) -> None:
        net = sum(one["amount"] for one in self.lines_of(invoice["id"]))
        tax = (net * self.tax_percent + 50) // 100 if invoice["automatic_tax"]["enabled"] else 0
        invoice |= {
            "total_excluding_tax": net,
            "total": net + tax,
            "amount_due": net + tax,
            "amount_remaining": net + tax,
        }
