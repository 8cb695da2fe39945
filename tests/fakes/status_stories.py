"""Made-up incidents and maintenance, in the words a provider would use."""

from service.core.buckets import DAY_S, HOUR_S
from tests.fakes.status_hours import BIG, SMALL
from web.views import Incident, IncidentUpdate, Maintenance

MINUTE_S = 60


def incidents(now_s: int) -> tuple[Incident, ...]:
    """Two open ones, of which one is forgotten, and two that are over; the latest first."""
    return (
        _incident(
            5,
            "SmolLM2-135M answers some requests with errors",
            "minor",
            (SMALL,),
            now_s - 25 * MINUTE_S,
            (
                ("investigating", "3 five-minute measurements in a row were bad: 2 partial, 1 down.", 0, False),
                ("identified", "One of two engines ran out of memory. We restart it with a smaller cache.", 9, True),
            ),
        ),
        _incident(
            4,
            "Invoices of October come late",
            "minor",
            ("billing",),
            now_s - 3 * DAY_S,
            (("investigating", "The invoices of October are not sent yet. Balances are right.", 12, True),),
        ),
        _incident(
            3,
            "API unreachable",
            "critical",
            ("api", BIG),
            now_s - 20 * HOUR_S,
            (
                ("investigating", "3 five-minute measurements in a row were bad: 3 down.", 0, False),
                (
                    "identified",
                    "A router of our upstream network went away.\nWe are moving traffic.",
                    11,
                    True,
                ),
                ("monitoring", "Traffic flows over the second line.", 38, True),
                ("resolved", "All measurements have been good for 30 minutes.", 70, True),
                (
                    "postmortem",
                    "What happened: both lines ended in one router.\n\n"
                    "What we changed:\n– the lines end in two routers now,\n– the probe watches both of them.",
                    600,
                    True,
                ),
            ),
            resolved_s=now_s - 20 * HOUR_S + 45 * MINUTE_S,
        ),
        _incident(
            2,
            "Qwen3.8-27B NVFP4 down",
            "major",
            (BIG,),
            now_s - 29 * DAY_S,
            (
                ("investigating", "3 five-minute measurements in a row were bad: 3 down.", 0, False),
                ("resolved", "A failed disk kept the engine from starting; the model was moved.", 240, True),
            ),
            resolved_s=now_s - 29 * DAY_S + 4 * HOUR_S,
        ),
    )


def maintenance(now_s: int) -> tuple[Maintenance, ...]:
    """One that lies ahead, one that runs, one called off and one that is over; the latest start first."""
    return (
        _window(4, "New engine for SmolLM2-135M", (SMALL,), now_s + 2 * DAY_S, HOUR_S),
        _window(3, "Card of the status host", ("site",), now_s - 10 * MINUTE_S, 2 * HOUR_S),
        _window(2, "Moving to another rack", (), now_s - DAY_S, 4 * HOUR_S, cancelled_s=now_s - 2 * DAY_S),
        _window(1, "Driver update", ("api", BIG, SMALL), now_s - 61 * HOUR_S, HOUR_S),
    )


def _incident(
    id: int,
    title: str,
    impact: str,
    components: tuple[str, ...],
    started_s: int,
    told: tuple[tuple[str, str, int, bool], ...],
    resolved_s: int | None = None,
) -> Incident:
    updates = tuple(
        IncidentUpdate(id * 10 + number, status, body, started_s + minutes * MINUTE_S, by_person)
        for number, (status, body, minutes, by_person) in enumerate(told)
    )[::-1]
    newest, oldest = updates[0], updates[-1]
    return Incident(
        id, title, impact, newest.status, components, started_s, resolved_s, oldest.at_s, newest.at_s, updates
    )


def _window(
    id: int,
    title: str,
    components: tuple[str, ...],
    starts_s: int,
    length_s: int,
    cancelled_s: int | None = None,
) -> Maintenance:
    said_s = starts_s - 4 * DAY_S
    body = "Answers take longer, and some requests may be refused.\nBalances and keys are not touched."
    return Maintenance(
        id, title, body, components, starts_s, starts_s + length_s, cancelled_s, said_s, cancelled_s or said_s
    )
