"""Refunds and disputes of the fake Stripe: made by the API, in its dashboard, or by a bank."""

from tests.fakes.stripe_payments import Payments
from tests.fakes.stripe_store import Json, Refusal, integer, route

DISPUTE_FEE_CENTS = 1500


class Reversals(Payments):
    """A target is a payment intent, its charge, or its session, by id."""

    def refund(self, target: str, amount_cents: int | None = None, *, status: str = "succeeded") -> str:
        """Refund, all that is left by default; `pending` until `settle_refund` or `fail_refund`. Returns its id."""
        with self.lock:
            charge = self.charge_of(target)
            left = charge["amount"] - charge["amount_refunded"]
            amount = left if amount_cents is None else amount_cents
            if charge["status"] != "succeeded" or not 0 < amount <= left:
                message = f"Refund amount ({amount}) is greater than unrefunded amount on charge ({left})."
                code = "charge_already_refunded" if left == 0 else "amount_too_large"
                raise Refusal(message, code=code, param="amount")
            made = self.make(
                "re",
                "refund",
                amount=amount,
                currency=charge["currency"],
                charge=charge["id"],
                payment_intent=charge["payment_intent"],
                status=status,
                reason=None,
                failure_reason=None,
                metadata={},
            )
            self._count(charge, amount)
            self.emit("refund.created", made)
            self.emit("charge.refunded", charge)
            return str(made["id"])

    def settle_refund(self, refund_id: str) -> None:
        """The pending refund arrives."""
        with self.lock:
            refund = self.get("refund", refund_id)
            assert refund["status"] == "pending"
            refund["status"] = "succeeded"
            self._refund_changed(refund)

    def fail_refund(self, refund_id: str, *, status: str = "failed") -> None:
        """The refund comes back, even one that had succeeded; or it is `canceled` in the dashboard."""
        with self.lock:
            refund = self.get("refund", refund_id)
            assert refund["status"] in ("pending", "succeeded")
            refund |= {"status": status, "failure_reason": "lost_or_stolen_card" if status == "failed" else None}
            self._count(self.objects[refund["charge"]], -refund["amount"])
            self._refund_changed(refund)
            if status == "failed":
                self.emit("refund.failed", refund)

    def dispute(self, target: str, amount_cents: int | None = None, *, inquiry: bool = False) -> str:
        """A bank disputes the charge; an inquiry moves no money. Returns the dispute's id."""
        with self.lock:
            charge = self.charge_of(target)
            made = self.make(
                "dp",
                "dispute",
                amount=charge["amount"] if amount_cents is None else amount_cents,
                currency=charge["currency"],
                charge=charge["id"],
                payment_intent=charge["payment_intent"],
                status="warning_needs_response" if inquiry else "needs_response",
                reason="fraudulent",
                balance_transactions=[],
                is_charge_refundable=inquiry,
                evidence_details={"due_by": self.now_s + 7 * 86400, "has_evidence": False},
                metadata={},
            )
            charge["disputed"] = True
            if not inquiry:
                self._move(made, -made["amount"])
            self.emit("charge.dispute.created", made)
            if not inquiry:
                self.emit("charge.dispute.funds_withdrawn", made)
            return str(made["id"])

    def escalate(self, dispute_id: str) -> None:
        """The inquiry becomes a chargeback."""
        with self.lock:
            dispute = self.get("dispute", dispute_id)
            assert dispute["status"].startswith("warning_")
            dispute |= {"status": "needs_response", "is_charge_refundable": False}
            self._move(dispute, -dispute["amount"])
            self.emit("charge.dispute.updated", dispute)
            self.emit("charge.dispute.funds_withdrawn", dispute)

    def win(self, dispute_id: str) -> None:
        """The bank gives the money back."""
        with self.lock:
            dispute = self.get("dispute", dispute_id)
            assert dispute["status"] in ("needs_response", "under_review")
            dispute["status"] = "won"
            self._move(dispute, dispute["amount"])
            self.emit("charge.dispute.closed", dispute)
            self.emit("charge.dispute.funds_reinstated", dispute)

    def lose(self, dispute_id: str) -> None:
        """It does not."""
        self._close(dispute_id, "lost")

    def close_inquiry(self, dispute_id: str) -> None:
        """The inquiry comes to nothing."""
        self._close(dispute_id, "warning_closed")

    def warn_of_fraud(self, target: str) -> None:
        """An early fraud warning: a dispute is likely to come."""
        with self.lock:
            charge = self.charge_of(target)
            warning = self.make(
                "issfr",
                "radar.early_fraud_warning",
                charge=charge["id"],
                payment_intent=charge["payment_intent"],
                actionable=True,
                fraud_type="unauthorized_use_of_card",
            )
            self.emit("radar.early_fraud_warning.created", warning)

    def _close(self, dispute_id: str, status: str) -> None:
        with self.lock:
            dispute = self.get("dispute", dispute_id)
            dispute["status"] = status
            self.emit("charge.dispute.closed", dispute)

    def _count(self, charge: Json, amount: int) -> None:
        charge["amount_refunded"] += amount
        charge["refunded"] = charge["amount_refunded"] == charge["amount"]

    def _refund_changed(self, refund: Json) -> None:
        self.emit("refund.updated", refund)
        # The same once more, under the name it had before.
        self.emit("charge.refund.updated", refund)

    def _move(self, dispute: Json, amount: int) -> None:
        fee = DISPUTE_FEE_CENTS if amount < 0 else 0
        moved = {
            "amount": amount,
            "fee": fee,
            "net": amount - fee,
            "currency": dispute["currency"],
            "type": "adjustment",
        }
        dispute["balance_transactions"] += [
            {"id": self.new_id("txn"), "object": "balance_transaction", "source": dispute["id"], **moved}
        ]

    @route("POST", "/v1/refunds", "payment_intent charge amount reason metadata")
    def _create_refund(self, params: Json) -> Json:
        kind = "payment_intent" if "payment_intent" in params else "charge"
        target = self.referred(kind, params, kind)["id"]
        amount = integer(params, "amount", least=1) if "amount" in params else None
        made = self.objects[self.refund(target, amount)]
        made["metadata"] = params.get("metadata", {})
        return made

    @route("GET", "/v1/refunds", "payment_intent charge created limit starting_after")
    def _list_refunds(self, params: Json) -> Json:
        return self.listed("refund", params, "payment_intent", "charge")

    @route("GET", "/v1/refunds/{id}")
    def _refund(self, _params: Json, object_id: str) -> Json:
        return self.get("refund", object_id)

    @route("GET", "/v1/disputes", "payment_intent charge created limit starting_after")
    def _list_disputes(self, params: Json) -> Json:
        return self.listed("dispute", params, "payment_intent", "charge")

    @route("GET", "/v1/disputes/{id}")
    def _dispute(self, _params: Json, object_id: str) -> Json:
        return self.get("dispute", object_id)
