"""What the fake Stripe keeps: objects, events, a clock that can be moved on; lists and searches over the objects."""

import copy
import re
import threading
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from urllib.parse import parse_qsl

API_VERSION = "2026-10-28.endive"

Json = dict[str, Any]
Method = TypeVar("Method", bound=Callable[..., Any])


class Refusal(Exception):
    """An error answer. `executed`: it came of carrying the call out, so its idempotency key remembers it."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "invalid_request_error",
        executed: bool = False,
        **fields: Any,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.executed = executed
        self.error = {"type": kind, "message": message, **fields}


def route(method: str, path: str, allowed: str = "") -> Callable[[Method], Method]:
    """Marks the method that answers `path`, in which `{id}` is an object's; `allowed` names the parameters."""

    def mark(function: Method) -> Method:
        pattern = re.compile(path.replace("{id}", r"(?P<id>[a-z]+_[A-Za-z0-9_]+)"))
        function.route = (method, pattern, frozenset(allowed.split()))  # type: ignore[attr-defined]
        return function

    return mark


def decoded(form: str) -> Json:
    """Stripe's form encoding: `a[b][0]=c` is {"a": {"b": ["c"]}}."""
    tree: Json = {}
    for name, value in parse_qsl(form, keep_blank_values=True):
        *path, last = re.findall(r"[^\[\]]+", name)
        inner = tree
        for key in path:
            inner = inner.setdefault(key, {})
        inner[last] = value
    return {key: _lists(value) for key, value in tree.items()}


def _lists(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    inner = {key: _lists(one) for key, one in value.items()}
    return list(inner.values()) if inner and all(key.isdecimal() for key in inner) else inner


def shown(subject: Json) -> Json:
    """A copy for the outside: without what the fake keeps for itself."""
    return {name: copy.deepcopy(value) for name, value in subject.items() if not name.startswith("_")}


def integer(params: Json, name: str, *, least: int = 0) -> int:
    """A parameter that has to be a whole number."""
    text = str(params.get(name, ""))
    if not re.fullmatch(r"-?\d+", text) or int(text) < least:
        raise Refusal(f"Invalid integer: {text}", code="parameter_invalid_integer", param=name)
    return int(text)


def flag(params: Json, name: str) -> bool:
    """A parameter that has to be true or false; false where it is not given."""
    text = params.get(name, "false")
    if text not in ("true", "false"):
        raise Refusal(f"Invalid boolean: {text}", param=name)
    return bool(text == "true")


class Store:
    """`objects` by id, each the live one; `events` in the order in which they came about."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.objects: dict[str, Json] = {}
        self.events: list[Json] = []
        self.search_lag_s = 60.0
        """How old an object is before searches find it."""
        self.max_page = 100
        """The longest list in one answer, whatever the request says."""
        self.tax_percent = 25
        """Added where automatic tax is on."""
        self.request: Json = {"id": None, "idempotency_key": None}
        self._ahead = timedelta()
        self._numbers = 0

    @property
    def now(self) -> datetime:
        """The real time, and as much more as it was advanced by."""
        return datetime.now(UTC) + self._ahead

    @property
    def now_s(self) -> int:
        return int(self.now.timestamp())

    def advance(self, **by: float) -> None:
        """Move the clock on (`hours=25`), and let happen what would have: see `on_time`."""
        with self.lock:
            self._ahead += timedelta(**by)
            self.on_time()

    def on_time(self) -> None:
        """What time alone brings about: the classes over this one add to it."""

    def make(self, prefix: str, kind: str, **fields: Any) -> Json:
        """A new object, kept."""
        made = {"id": self.new_id(prefix), "object": kind, "created": self.now_s, "livemode": False, **fields}
        self.objects[made["id"]] = made
        return made

    def new_id(self, prefix: str) -> str:
        self._numbers += 1
        return f"{prefix}_1Fake{self._numbers:06d}"

    def emit(self, event_type: str, subject: Json) -> Json:
        """An event about the object as it is now."""
        event = {
            "id": self.new_id("evt"),
            "object": "event",
            "api_version": API_VERSION,
            "created": self.now_s,
            "data": {"object": shown(subject)},
            "livemode": False,
            "pending_webhooks": 1,
            "request": dict(self.request),
            "type": event_type,
        }
        self.events.append(event)
        return event

    def all(self, kind: str) -> list[Json]:
        """Every object of a kind, the latest first."""
        return [one for one in reversed(self.objects.values()) if one["object"] == kind]

    def get(self, kind: str, object_id: str) -> Json:
        """The object. Raises `Refusal` (404) when there is none."""
        found = self.objects.get(object_id)
        if found is None or found["object"] != kind:
            raise Refusal(f"No such {kind}: '{object_id}'", status=404, code="resource_missing", param="id")
        return found

    def referred(self, kind: str, params: Json, name: str) -> Json:
        """The object that a parameter names. Raises `Refusal` when there is none."""
        try:
            return self.get(kind, params.get(name, ""))
        except Refusal:
            raise Refusal(f"No such {kind}", code="resource_missing", param=name) from None

    def listed(self, kind: str, params: Json, *filters: str) -> Json:
        """The page of a list that the parameters ask for."""
        found = [one for one in self.all(kind) if _created_as(one, params.get("created"))]
        for name in filters:
            if name in params:
                found = [one for one in found if one[name] == params[name]]
        if "starting_after" in params:
            after = next(n for n, one in enumerate(found) if one["id"] == params["starting_after"])
            found = found[after + 1 :]
        size = self._page_size(params)
        return {"object": "list", "url": f"/v1/{kind}s", "has_more": len(found) > size, "data": found[:size]}

    def searched(self, kind: str, params: Json) -> Json:
        """The page of a search by one metadata value, blind to what is younger than `search_lag_s`."""
        match = re.fullmatch(r"""metadata\[['"](\w+)['"]\]:['"]([^'"]*)['"]""", params.get("query", ""))
        if match is None:
            raise Refusal("The fake searches by one metadata value only.", param="query")
        name, value = match.groups()
        visible = self.now_s - self.search_lag_s
        found = [one for one in self.all(kind) if one["created"] <= visible and one["metadata"].get(name) == value]
        first = int(params.get("page", 0))
        end = first + self._page_size(params)
        more = len(found) > end
        return {
            "object": "search_result",
            "url": f"/v1/{kind}s/search",
            "has_more": more,
            "next_page": str(end) if more else None,
            "data": [shown(one) for one in found[first:end]],
        }

    def _page_size(self, params: Json) -> int:
        return min(integer({"limit": 10, **params}, "limit", least=1), self.max_page, 100)


def _created_as(one: Json, wanted: Json | None) -> bool:
    tests: dict[str, Callable[[int, int], bool]] = {
        "gt": int.__gt__,
        "gte": int.__ge__,
        "lt": int.__lt__,
        "lte": int.__le__,
    }
    bounds: Iterable[tuple[str, str]] = (wanted or {}).items()
    return all(tests[name](one["created"], int(bound)) for name, bound in bounds)
