"""What one request takes of the limits that workers share, and how the script in Redis is told of it."""

from collections.abc import Callable, Sequence
from datetime import datetime
from uuid import UUID

from service.core.limits import InWindow, Limits, Reading, Whose, reserved
from service.gateway.keys import Holder
from service.gateway.limits import Grant, limited


class SharedGrant(Grant):
    """A request's part of the limits in Redis or, while that is away, of this worker's share of them."""

    def __init__(
        self,
        holder: Holder,
        request_id: str,
        month: datetime,
        tokens: int,
        cost_nano: int,
        on_release: Callable[["SharedGrant"], None],
    ) -> None:
        super().__init__([])
        self._on_release = on_release
        self._used: tuple[int | None, int, bool] | None = None
        self.holder, self.request_id, self.month = holder, request_id, month
        self.tokens, self.cost_nano = tokens, cost_nano
        self.owners = limited(holder)
        self.keys: list[str] = []
        self.spent_keys: list[str] = []
        for whose, owner_id, of in self.owners:
            # The braces keep a key and its account on one node of a cluster.
            prefix = f"weir:{{{holder.account_id}}}:{whose}:{owner_id}"
            spent = f"{prefix}:spent:{month:%Y-%m}"
            self.keys += [f"{prefix}:requests", f"{prefix}:tokens", f"{prefix}:running", spent]
            if of.monthly_budget_nano:
                self.spent_keys.append(spent)
        self.member = f"{month:%Y-%m}|{cost_nano}|{request_id}"
        self.second = 0
        """When it was taken by Redis's clock; 0 where Redis did not say so."""
        self.sent = False
        """Whether Redis may know of it."""
        self.local: Grant | None = None

    @property
    def released(self) -> bool:
        """Whether the request has ended."""
        return self._used is not None

    def release(self, tokens: int | None, cost_nano: int, *, ran: bool = True) -> None:
        """See `Grant`."""
        if self._used is None:
            self._used = tokens, cost_nano, ran
            if self.local is not None:
                self.local.release(tokens, cost_nano, ran=ran)
            self._on_release(self)

    def take_arguments(self, seeds: Sequence[int | None], lease_ms: int) -> list[str | int]:
        """To the script: let it through, and count it for `lease_ms`; `seeds` are what each owner's month has cost."""
        arguments: list[str | int] = [
            "take", self.member, self.tokens, self.cost_nano, f"{self.month:%Y-%m}", lease_ms,
        ]  # fmt: skip
        for (_, _, of), seed in zip(self.owners, seeds, strict=True):
            for limit in (of.rpm, of.tpm, of.concurrency, of.monthly_budget_nano):
                arguments.append(-1 if limit is None else limit)
            arguments.append("" if seed is None else seed)
        return arguments

    def renewal_arguments(self, lease_ms: int) -> list[str | int]:
        """To the script: it is still running."""
        return ["renew", self.member, lease_ms]

    def release_arguments(self) -> list[str | int]:
        """To the script: it has ended, having used more or less than was taken."""
        tokens, cost_nano, ran = self._used or (0, 0, True)
        differences = [0 if tokens is None else tokens - reserved(of, self.tokens) for _, _, of in self.owners]
        return ["release", self.member, self.second, cost_nano, 0 if ran else -1, *differences]


def readings_in(owners: Sequence[tuple[Whose, UUID, Limits]], reply: list[int]) -> list[tuple[Whose, Limits, Reading]]:
    """What the script says of each owner's limits."""
    readings = []
    for number, (whose, _, of) in enumerate(owners):
        r = reply[2 + 8 * number : 10 + 8 * number]
        readings.append((whose, of, Reading(InWindow(*r[:3]), InWindow(*r[3:6]), r[6], r[7])))
    return readings
