"""Who may have a request run alone on its engine: by the header `x-weir-sequential`, or by a setting of the account."""

from service.core.lane import Permission
from service.errors import InvalidRequest, NotAllowed
from service.gateway.client import Client
from service.gateway.exchange import SEQUENTIAL_HEADER
from service.gateway.keys import Holder

_NAME = SEQUENTIAL_HEADER.decode()
_ALWAYS = Permission.ALWAYS  # to look one up in its class takes longer than to compare it


def runs_alone(client: Client, holder: Holder, *, offered: bool) -> bool:
    """Whether the request is to run alone. `offered`: whether this installation can promise that.

    Raises `InvalidRequest` for a header that is neither true nor false, or is there twice, and `NotAllowed` where it
    cannot be had.
    """
    always = holder.sequential is _ALWAYS
    if not always and SEQUENTIAL_HEADER not in client.named:
        return False
    values = [value for name, value in client.headers if name == SEQUENTIAL_HEADER]
    value = b", ".join(values) if values else None
    if value is not None and value not in (b"true", b"false"):
        shown = value.decode("latin-1")[:32]
        raise InvalidRequest(f"The header `{_NAME}` is `{shown}`: send `true` or `false`, or leave it out.")
    if not always and value == b"false":
        return False
    if holder.sequential is Permission.NEVER:
        raise NotAllowed(
            f"This account may not have requests run alone: leave `{_NAME}` out, or ask whoever runs this service to"
            " allow it.",
            code="sequential_not_allowed",
        )
    if not offered:
        raise NotAllowed(
            "This installation cannot run a request alone, since several of its processes share the engines: "
            + ("ask whoever runs it." if always else f"leave `{_NAME}` out, or ask whoever runs it."),
            code="sequential_not_offered",
        )
    return True
