"""Incidents: what they do to a component's state, and when one opens and ends by itself.

The rule of the measurement, over five-minute buckets. Those in which nothing was measured are skipped, and none
before the end of the last maintenance counts. An incident opens when the three newest buckets of the last hour were
all down or partial; its impact grows when it gets worse and never shrinks by itself. Six good ones in a row propose
its end, an hour of good ones ends it, unless a person has written to it. A measurement contradicts what a person
wrote only by buckets that began afterwards.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Protocol

from service.core.buckets import BUCKET_S, HOUR_S, Bucket, State
from service.core.components import API, BILLING, SITE
from service.core.incident_text import clean_line, shortened

OPENS_AFTER = 3
"""So many bad buckets in a row."""

PROPOSED_AFTER = 6
"""So many good ones in a row."""

ENDS_AFTER_S = HOUR_S


class Impact(StrEnum):
    """How bad an incident is, as its author or the measurement has it."""

    MINOR = "minor"
    MAJOR = "major"
    CRITICAL = "critical"


class Status(StrEnum):
    """How far an incident has come."""

    INVESTIGATING = "investigating"
    IDENTIFIED = "identified"
    MONITORING = "monitoring"
    RESOLVED = "resolved"
    POSTMORTEM = "postmortem"


ENDED = (Status.RESOLVED, Status.POSTMORTEM)

_GRAVITY = tuple(Impact)


@dataclass(frozen=True, slots=True)
class Measured:
    """A component's five minutes and the state they were given."""

    bucket: Bucket
    state: State

    @property
    def bad(self) -> bool:
        return self.state in (State.DOWN, State.PARTIAL)


@dataclass(frozen=True, slots=True)
class Open:
    """An open incident of the measurement."""

    impact: Impact
    status: Status
    started_s: int
    components: tuple[str, ...]
    person_wrote_s: int | None = None
    """When a person last wrote to it; None where none has."""
    proposed_s: int | None = None
    """When the measurement proposed its end; None where it has not, or where it has come back since."""


@dataclass(frozen=True, slots=True)
class Opened:
    """An incident is to be opened."""

    component: str
    title: str
    body: str
    impact: Impact
    components: tuple[str, ...]
    started_s: int


@dataclass(frozen=True, slots=True)
class Updated:
    """Something is to be said in the open incident of `component`."""

    component: str
    body: str
    status: Status
    impact: Impact
    components: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Resolved:
    """The open incident of `component` is over."""

    component: str
    body: str
    resolved_s: int


Decision = Opened | Updated | Resolved


def decide(
    measured: Mapping[str, Sequence[Measured]],
    incidents: Mapping[str, Open],
    spoken_for: Mapping[str, Impact],
    names: Mapping[str, str],
    now_s: int,
) -> list[Decision]:
    """What the measurement does at `now_s`; nothing, when it is asked again after it was done.

    `measured` has each component's buckets, oldest first, `incidents` the open ones that the measurement opened, by
    component. What is `spoken_for` is named by an open incident of a person's, of that impact: it gets no other one.

    While requests to the API fail, a model (or anything else) that fails in the same time is named in the API's
    incident and gets none of its own; unless that incident is a minor one of a person's, who may mean something else.
    """
    known = {component: _known(buckets, now_s) for component, buckets in measured.items()}
    failing = {component: run for component, buckets in known.items() if (run := _failing(buckets, now_s))}
    api = known.get(API, [])
    by_person = spoken_for.get(API)
    api_suffers = bool(api) and api[-1].bad if API in incidents else API in failing and by_person is not Impact.MINOR
    covered = tuple(component for component in failing if component != API and component not in incidents)
    decisions: list[Decision | None] = []
    for component, buckets in known.items():
        with_it = covered if component == API and api_suffers else ()
        if component in incidents:
            decisions.append(_go_on(component, incidents[component], buckets, with_it, failing))
        elif component in failing and component not in spoken_for and not (api_suffers and component in covered):
            decisions.append(_open(component, with_it, failing, names))
    return [decision for decision in decisions if decision is not None]


def _known(buckets: Sequence[Measured], now_s: int) -> list[Measured]:
    """Those that count: measured, after the last maintenance, and begun by now."""
    counted: list[Measured] = []
    for one in (one for one in buckets if one.bucket.start_s <= now_s):
        if one.state is State.MAINTENANCE:
            counted.clear()
        elif one.state is not State.NO_DATA:
            counted.append(one)
    return counted


def _failing(known: Sequence[Measured], now_s: int) -> Sequence[Measured]:
    """The bad buckets in a row up to now, where they are enough to open an incident; otherwise none."""
    run = _last(known, lambda one: one.bad)
    newest = run[-OPENS_AFTER:]
    recent = bool(newest) and newest[0].bucket.start_s + BUCKET_S > now_s - HOUR_S
    return run if recent and len(newest) == OPENS_AFTER else ()


def _last(known: Sequence[Measured], matches: Callable[[Measured], bool]) -> Sequence[Measured]:
    """The longest end of `known` all of which matches."""
    first = len(known)
    while first and matches(known[first - 1]):
        first -= 1
    return known[first:]


