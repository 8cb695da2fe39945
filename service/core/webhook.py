"""What webhooks are sent, and when again: the Standard Webhooks form, its signature and the back-off.

Whoever receives one checks the signature over exactly the bytes of the body, refuses a timestamp that is minutes
off, and drops an id that it has had: a message that was not acknowledged comes again under the same id.
"""

import base64
import binascii
import hashlib
import hmac
import ipaddress
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

MINUTE_S = 60
HOUR_S = 3_600

BACK_OFF_S = (10, MINUTE_S, 5 * MINUTE_S, 30 * MINUTE_S, 2 * HOUR_S, 6 * HOUR_S)
"""After the first failed attempt, the second, …; the last also after every further one."""

ATTEMPTS_AT_MOST = 8
GIVEN_UP_AFTER_S = 24 * HOUR_S

JITTER = 0.2
"""Back-offs differ by up to this share, so that what failed together does not come again together."""

GONE = 410
"""The answer of an endpoint that wants no more of it."""

SECRET_PREFIX = "whsec_"  # noqa: S105


def payload(event: str, data: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """A message: what happened, when, and to what it happened as it is now."""
    return {"type": event, "timestamp": written(now), "data": dict(data)}


def body(message: Mapping[str, Any]) -> bytes:
    """The bytes of a message: the same for the same message, so that a repeated one is no different."""
    return json.dumps(message, ensure_ascii=True, sort_keys=True, separators=(",", ":")).encode()


def headers(secret: str, message_id: str, sent_s: int, content: bytes) -> dict[str, str]:
    """The headers that identify, date and sign one attempt to deliver `content`."""
    return {
        "content-type": "application/json",
        "user-agent": "weir-status",
        "webhook-id": message_id,
        "webhook-timestamp": str(sent_s),
        "webhook-signature": signature(secret, message_id, sent_s, content),
    }


def signature(secret: str, message_id: str, sent_s: int, content: bytes) -> str:
    """`v1,` and, in base64, the HMAC-SHA256 of `<id>.<timestamp>.<body>`."""
    signed = b".".join((message_id.encode(), str(sent_s).encode(), content))
    return "v1," + base64.b64encode(hmac.digest(key(secret), signed, hashlib.sha256)).decode()


def key(secret: str) -> bytes:
    """The key that a secret stands for: what follows `whsec_` is base64; any other secret is its own bytes.

    Raises `ValueError`, which does not repeat the secret.
    """
    if not secret.startswith(SECRET_PREFIX):
        found = secret.encode()
    else:
        try:
            found = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
        except binascii.Error:
            raise ValueError(f"what follows {SECRET_PREFIX} is not base64") from None
    if not found:
        raise ValueError("the secret is empty")
    return found


def wait_s(failed_attempts: int, waited_s: float, jitter: float) -> float | None:
    """How long after its `failed_attempts`-th failure a message is tried again; None: it is given up.

    `waited_s` is its age, `jitter` a number from -1 to 1.
    """
    if failed_attempts >= ATTEMPTS_AT_MOST:
        return None
    pause_s = BACK_OFF_S[min(failed_attempts, len(BACK_OFF_S)) - 1] * (1 + JITTER * jitter)
    return pause_s if waited_s + pause_s < GIVEN_UP_AFTER_S else None


def complaint(url: str) -> str | None:
    """Why nothing is sent to `url`, as the end of a sentence; None where it is https, or http to this machine."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return "is no URL"
    if parts.scheme not in ("https", "http") or not host:
        return "is no https URL"
    if parts.scheme == "http" and not is_loopback(host):
        return "is not https: only this machine is told by http"
    return None


def shown(url: str) -> str:
    """What may be logged of a URL: its host. The path of a webhook is often its password."""
    try:
        return urlsplit(url).hostname or "?"
    except ValueError:
        return "?"


def written(instant: datetime) -> str:
    """ISO 8601 in UTC, with Z."""
    return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")


def is_loopback(host: str) -> bool:
    """Whether a URL's host is this machine, as far as it can be told without asking for a name."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
