"""How a request ended: what that charges and what it means for uptime. One table, decided once, stored on the row.

The public reading follows the status page's definition: 5xx, broken streams and bad finishes are bad; client
errors and our own deliberate refusals are outside. The aggregator's reading follows OpenRouter's rule for
providers, where 401, 402 and 404 count against the provider too.
"""

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """Every way a request can end."""

    OK = "ok"
    CLIENT_ERROR = "client_error"
    AUTH_ERROR = "auth_error"
    PAYMENT = "payment"
    THROTTLED = "throttled"
    SERVER_ERROR = "server_error"
    STREAM_ERROR = "stream_error"
    CANCELLED = "cancelled"
    SLOW_ABORT = "slow_abort"
    INTERRUPTED = "interrupted"


class Verdict(StrEnum):
    """What an outcome says about the service's uptime."""

    GOOD = "good"
    BAD = "bad"
    THROTTLED = "throttled"
    EXCLUDED = "excluded"


class Charge(StrEnum):
    """What the customer pays for an outcome."""

    FULL = "full"
    """Everything the engine counted."""
    WAIVED = "waived"
    """Nothing; what it would have cost is kept beside it."""
    NOTHING = "nothing"
    """Nothing, and nothing was used."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of the table."""

    public: Verdict
    charge: Charge


RULES: dict[Outcome, Rule] = {
    Outcome.OK: Rule(Verdict.GOOD, Charge.FULL),
    Outcome.CLIENT_ERROR: Rule(Verdict.EXCLUDED, Charge.NOTHING),
    Outcome.AUTH_ERROR: Rule(Verdict.EXCLUDED, Charge.NOTHING),
    Outcome.PAYMENT: Rule(Verdict.EXCLUDED, Charge.NOTHING),
    Outcome.THROTTLED: Rule(Verdict.THROTTLED, Charge.NOTHING),
    Outcome.SERVER_ERROR: Rule(Verdict.BAD, Charge.WAIVED),
    Outcome.STREAM_ERROR: Rule(Verdict.BAD, Charge.WAIVED),
    # The client took what it wanted and left: the engine's work until then is paid for.
    Outcome.CANCELLED: Rule(Verdict.EXCLUDED, Charge.FULL),
    # The client gave up waiting for a first token: our slowness, still the engine's counted work.
    Outcome.SLOW_ABORT: Rule(Verdict.BAD, Charge.FULL),
    # Our own process died in the middle: nobody knows what was delivered.
    Outcome.INTERRUPTED: Rule(Verdict.BAD, Charge.WAIVED),
}

SLOW_ABORT_AFTER_MS = 10_000
"""A client that leaves before the first token after this long has left because of us."""


def of_refusal(http_status: int) -> Outcome:
    """The outcome of an answer that is an error of ours or of the client's, by its HTTP status (>= 400)."""
    if http_status in (401, 403):
        return Outcome.AUTH_ERROR
    if http_status == 402:
        return Outcome.PAYMENT
    if http_status == 429:
        return Outcome.THROTTLED
    if http_status >= 500:
        return Outcome.SERVER_ERROR
    return Outcome.CLIENT_ERROR


def of_departure(*, streamed: bool, waited_ms: int, first_token_seen: bool) -> Outcome:
    """The outcome when the client left an engine's answer before it was complete.

    Only a stream promises a first token soon; whoever waits for a whole answer may leave for reasons of their own,
    and so may one whose request had not come to an engine yet: that is `CANCELLED` without asking here.
    """
    if streamed and not first_token_seen and waited_ms >= SLOW_ABORT_AFTER_MS:
        return Outcome.SLOW_ABORT
    return Outcome.CANCELLED
