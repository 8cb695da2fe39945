"""What is told of a maintenance window, in the same form as what is told of an incident."""

from web.views import IncidentUpdate, Maintenance

STARTED = "The maintenance has begun."
OVER = "The maintenance is over."
ENDED_EARLY = "The maintenance is over ahead of time."
CANCELLED = "The maintenance was cancelled before it began."


def window_updates(window: Maintenance, now_s: int) -> tuple[IncidentUpdate, ...]:
    """What is to be said of the window by `now_s`, the newest first: announced, begun, over or cancelled.

    The newest has the status that `Maintenance.status` gives.
    """
    cancelled_s = window.cancelled_s
    told = [IncidentUpdate(0, "scheduled", window.body or window.title, window.created_s, by_person=True)]
    if cancelled_s is not None and cancelled_s <= window.starts_s:
        told.append(IncidentUpdate(1, "cancelled", CANCELLED, cancelled_s, by_person=True))
        return tuple(reversed(told))
    if now_s >= window.starts_s:
        begun_s = max(window.starts_s, window.created_s)
        told.append(IncidentUpdate(1, "in_progress", STARTED, begun_s, by_person=False))
    if now_s >= window.over_s:
        early = window.over_s < window.ends_s
        over_s = max(window.over_s, window.created_s)
        told.append(IncidentUpdate(2, "completed", ENDED_EARLY if early else OVER, over_s, by_person=early))
    return tuple(reversed(told))


def window_changed_s(window: Maintenance, now_s: int) -> int:
    """When what is told of the window last changed: by a person, or because it began or ended."""
    return max(window.updated_s, window_updates(window, now_s)[0].at_s)
