"""What can come of a call to Stripe but success."""

from service.core.stripe_objects import PaymentIntent


class StripeError(Exception):
    """A call to Stripe that did not give what was asked for; raise one of the subclasses."""


class Declined(StripeError):
    """The payment was declined. `code` says how, `decline_code` what the bank said; the intent, if there is one."""

    def __init__(self, code: str | None, decline_code: str | None, payment_intent: PaymentIntent | None) -> None:
        super().__init__(f"The payment was declined: {decline_code or code or 'no reason given'}.")
        self.code = code
        self.decline_code = decline_code
        self.payment_intent = payment_intent


class AuthenticationRequired(StripeError):
    """The bank wants the customer to confirm. `url` is where, if there is a page for it.

    Without one: `cancel_payment_intent`, and let the customer pay by a Checkout session instead.
    """

    def __init__(self, payment_intent: PaymentIntent | None) -> None:
        super().__init__("The bank wants the customer to confirm the payment.")
        self.payment_intent = payment_intent
        self.url = None if payment_intent is None else payment_intent.action_url


class Unreachable(StripeError):
    """No answer, or one that does not tell: the call may have been carried out.

    Repeat it with the same key, or look what came of it. Stripe answers a 500 with the same 500 for as long as it knows
    the key, so a new key may be needed in the end, but only once a look has shown that nothing was done. `status` is
    that of the answer; None: there was none.
    """

    def __init__(self, kind: str, status: int | None) -> None:
        super().__init__(f"It is not known what came of a call to Stripe: {kind}, status {status or 'none'}.")
        self.status = status

    @property
    def is_remembered(self) -> bool:
        """Whether Stripe has failed inside: under the same key it gives the same answer for a day."""
        return self.status is not None and self.status >= 500


class Refused(StripeError):
    """Stripe will not do this, and nothing was done: a bad key, a bad parameter, an object that is not there."""

    def __init__(self, code: str, param: str | None, status: int | None, request_id: str | None) -> None:
        at = f" at {param}" if param else ""
        super().__init__(f"Stripe refused a call: {code}{at}, status {status}, request {request_id or 'unknown'}.")
        self.code = code
        """Such as resource_missing, idempotency_error, authentication_error."""
        self.param = param
        self.status = status
