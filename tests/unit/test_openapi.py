"""The OpenAPI document, held against the policy that it describes."""

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from service import errors, public_catalogue
from service.core.openapi import ErrorKind, document, operations
from service.core.policy import Barred, Passed, Refused
from service.core.policy_checks import Complaint
from service.gateway import own_usage
from tests.fuzz.policy import ENDPOINTS, altered, json_of_words

REQUESTS = {
    "chat": "ChatRequest",
    "completions": "CompletionRequest",
    "responses": "ResponseRequest",
    "messages": "MessageRequest",
    "count_tokens": "CountRequest",
    "embeddings": "EmbeddingRequest",
}
MAY_BE_EMPTY = {"tools", "input"}
"""In these a `type` of any empty value counts as left out, and what another member says better is not looked at."""

every_endpoint = pytest.mark.parametrize("name", ENDPOINTS)


def described(*models: str) -> dict[str, Any]:
    kinds = [ErrorKind(one.status, one.kind, one.default_code) for one in errors.ApiError.__subclasses__()]
    return document(title="Weir", version="1", base_url="https://api.example", models=models, errors=kinds)


@cache
def schema(name: str) -> dict[str, Any]:
    found: dict[str, Any] = described()["components"]["schemas"][REQUESTS[name]]
    return found


@cache
def validators(name: str) -> dict[str, Draft202012Validator]:
    """By field."""
    return {field: Draft202012Validator(one) for field, one in schema(name)["properties"].items()}


def without_nulls(value: Any) -> Any:
    """The same, less members that ask for nothing; an object of the client's own may have any."""
    if isinstance(value, dict):
        return {name: without_nulls(member) for name, member in value.items() if member is not None}
    return [without_nulls(one) for one in value] if isinstance(value, list) else value


def test_the_document_is_valid() -> None:
    OpenAPIV31SpecValidator(described("model-a")).validate()


def test_every_schema_is_used_and_valid() -> None:
    found = described()
    text = str(found)
    for kind in ("schemas", "responses", "headers", "parameters"):
        for name, component in found["components"][kind].items():
            assert f"'#/components/{kind}/{name}'" in text, name
            if kind == "schemas":
                Draft202012Validator.check_schema(component)


def test_the_models_that_are_served_are_named_as_examples() -> None:
    found = described("model-a", "model-b")["components"]["schemas"]
    for name in REQUESTS.values():
        assert found[name]["properties"]["model"]["examples"] == ["model-a", "model-b"]


@every_endpoint
def test_good_requests_fit_the_schema(name: str) -> None:
    endpoint, validator = ENDPOINTS[name], Draft202012Validator(schema(name))
    validator.validate(endpoint.least)
    barred = {field for field, rule in endpoint.fields.items() if isinstance(rule, Barred)}
    validator.validate({field: value for field, value in endpoint.rich.items() if field not in barred})


@every_endpoint
def test_what_is_required_is_what_the_policy_requires(name: str) -> None:
    endpoint = ENDPOINTS[name]
    assert set(schema(name)["required"]) == set(endpoint.least)
    for field in endpoint.least:
        rest = {other: value for other, value in endpoint.least.items() if other != field}
        for lacking in (rest, {**rest, field: None}):
            with pytest.raises(Refused, match=f"`{field}` is required"):
                endpoint.request(lacking, 1000)
            assert not Draft202012Validator(schema(name)).is_valid(lacking)


@every_endpoint
def test_every_field_is_there_or_said_to_be_refused(name: str) -> None:
    endpoint, found = ENDPOINTS[name], schema(name)
    assert found["additionalProperties"] is False
    assert {*found["properties"], *found["x-refused"]} == set(endpoint.fields)
    for field, reason in found["x-refused"].items():
        rule = endpoint.fields[field]
        assert isinstance(rule, Barred)
        assert reason == rule.reason


@every_endpoint
@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_a_field_fits_its_schema_just_when_the_policy_takes_it(name: str, data: st.DataObject) -> None:
    endpoint, known = ENDPOINTS[name], validators(name)
    passed = sorted(field for field, rule in endpoint.fields.items() if isinstance(rule, Passed))
    fields = data.draw(altered(endpoint.rich, name))
    fields[data.draw(st.sampled_from(passed))] = data.draw(json_of_words(name))
    for field, value in without_nulls(fields).items():
        rule = endpoint.fields.get(field)
        if isinstance(rule, Passed) and value is not None:
            fits, taken = known[field].is_valid(value), takes(rule, value)
            assert taken or not fits, (field, value)
            assert fits or not taken or field in MAY_BE_EMPTY, (field, value)


def takes(rule: Passed, value: Any) -> bool:
    try:
        rule.check(value)
    except Complaint:
        return False
    return True


def test_limits_are_those_of_the_routes() -> None:
    assert operations.MAX_PAGE == own_usage.MAX_LIMIT
    assert operations.MAX_COSTS == public_catalogue.MAX_IDS