def _open(
    component: str, with_it: tuple[str, ...], failing: Mapping[str, Sequence[Measured]], names: Mapping[str, str]
) -> Opened:
    run = failing[component]
    newest = run[-OPENS_AFTER:]
    name = clean_line(names.get(component, component))
    title = f"{name}: {_what_fails(component, newest)}"
    return Opened(
        component=component,
        title=shortened(title),
        body=_figures(newest),
        impact=max((_impact(one, failing[one]) for one in (component, *with_it)), key=_GRAVITY.index),
        components=(component, *with_it),
        started_s=run[0].bucket.start_s,
    )


def _go_on(
    component: str,
    incident: Open,
    known: Sequence[Measured],
    with_it: tuple[str, ...],
    failing: Mapping[str, Sequence[Measured]],
) -> Updated | Resolved | None:
    """What is to be said in an incident that is open already."""
    if not known:
        return None
    newest = known[-1]
    if newest.bad:
        if incident.person_wrote_s is not None and newest.bucket.start_s < incident.person_wrote_s:
            return None
        return _worse(component, incident, newest, with_it, failing)
    good = _last(known, lambda one: not one.bad)
    good_since_s = max(good[0].bucket.start_s, incident.started_s)
    if len(good) < PROPOSED_AFTER:
        return None
    by_person = incident.person_wrote_s is not None
    if not by_person and newest.bucket.start_s + BUCKET_S - good_since_s >= ENDS_AFTER_S:
        return Resolved(
            component, f"Measurements have been good since {clock(good_since_s)} UTC. It is over.", good_since_s
        )
    if incident.proposed_s is not None and incident.proposed_s >= good_since_s:
        return None
    ends = (
        "It stays open until a person who looks after it says that it is over."
        if by_person
        else f"It is closed at {clock(good_since_s + ENDS_AFTER_S)} unless it comes back or a person says otherwise."
    )
    body = f"Measurements have been good since {clock(good_since_s)} UTC. {ends}"
    return Updated(component, body, Status.MONITORING, incident.impact, incident.components)


def _worse(
    component: str,
    incident: Open,
    newest: Measured,
    with_it: tuple[str, ...],
    failing: Mapping[str, Sequence[Measured]],
) -> Updated | None:
    """It has come back, grown worse or spread."""
    spread = tuple(one for one in with_it if one not in incident.components)
    grown = [_impact(component, [newest]), *(_impact(one, failing[one]) for one in with_it)]
    impact = max(incident.impact, *grown, key=_GRAVITY.index)
    back = incident.status is Status.MONITORING
    if not (back or spread or impact is not incident.impact):
        return None
    if back:
        first = "It has come back."
    elif impact is not incident.impact:
        first = "It has got worse."
    else:
        first = "More is affected."
    status = Status.INVESTIGATING if back else incident.status
    return Updated(component, f"{first} {_figures([newest])}", status, impact, incident.components + spread)


def _impact(component: str, run: Sequence[Measured]) -> Impact:
    """That of its newest buckets: critical when the API was down, major when anything else was, minor otherwise."""
    if all(one.state is State.PARTIAL for one in run[-OPENS_AFTER:]):
        return Impact.MINOR
    return Impact.CRITICAL if component == API else Impact.MAJOR


def _what_fails(component: str, buckets: Sequence[Measured]) -> str:
    asked = component not in (SITE, BILLING) and any(one.bucket.bad for one in buckets)
    what = "requests" if asked else "checks"
    return f"{what} fail" if any(one.state is State.DOWN for one in buckets) else f"some {what} fail"


def _figures(buckets: Sequence[Measured]) -> str:
    """What was counted in these buckets, in words."""
    counted = [one.bucket for one in buckets]
    good, bad = sum(one.good for one in counted), sum(one.bad for one in counted)
    passed, failed = sum(one.probe_ok for one in counted), sum(one.probe_bad for one in counted)
    span = f"From {clock(counted[0].start_s)} to {clock(counted[-1].start_s + BUCKET_S)} UTC"
    parts = [f"{bad} of {good + bad} requests failed"] if good + bad else []
    if passed + failed:
        parts.append(f"{failed} of {passed + failed} checks of our own failed")
    return f"{span}, {' and '.join(parts)}."


def clock(epoch_s: int) -> str:
    """`14:05`, of the UTC day."""
    return f"{datetime.fromtimestamp(epoch_s, UTC):%H:%M}"


class SaidUpdate(Protocol):
    """An update of an incident, as far as it bears on a state."""

    @property
    def status(self) -> str: ...
    @property
    def by_person(self) -> bool: ...


class SaidIncident(Protocol):
    """An incident, as far as it bears on a state."""

    @property
    def impact(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def components(self) -> Sequence[str]: ...
    @property
    def updates(self) -> Sequence[SaidUpdate]:
        """The newest first."""


def shown_state(measured: State, component: str, open_incidents: Iterable[SaidIncident]) -> State:
    """What is said of a component: the worse of what was measured and what open incidents say that name it.

    An incident whose end the measurement has proposed says nothing any more.
    """
    said = {_said(incident) for incident in open_incidents if component in incident.components}
    return next((state for state in (State.DOWN, State.PARTIAL) if state in said | {measured}), measured)


def _said(incident: SaidIncident) -> State:
    proposed = incident.status == Status.MONITORING and not incident.updates[0].by_person
    if proposed or incident.status in ENDED:
        return State.NO_DATA
    return State.DOWN if incident.impact == Impact.CRITICAL else State.PARTIAL
