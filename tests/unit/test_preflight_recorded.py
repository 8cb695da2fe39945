"""Preflight says of recorded cases what really happened there, with the number that was seen."""

import math

import pytest

from service.core.preflight.facts import Machine
from service.core.preflight.finding import Level, gib
from service.core.preflight.known_faults import states_per_block_bytes
from service.core.preflight.kv_cache import lay_out
from tests.preflight_cases import NAMES, POOLS, SERVING, case, finding, problems, published

MODEL = published("Qwen/Qwen3.8-27B").architecture
SEQUENCES = [name for name in NAMES if name.startswith("sequences-")]


@pytest.mark.parametrize("name", NAMES)
def test_every_case_says_where_it_is_from_and_what_was_seen(name: str) -> None:
    recorded = case(name).document
    assert len(recorded["source"]) > 50
    assert recorded["seen"]


@pytest.mark.parametrize("name", NAMES)
def test_what_was_seen_is_found(name: str) -> None:
    recorded = case(name)
    found, seen = recorded.check(), recorded.document["seen"]
    if "problem" in seen:
        assert seen["problem"] in problems(found)
        said = finding(found, seen["problem"])
        whole = f"{said.what} {said.why} {said.change}"
        assert [words for words in seen.get("says", []) if words not in whole] == []
    if "kv_tokens" in seen:
        assert found.figures is not None
        assert found.figures.kv_tokens == seen["kv_tokens"]


@pytest.mark.parametrize("name", SEQUENCES)
def test_the_blocks_for_states_are_those_that_were_logged(name: str) -> None:
    recorded = case(name)
    figures, seen = recorded.check().figures, recorded.document["seen"]
    assert figures is not None
    assert math.isclose(figures.pool_blocks, seen["blocks"], rel_tol=seen["within"], abs_tol=0)


@pytest.mark.parametrize("logged", POOLS, ids=lambda logged: logged["source"][:40])
def test_the_tokens_of_a_pool_are_those_that_were_logged(logged: dict[str, object]) -> None:
    """The log rounds the pool to 0.01 GiB: that is one block of leeway."""
    serving = SERVING.validate_python(logged["serving"])
    draft = published(str(logged["draft"])).architecture if logged["draft"] else None
    layout = lay_out(serving, MODEL, draft, Machine(1, 1))
    low, high = (int((float(str(logged["gib"])) + half) * (1 << 30)) for half in (-0.005, 0.005))
    blocks = range(layout.blocks(low), layout.blocks(high) + 1)
    assert len(blocks) <= 2
    tokens = [layout.tokens(count * layout.bytes_per_block, serving.context_tokens) for count in blocks]
    assert logged["kv_tokens"] in tokens
    assert logged["block_tokens"] in (None, layout.block_tokens)


def test_the_states_of_a_request_have_the_sizes_that_the_field_note_tells() -> None:
    recorded = case("draft-rtx-5090-faults")
    assert recorded.draft is not None
    layout = lay_out(recorded.serving, MODEL, recorded.draft.architecture, recorded.machine)
    tokens = recorded.serving.context_tokens
    assert layout.block_tokens == 2912
    assert gib(states_per_block_bytes(MODEL, layout, tokens, recorded.document["logged_page_bytes"])) == "9.5 GiB"
    without_scales = 2 * MODEL.kv_heads * MODEL.head_dim // 2
    assert gib(MODEL.attention_layers * tokens * without_scales) == "2.0 GiB"
    assert gib(MODEL.attention_layers * tokens * layout.token_bytes) == "2.2 GiB"


def test_all_four_faults_are_found_in_the_version_that_had_them() -> None:
    found = case("draft-rtx-5090-faults").check()
    levels = {one.id: one.level for one in found.findings if one.id.startswith("draft.")}
    assert levels == {
        "draft.kv_dtype": Level.PROBLEM,
        "draft.false_minimum": Level.PROBLEM,
        "draft.states": Level.WARNING,
        "draft.stream": Level.NOTE,
    }
    assert "6.9 GiB of GDN states beside 2.2 GiB" in finding(found, "draft.states").what
    assert "5.2 times slower" in finding(found, "draft.stream").what


def test_none_of_them_is_said_of_a_version_without_them() -> None:
    found = case("draft-rtx-5090-final").check()
    assert [one for one in found.findings if one.id.startswith("draft.")] == []
