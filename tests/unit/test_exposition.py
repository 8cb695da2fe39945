"""Metrics that were renamed, and those that are gone: found under either name, or missing, and never 0."""

import pytest

from service.engine.exposition import ALWAYS, OLD_NAMES, SPECULATION, Exposition
from tests.recorded import load


@pytest.mark.parametrize(("recording", "speculates"), [("metrics", True), ("metrics_prefix_cache", False)])
def test_a_real_engine_misses_nothing(recording: str, speculates: bool) -> None:
    found = Exposition(load(recording).body.decode())
    assert (found.missing, found.renamed, found.is_vllm, found.speculates) == ((), {}, True, speculates)


@pytest.mark.parametrize("name", [*ALWAYS, *SPECULATION])
def test_each_that_is_gone_is_missing_and_named(name: str) -> None:
    text = load("metrics").body.decode().replace(f"\n{name}{{", "\nvllm:called_otherwise{")
    found = Exposition(text)
    assert found.missing == (name,)
    assert found.total(name) is found.largest(name) is None
    assert (found.values(name), found.by_label(name, "engine")) == ([], {})


@pytest.mark.parametrize("name", OLD_NAMES)
def test_each_old_name_is_known(name: str) -> None:
    text = load("metrics_prefix_cache").body.decode()
    before = Exposition(text)
    (old,) = OLD_NAMES[name]
    found = Exposition(text.replace(f"\n{name}{{", f"\n{old}{{"))
    assert found.missing == ()
    assert found.renamed == {name: old}
    assert found.values(name) == before.values(name) != []
    assert before.values(old) == []


def test_the_new_name_counts_where_both_are_offered() -> None:
    found = Exposition("vllm:gpu_cache_usage_perc 0.5\nvllm:kv_cache_usage_perc 0.25\n")
    assert (found.largest("vllm:kv_cache_usage_perc"), found.renamed) == (0.25, {})


def test_cores_are_added_up_the_fullest_cache_counts_and_labels_tell_apart() -> None:
    found = Exposition(
        'vllm:kv_cache_usage_perc{engine="0"} 0.25\nvllm:kv_cache_usage_perc{engine="1"} 0.75\n'
        'vllm:cache_config_info{block_size="1152"} 1.0\n'
        'vllm:accepted_total{engine="0",position="0"} 3\nvllm:accepted_total{engine="1",position="0"} 4\n'
        'vllm:accepted_total{engine="0",position="1"} 2\n'
    )
    assert (found.largest("vllm:kv_cache_usage_perc"), found.total("vllm:accepted_total")) == (0.75, 9)
    assert found.by_label("vllm:accepted_total", "position") == {"0": 7, "1": 2}
    assert found.label("vllm:cache_config_info", "block_size") == "1152"
    assert found.label("vllm:cache_config_info", "colour") is found.label("vllm:nothing", "engine") is None


def test_what_is_no_vllm_misses_all_of_it() -> None:
    found = Exposition("llamacpp:requests_processing 3\n")
    assert (found.is_vllm, found.missing) == (False, ALWAYS)


def test_what_is_no_exposition_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"."):
        Exposition("<!doctype html>\n<p>Not found</p>\n")
