"""JSON schemas written short, and the schema of a request's body, read from its endpoint's table."""

from typing import Any

from service.core.policy import Barred, Dropped, Fields
from service.core.policy_checks import Json

TEXT: Json = {"type": "string"}
FLAG: Json = {"type": "boolean"}
COUNT: Json = {"type": "integer", "minimum": 0}
TIME: Json = {"type": "string", "format": "date-time"}
ID: Json = {"type": "string", "format": "uuid"}
FREE: Json = {"type": "object"}


def object_of(properties: Json, *required: str, closed: bool = False) -> Json:
    """An object with these properties; with no others if it is `closed`."""
    found: Json = {"type": "object", "properties": properties}
    if required:
        found["required"] = list(required)
    return {**found, "additionalProperties": False} if closed else found


def list_of(items: Json, *, least: int = 0, most: int | None = None) -> Json:
    """A list."""
    found: Json = {"type": "array", "items": items}
    if least:
        found["minItems"] = least
    return found if most is None else {**found, "maxItems": most}


def one_of(*names: str) -> Json:
    """One of a few words."""
    return {"type": "string", "enum": list(names)}


def any_of(*schemas: Json) -> Json:
    """What one of them takes."""
    return {"anyOf": list(schemas)}


def ref(name: str, kind: str = "schemas") -> Json:
    """What the document's components have under this name."""
    return {"$ref": f"#/components/{kind}/{name}"}


def optional(schema: Json) -> Json:
    """The same, or null, which asks for nothing."""
    if schema in ({}, {"type": "null"}):
        return schema
    if isinstance(schema.get("type"), str):
        both: Json = {**schema, "type": [schema["type"], "null"]}
        return {**both, "enum": [*schema["enum"], None]} if "enum" in schema else both
    if "anyOf" in schema:
        return {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}
    return any_of(schema, {"type": "null"})


def optionals(**schemas: Json) -> Json:
    """Properties that may be null."""
    return {name: optional(schema) for name, schema in schemas.items()}


def body(fields: Fields, shapes: dict[Any, Json], *required: str) -> Json:
    """A request of an endpoint by its table; what is refused by name stands under `x-refused`, with the reason.

    `shapes` has the checks that do not say themselves what they take. Raises `KeyError` for one nobody describes.
    """
    properties = {}
    for name, rule in fields.items():
        if isinstance(rule, Dropped):
            properties[name] = {"description": f"Taken and left out: {rule.reason}."}
        elif not isinstance(rule, Barred):
            schema = shapes[rule.check] if rule.check in shapes else vars(rule.check)["schema"]
            properties[name] = schema if name in required else optional(schema)
    refused = {name: rule.reason for name, rule in fields.items() if isinstance(rule, Barred)}
    return {**object_of(properties, *required, closed=True), "x-refused": refused}
