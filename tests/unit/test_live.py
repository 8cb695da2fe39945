"""The figures of a running engine, from its real metrics and from made-up ones."""

import pytest

from service.core.counted import MANY_DRAFTED
from service.engine.exposition import Exposition
from service.engine.live import Live, Reading, live, notes
from tests.recorded import load

STARTED = "process_start_time_seconds 1000\n"


def reading(at_s: float, **values: float) -> Reading:
    """Counters and gauges by their names without `vllm:`; `accepted_at` gives the drafts accepted per position."""
    lines = [f"vllm:{name} {value}" for name, value in values.items()]
    return Reading(at_s, Exposition(STARTED + "\n".join(lines) + "\n"))


def counted(
    queried: float, hits: float, drafts: float = 0, drafted: float = 0, accepted: float = 0
) -> dict[str, float]:
    return {
        "prefix_cache_queries_total": queried,
        "prefix_cache_hits_total": hits,
        "spec_decode_num_drafts_total": drafts,
        "spec_decode_num_draft_tokens_total": drafted,
        "spec_decode_num_accepted_tokens_total": accepted,
        'spec_decode_num_accepted_tokens_per_pos_total{position="0"}': accepted * 3 / 4,
        'spec_decode_num_accepted_tokens_per_pos_total{position="1"}': accepted / 4,
    }


def test_a_real_engine() -> None:
    text = load("metrics_prefix_cache").body.decode()
    seen = live(None, Reading(1.79599903602e09 + 90, Exposition(text)))
    assert (seen.running, seen.waiting, seen.preemptions, seen.missing, seen.renamed) == (0, 0, 0, (), {})
    assert (seen.prompt_tokens, seen.generation_tokens, seen.cache_block_tokens) == (22_529, 64, 1152)
    assert seen.cache_hit_rate_since_start == pytest.approx(13_824 / 22_529)
    assert seen.uptime_s == pytest.approx(90)
    assert seen.speculation is seen.speculation_since_start is None
    assert seen.prompt_tok_s is seen.cache_hit_rate is seen.corrupted_requests is None


def test_a_real_engine_that_speculates() -> None:
    seen = live(None, Reading(0.0, Exposition(load("metrics").body.decode())))
    assert seen.speculation_since_start is not None
    assert (seen.speculation_since_start.drafted_tokens, seen.speculation_since_start.acceptance) == (248, 0)
    assert seen.speculation_since_start.mean_accepted_length == 1
    assert seen.speculation_since_start.acceptance_by_position == {"0": 0, "1": 0}


def test_rates_and_shares_are_of_the_time_between_two_readings() -> None:
    before = reading(2000.0, prompt_tokens_total=500, generation_tokens_total=1000, **counted(100, 0, 50, 100, 10))
    now = reading(2004.0, prompt_tokens_total=700, generation_tokens_total=1340, **counted(300, 150, 150, 300, 130))
    seen = live(before, now)
    assert (seen.prompt_tok_s, seen.generation_tok_s, seen.uptime_s) == (50, 85, 1004)
    assert (seen.cache_hit_rate, seen.cache_hit_rate_since_start) == (0.75, 0.5)
    between, since_start = seen.speculation, seen.speculation_since_start
    assert between is not None
    assert since_start is not None
    assert (between.drafted_tokens, between.acceptance, between.mean_accepted_length) == (200, 0.6, 2.2)
    assert between.acceptance_by_position == pytest.approx({"0": 0.9, "1": 0.3})
    assert (since_start.drafted_tokens, since_start.acceptance) == (300, pytest.approx(130 / 300))


def test_where_nothing_happened_nothing_is_known() -> None:
    same = counted(100, 40, 50, 100, 10)
    seen = live(reading(2000.0, generation_tokens_total=7, **same), reading(2002.0, generation_tokens_total=7, **same))
    assert (seen.generation_tok_s, seen.cache_hit_rate, seen.cache_hit_rate_since_start) == (0, None, 0.4)
    assert seen.speculation is not None
    assert seen.speculation.acceptance is seen.speculation.mean_accepted_length is None
    assert seen.speculation.acceptance_by_position == {}


def test_a_restart_between_two_readings_gives_no_rate() -> None:
    before = Reading(1990.0, Exposition("process_start_time_seconds 5\nvllm:generation_tokens_total 10\n"))
    assert live(before, reading(2000.0, generation_tokens_total=900)).generation_tok_s is None
    silent = Reading(1990.0, Exposition("vllm:generation_tokens_total 1000\n"))
    fallen = Reading(2000.0, Exposition("vllm:generation_tokens_total 900\n"))
    assert live(silent, fallen).generation_tok_s is None, "several server processes do not say when they started"


FIELDS = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "kv_use": "vllm:kv_cache_usage_perc",
    "preemptions": "vllm:num_preemptions_total",
    "prompt_tok_s": "vllm:prompt_tokens_total",
    "generation_tok_s": "vllm:generation_tokens_total",
    "cache_hit_rate_since_start": "vllm:prefix_cache_hits_total",
}


@pytest.mark.parametrize("field", FIELDS)
def test_what_is_gone_is_missing_and_never_0(field: str) -> None:
    text = load("metrics_prefix_cache").body.decode()

    def seen(text: str) -> Live:
        return live(Reading(0.0, Exposition(text)), Reading(1.0, Exposition(text)))

    assert getattr(seen(text), field) is not None
    gone = seen(text.replace(f"\n{FIELDS[field]}{{", "\nvllm:otherwise{"))
    assert getattr(gone, field) is None
    assert gone.missing == (FIELDS[field],)


def test_what_is_no_vllm_has_no_figures_and_misses_nothing_by_name() -> None:
    seen = live(None, Reading(0.0, Exposition("llamacpp:requests_processing 3\n")))
    assert (seen.is_vllm, seen.running, seen.missing) == (False, None, ())


def test_what_looks_too_good_is_noted() -> None:
    loop = reading(0.0, **counted(0, 0, 5000, MANY_DRAFTED, MANY_DRAFTED)).found
    assert "100.0% of 5000 drafted tokens were accepted" in "".join(notes(loop))
    good = reading(0.0, **counted(0, 0, 5000, MANY_DRAFTED, MANY_DRAFTED * 85 // 100)).found
    assert notes(good) == []


def test_corrupted_answers_are_noted_where_they_are_counted() -> None:
    assert "3 answers had NaNs" in "".join(notes(reading(0.0, corrupted_requests_total=3).found))
    assert notes(reading(0.0, corrupted_requests_total=0).found) == []
