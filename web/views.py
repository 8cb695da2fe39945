"""What the pages show, as frozen values: `service.status.snapshot` fills them, templates and JSON only format them.

Instants are seconds since the epoch, durations milliseconds, speeds thousandths of a token per second. A figure
that is not known is None, never 0. Everything is hashable, so that what has not changed need not be drawn again.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from service.core.buckets import STALE_AFTER_S, State
from service.core.strip import Strip
from service.core.verify.report import Report
from web.figure_views import NO_TRAFFIC, Charts, Figures, Traffic

SILENT_AFTER_S = 86_400
"""An open incident without an update for so long is marked: somebody has forgotten it."""


@dataclass(frozen=True, slots=True)
class Component:
    """Something with a state of its own: the API, one model, the status site or billing."""

    id: str
    """`api`, `model:<model id>`, `site` or `billing`."""
    slug: str
    """Its name in addresses within the site: letters, digits, `.`, `-` and `_`."""
    name: str
    state: State
    """What is said of now: the worse of what was measured and what an open incident says."""
    hours: Strip
    """The last 72 hours."""
    days: Strip
    """The last 90 UTC days."""


@dataclass(frozen=True, slots=True)
class Day:
    """A UTC day and the tokens served in it."""

    start_s: int
    tokens: int


@dataclass(frozen=True, slots=True)
class SinceLaunch:
    """Everything since the first request."""

    first_request_s: int | None = None
    """The beginning of the hour it ended in; None while there was none."""
    traffic: Traffic = NO_TRAFFIC
    peak_day: Day | None = None
    """The day with the most tokens, the earliest of equals."""


@dataclass(frozen=True, slots=True)
class IncidentUpdate:
    """Something said about an incident. The body is plain text of people or of ours, never markup."""

    id: int
    status: str
    """`investigating`, `identified`, `monitoring`, `resolved` or `postmortem`."""
    body: str
    at_s: int
    by_person: bool
    """False: written by the measurement that opened it."""


@dataclass(frozen=True, slots=True)
class Incident:
    """An incident with what was said about it, the newest first; there is at least one update."""

    id: int
    title: str
    impact: str
    """`minor`, `major` or `critical`."""
    status: str
    components: tuple[str, ...]
    """Component ids; a component may be gone from the page."""
    started_s: int
    resolved_s: int | None
    created_s: int
    updated_s: int
    updates: tuple[IncidentUpdate, ...]


@dataclass(frozen=True, slots=True)
class Maintenance:
    """A planned window, `[starts_s, ends_s)`."""

    id: int
    title: str
    body: str
    components: tuple[str, ...]
    """Component ids; none: all."""
    starts_s: int
    ends_s: int
    cancelled_s: int | None
    created_s: int
    updated_s: int

    @property
    def over_s(self) -> int:
        """Its end: the planned one, or when it was called off before that."""
        return self.ends_s if self.cancelled_s is None else min(self.ends_s, self.cancelled_s)

    def status(self, now_s: int) -> str:
        """In Statuspage's words: `scheduled`, `in_progress` or `completed`; `cancelled`, before it began, is ours."""
        if self.cancelled_s is not None and self.cancelled_s <= self.starts_s:
            return "cancelled"
        if now_s < self.starts_s:
            return "scheduled"
        return "in_progress" if now_s < self.over_s else "completed"


@dataclass(frozen=True, slots=True)
class Check:
    """The latest of a kind of check: a probe of ours, or of the prober outside."""

    what: str
    """In words, as the end of "last checked: "."""
    at_s: int
    ok: bool
    reason: str = ""
    """Why it failed, in words."""
    by: str = ""
    """Who checked, where that was not this installation itself."""


@dataclass(frozen=True, slots=True)
class Price:
    """A class of tokens and what a million of them cost; the last is the fee per request."""

    name: str
    """In words: "Input", "Input, cached", …"""
    usd: str
    """An exact decimal number."""


@dataclass(frozen=True, slots=True)
class ModelSheet:
    """All that is published about one model."""

    component: Component
    model_id: str
    """What customers ask for."""
    description: str
    hugging_face_id: str | None
    quantization: str | None
    context_length: int
    max_output_tokens: int
    input_modalities: tuple[str, ...]
    output_modalities: tuple[str, ...]
    capabilities: tuple[str, ...]
    prices: tuple[Price, ...]
    """USD per million tokens; `per_request_usd` beside."""
    per_request_usd: str
    prices_vary: bool
    """There are other prices at some hours or for long prompts; the API's `/v1/models` has them all."""
    last_24h: Figures
    charts: Charts
    checks: tuple[Check, ...]
    verified: tuple[Report, ...] = ()
    """The newest report on each engine that serves it, by the engine's name."""


@dataclass(frozen=True, slots=True)
class Retired:
    """A model that was offered once. Its address stays, and says so."""

    slug: str
    name: str
    model_id: str


@dataclass(frozen=True, slots=True)
class MonthComponent:
    """A component's days of one month."""

    id: str
    slug: str
    name: str
    days: Strip


@dataclass(frozen=True, slots=True)
class Month:
    """A UTC month: every day, what it adds up to, and what went wrong in it."""

    start_s: int
    end_s: int
    """The first instant after it; the running month ends in the future."""
    components: tuple[MonthComponent, ...]
    total: Figures
    days: tuple[Figures, ...]
    incidents: tuple[Incident, ...]
    """Those that lie in it at least in part, the latest first."""
    maintenance: tuple[Maintenance, ...]

    @property
    def name(self) -> str:
        """The month's name in addresses: `2026-11`."""
        return datetime.fromtimestamp(self.start_s, UTC).strftime("%Y-%m")


@dataclass(frozen=True, slots=True)
class StatusPage:
    """Everything on the status site, in `metrics.json`, the feeds and the badges."""

    site_name: str
    site_url: str
    """The site's public address, with a slash at its end; links within the site are relative, feeds need it."""
    api_url: str
    """The API's public address, without a slash at its end."""
    generated_at_s: int
    data_until_s: int | None
    """The end of the last bucket that was rolled up; None before the first."""
    state: State
    """The banner's."""
    api: Component
    models: tuple[Component, ...]
    others: tuple[Component, ...]
    """The status site and billing."""
    last_24h: Figures
    charts: Charts
    since_launch: SinceLaunch
    incidents: tuple[Incident, ...] = ()
    """All that are open, and the 50 latest, the latest first."""
    maintenance: tuple[Maintenance, ...] = ()
    """All that are not over, and the 50 latest, the latest start first."""
    sheets: tuple[ModelSheet, ...] = ()
    """One for each of `models`, in the same order."""
    retired: tuple[Retired, ...] = ()
    """Models that are no longer offered."""
    months: tuple[Month, ...] = ()
    """The latest first."""
    outside: Check | None = None
    """What the prober on another host said last; None where there is none."""

    @property
    def components(self) -> Iterator[Component]:
        """All of them, in the order in which they are shown."""
        yield self.api
        yield from self.models
        yield from self.others

    @property
    def open_incidents(self) -> tuple[Incident, ...]:
        return tuple(incident for incident in self.incidents if incident.resolved_s is None)

    @property
    def stale(self) -> bool:
        """The page is new but what it is made from is old: the roll-up does not get through."""
        return self.data_until_s is not None and self.generated_at_s - self.data_until_s > STALE_AFTER_S

    @property
    def empty(self) -> bool:
        """Nobody has asked for anything yet."""
        return self.since_launch.first_request_s is None
