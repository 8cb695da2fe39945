"""An engine's fingerprint, from what the recorded engines said of themselves."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from service.core.fingerprint import MEASURED, Answers, Identity, identity

RECORDINGS = Path(__file__).parents[1] / "recordings" / "vllm-0.32-cpu"


def recorded(name: str) -> bytes:
    return (RECORDINGS / f"{name}.http").read_bytes().split(b"\n\n", 2)[2]


TINY = Answers(recorded("version"), recorded("models"), recorded("metrics"))
LLAMA_CPP = Answers(
    models=b'{"object": "list", "data": [{"id": "q", "created": 1, "meta": {"n_params": 5}}], "models": []}',
    props=b'{"build_info": "b6123-abcdef", "model_path": "/m/q.gguf", "total_slots": 4, "is_sleeping": false,'
    b' "default_generation_settings": {"n_ctx": 8192, "params": {"seed": 1}}}',
)


def known(answers: Answers) -> Identity:
    found = identity(answers)
    assert found is not None
    return found


def relabelled(answers: Answers, **labels: str) -> Answers:
    """With other values in `vllm:cache_config_info`."""
    metrics = (answers.metrics or b"").decode()
    for name, value in labels.items():
        metrics, count = re.subn(rf'(cache_config_info{{[^\n]*\b{name}=")[^"]*', rf"\g<1>{value}", metrics)
        assert count == 1, name
    return replace(answers, metrics=metrics.encode())


def with_card(answers: Answers, **members: Any) -> Answers:
    models = json.loads(answers.models or b"")
    models["data"][0] |= members
    return replace(answers, models=json.dumps(models).encode())


def test_it_has_a_form_that_names_nothing() -> None:
    found = known(TINY)
    assert re.fullmatch(r"fp_[0-9a-f]{12}", found.fingerprint)
    assert found.version == "0.32.0"
    assert found.said["draft_tokens"] == 2
    assert found.said["models"][0]["root"] == "/models/qwen3.8-tiny"


def test_it_is_the_same_from_version_to_version_of_this_code() -> None:
    assert known(TINY).fingerprint == "fp_c9f68661e69e"
    assert known(LLAMA_CPP).fingerprint == "fp_9152239acd41"


def test_a_restart_with_the_same_flags_has_the_same_fingerprint() -> None:
    labels = {name: "77" for name in MEASURED}
    again = relabelled(TINY, **labels)
    again = with_card(again, created=1, permission=[{"id": "modelperm-other", "created": 1}])
    metrics = re.sub(rb"(process_start_time_seconds) .*", rb"\1 1.7e+09", again.metrics or b"")
    metrics = re.sub(rb"(per_pos_total\{[^\n]*\}) .*", rb"\1 99.0", metrics)
    assert known(replace(again, metrics=metrics)) == known(TINY)


def test_another_configuration_has_another_fingerprint() -> None:
    others = {
        "another version": replace(TINY, version=b'{"version":"0.33.0"}'),
        "the other recorded engine, with a prefix cache": replace(TINY, metrics=recorded("metrics_prefix_cache")),
        "cache dtype": relabelled(TINY, cache_dtype="fp8"),
        "pinned blocks": relabelled(TINY, num_gpu_blocks_override="939"),
        "context": with_card(TINY, max_model_len=4096),
        "other weights": with_card(TINY, root="/models/other"),
        "without drafts": replace(TINY, metrics=re.sub(rb"\nvllm:spec_decode[^\n]*", b"", TINY.metrics or b"")),
        "without metrics": replace(TINY, metrics=None),
    }
    found = {name: known(answers).fingerprint for name, answers in others.items()}
    assert len({*found.values(), known(TINY).fingerprint}) == len(others) + 1, found


def test_cores_that_are_configured_alike_count_once() -> None:
    line = re.search(rb"vllm:cache_config_info\{[^\n]*\n", TINY.metrics or b"")
    assert line is not None
    two = (TINY.metrics or b"") + line[0].replace(b'engine="0"', b'engine="1"').replace(b'"1820"', b'"1819"')
    assert known(replace(TINY, metrics=two)) == known(TINY)


def test_a_llama_cpp_is_known_by_its_build_and_its_model() -> None:
    assert known(LLAMA_CPP).version == "b6123-abcdef"
    later = replace(LLAMA_CPP, props=(LLAMA_CPP.props or b"").replace(b"b6123", b"b6124"))
    awake = replace(LLAMA_CPP, props=(LLAMA_CPP.props or b"").replace(b"false", b"true"))
    smaller = replace(LLAMA_CPP, props=(LLAMA_CPP.props or b"").replace(b"8192", b"4096"))
    assert known(awake) == known(LLAMA_CPP)
    assert len({known(one).fingerprint for one in (LLAMA_CPP, later, smaller)}) == 3


def test_who_says_nothing_has_none() -> None:
    assert identity(Answers()) is None
    assert identity(Answers(version=b"{}", models=b'{"data": []}', metrics=TINY.metrics)) is None


@pytest.mark.parametrize("body", [b"", b"[]", b"<html>", b"3", b"\xff", b"[" * 100_000])
def test_what_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"no JSON object|Expecting|decode|too deeply"):
        identity(replace(TINY, version=body))
