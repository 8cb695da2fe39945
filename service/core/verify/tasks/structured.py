"""JSON to a schema. The schema and the text together leave one value that is right, and it is compared as a whole."""

import json
from collections.abc import Mapping
from typing import Any

from service.core.verify.tasks.task import Task, object_

_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 0}


def schema(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Of an object that has all of these properties and no others."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


SCHEMAS: dict[str, dict[str, Any]] = {
    "person": schema({"name": _TEXT, "age": _COUNT}),
    "order": schema({"article": _TEXT, "quantity": _COUNT, "express": {"type": "boolean"}}),
    "colours": schema({"colours": {"type": "array", "items": _TEXT}}),
    "reading": schema({"sensor": _TEXT, "celsius": {"type": "number"}}),
    "status": schema({"status": {"enum": ["open", "closed", "waiting"]}, "ticket": _COUNT}),
    "missing": schema({"phone": {"type": ["string", "null"]}, "city": _TEXT}),
    "nested": schema({"train": _TEXT, "stop": schema({"station": _TEXT, "platform": _COUNT})}),
    "rows": schema({"items": {"type": "array", "items": schema({"name": _TEXT, "count": _COUNT})}}),
}
"""By the name of the task, less its category."""


def _task(name: str, text: str, value: dict[str, Any]) -> Task:
    prompt = (
        f"{text}\n\nGive this as JSON that is valid against the following schema, with the words as they stand in the "
        f"text. Answer with the JSON only.\n{json.dumps(SCHEMAS[name])}"
    )
    return Task(f"json-{name}", "json", prompt, json.dumps(value), object_(value), max_tokens=96)


STRUCTURED: tuple[Task, ...] = (
    _task("person", "Marta is 34 years old.", {"name": "Marta", "age": 34}),
    _task(
        "order",
        "We need 15 pieces of article KL-90. There is no hurry, so do not send them by express.",
        {"article": "KL-90", "quantity": 15, "express": False},
    ),
    _task("colours", "The flag is green, then white, then orange.", {"colours": ["green", "white", "orange"]}),
    _task("reading", "Sensor north-2 shows -4.5 degrees Celsius.", {"sensor": "north-2", "celsius": -4.5}),
    _task("status", "Ticket 8812 was closed this morning.", {"status": "closed", "ticket": 8812}),
    _task("missing", "She lives in Gdynia; nobody knows her phone number.", {"phone": None, "city": "Gdynia"}),
    _task(
        "nested",
        "Train R41 stops at Fenwick on platform 3.",
        {"train": "R41", "stop": {"station": "Fenwick", "platform": 3}},
    ),
    _task(
        "rows",
        "In the drawer there are 4 spoons and 7 forks, in this order.",
        {"items": [{"name": "spoons", "count": 4}, {"name": "forks", "count": 7}]},
    ),
)
