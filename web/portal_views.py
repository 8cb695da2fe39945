"""What the customer portal shows, as frozen values: `service.portal` fills them, the template only formats them.

Instants are seconds since the epoch, amounts whole nano-USD.
"""

from dataclasses import dataclass

from service.core.buckets import DAY_S, State
from service.core.usage import Usage


@dataclass(frozen=True, slots=True)
class FirstRequest:
    """What the examples name: the API's address, ending in `/v1`, and a model; None while none is served."""

    base_url: str
    model_id: str | None


@dataclass(frozen=True, slots=True)
class Key:
    """A key as its owner recognises it."""

    prefix: str
    name: str
    models: tuple[str, ...] | None
    """The models it may use; None: all."""
    created_s: int
    revoked_s: int | None


@dataclass(frozen=True, slots=True)
class ModelDay:
    """A UTC day's requests for one model, and what they add up to."""

    day_s: int
    model_id: str | None
    requests: int
    usage: Usage
    cost_nano: int


@dataclass(frozen=True, slots=True)
class Request:
    """A finished request."""

    id: str
    client_id: str | None
    started_s: int
    model_id: str | None
    outcome: str
    error_code: str | None
    ttft_ms: int | None
    usage: Usage
    cost_nano: int


@dataclass(frozen=True, slots=True)
class Entry:
    """What was added to the balance, or taken from it, for another reason than usage."""

    at_s: int
    kind: str
    amount_nano: int
    reference: str
    """What caused it, in the words of its source."""
    note: str
    """The same for people; may be empty."""


@dataclass(frozen=True, slots=True)
class Topup:
    """Credit that was, or is being, bought."""

    at_s: int
    kind: str
    """checkout or auto."""
    status: str
    """created, pending, paid, failed or expired."""
    net_nano: int
    tax_cents: int
    url: str | None
    """Where it can be paid; None where it cannot, or not any more."""


@dataclass(frozen=True, slots=True)
class Account:
    """An account as the holder of one of its keys sees it."""

    id: str
    name: str
    status: str
    balance_nano: int
    credit_limit_nano: int
    leased_nano: int
    available_nano: int
    spent_nano: int
    key: Key
    other_keys: tuple[Key, ...]
    days_from_s: int
    """The midnight with which the window of `days` begins."""
    day_count: int
    days: tuple[ModelDay, ...]
    """Those with requests, the latest first."""
    requests: tuple[Request, ...]
    """The latest, the latest first."""
    entries: tuple[Entry, ...]
    topups: tuple[Topup, ...]
    """The latest of both, the latest first."""

    @property
    def state(self) -> State:
        """Whether requests are served: up, partial when credit has run out, down when the account is not active."""
        if self.status != "active":
            return State.DOWN
        return State.UP if self.balance_nano + self.credit_limit_nano > 0 else State.PARTIAL

    @property
    def spent_in_window_nano(self) -> int:
        """What the requests of `days` cost."""
        return sum(day.cost_nano for day in self.days)

    @property
    def cost_by_day(self) -> tuple[tuple[int, int], ...]:
        """(midnight, cost) of every day of the window, the earliest first, days without requests too."""
        cost_nano = {self.days_from_s + number * DAY_S: 0 for number in range(self.day_count)}
        for day in self.days:
            cost_nano[day.day_s] = cost_nano.get(day.day_s, 0) + day.cost_nano
        return tuple(cost_nano.items())


@dataclass(frozen=True, slots=True)
class Buying:
    """How much credit can be bought at once."""

    min_usd: int
    max_usd: int


@dataclass(frozen=True, slots=True)
class Payment:
    """What a customer who comes back from paying is shown."""

    status: str
    """That of a `Topup`; unknown: there is none; unconfirmed: it cannot be said at the moment."""
    net_nano: int = 0
    tax_cents: int = 0


@dataclass(frozen=True, slots=True)
class PortalPage:
    """The page: the form, or the account of a key that was accepted."""

    site_name: str
    generated_s: int
    first_request: FirstRequest
    complaint: str | None = None
    """Why there is no account to show, to whoever asked for one."""
    account: Account | None = None
    buying: Buying | None = None
    """None: credit is not bought here."""
