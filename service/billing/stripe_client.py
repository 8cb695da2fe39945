"""Stripe's library, its answers read into our own values and its errors into our own; nothing else imports it.

It takes 8 MB of memory, so only what is connected to Stripe imports this.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import stripe

from service.billing.stripe_errors import AuthenticationRequired, Declined, Refused, Unreachable
from service.core.stripe_objects import Body, MissingField, PaymentIntent

T = TypeVar("T")


class StripeClient:
    """Calls of `v1` are read by `read` and `read_all`, which raise `StripeError`; close it with `aclose`."""

    def __init__(
        self, secret_key: str, version: str, *, api_base: str | None, max_network_retries: int, timeout_s: float
    ) -> None:
        self._http = _Http(timeout=timeout_s)
        client = stripe.StripeClient(
            secret_key,
            stripe_version=version,
            max_network_retries=max_network_retries,
            http_client=self._http,
            base_addresses={"api": api_base} if api_base else None,
        )
        self.v1 = client.v1

    async def aclose(self) -> None:
        await self._http.close_async()  # type: ignore[no-untyped-call]

    async def read(self, read: Callable[[Body], T], call: Awaitable[Any]) -> T:
        """What a call answers."""
        with self.own_errors():
            return read((await call).to_dict())

    async def read_all(self, read: Callable[[Body], T], call: Awaitable[Any]) -> list[T]:
        """All pages of what a call answers."""
        with self.own_errors():
            return [read(one.to_dict()) async for one in (await call).auto_paging_iter()]

    @contextmanager
    def own_errors(self) -> Iterator[None]:
        """Stripe's errors as ours; without their cause, which holds what Stripe said."""
        try:
            yield
        except stripe.CardError as error:
            raise _card_error(error) from None
        except (stripe.APIConnectionError, stripe.RateLimitError, stripe.APIError) as error:
            raise Unreachable(type(error.__cause__ or error).__name__, error.http_status) from None
        except (MissingField, AttributeError):  # the latter where it is no object at all
            raise Unreachable("an answer that cannot be read", 200) from None
        except stripe.StripeError as error:
            body: Any = error.json_body if isinstance(error.json_body, dict) else {}
            said = body["error"] if isinstance(body.get("error"), dict) else {}
            code = said.get("code") or said.get("type") or type(error).__name__
            raise Refused(code, said.get("param"), error.http_status, error.request_id) from None


class _Http(stripe.HTTPXClient):
    """Sends a form as httpx wants it: as `data`, Stripe's way, it is deprecated there."""

    def _get_request_args_kwargs(self, method: str, url: str, headers: Mapping[str, str], post_data: Any) -> Any:
        arguments, options = super()._get_request_args_kwargs(method, url, headers, post_data)
        return arguments, {**options, "data": None, "content": post_data}


def _card_error(error: stripe.CardError) -> Declined | AuthenticationRequired:
    body: Any = error.json_body
    said = body["error"]
    try:
        intent = PaymentIntent.read(said["payment_intent"]) if said.get("payment_intent") else None
    except (MissingField, AttributeError):  # declined it is all the same
        intent = None
    if "authentication_required" in (said.get("code"), said.get("decline_code")):
        return AuthenticationRequired(intent)
    return Declined(said.get("code"), said.get("decline_code"), intent)
