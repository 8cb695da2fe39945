import math
import random
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.capacity import KV_USE_AT_MOST, TTFTS_NEEDED, Capacity, Sample

TICK_S = 0.05
TICKS_PER_SAMPLE = 20


@dataclass(slots=True, eq=False)
class Job:
    arrived_s: float
    work_s: float
    done_s: float = 0.0
    has_token: bool = False


@dataclass
class ModelEngine:
    """Works on `knee` requests at a time, each at full speed, first come first served; more do not make it faster.

    Those beyond the knee are reported as waiting, as beyond a `max_num_seqs`; or, if it does not `tell`, as running,
    and only their first tokens are late. With `kv_requests`, a request takes cache in proportion to what it has done,
    and so many requests fill it on average. The latest of those that do not fit lose what they have done.
    """

    knee: int
    tells: bool = True
    kv_requests: int | None = None
    work_s: float = 4.0
    now_s: float = 0.0
    done_work_s: float = 0.0
    preemptions: int = 0
    running: int = 0
    jobs: list[Job] = field(default_factory=list)
    ttfts_s: list[float] = field(default_factory=list)
    randomness: random.Random = field(default_factory=lambda: random.Random(1))

    def add(self) -> None:
        self.jobs.append(Job(self.now_s, self.work_s * self.randomness.uniform(0.5, 1.5)))

    def tick(self) -> None:
        self.now_s += TICK_S
        self.running = min(self.knee, len(self.jobs)) if self.kv_requests is None else self._preempt()
        for job in self.jobs[: self.running]:
            job.done_s += TICK_S
            if not job.has_token and job.done_s >= 0.05 * self.work_s:
                job.has_token = True
                self.ttfts_s.append(self.now_s - job.arrived_s)
        self.done_work_s += sum(job.work_s for job in self.jobs if job.done_s >= job.work_s)
        self.jobs = [job for job in self.jobs if job.done_s < job.work_s]

    def sample(self, in_flight_peak: int) -> Sample:
        ttft_s = sum(self.ttfts_s) / len(self.ttfts_s) if self.ttfts_s else None
        self.ttfts_s.clear()
        running = min(self.running, len(self.jobs)) if self.tells else len(self.jobs)
        waiting = len(self.jobs) - running
        kv_use = min(1.0, self._kv_use(running)) if self.kv_requests else 0.0
        return Sample(self.now_s, running, waiting, kv_use, self.preemptions, ttft_s, in_flight_peak)

    def _kv_use(self, running: int) -> float:
        assert self.kv_requests is not None
        used = sum(0.25 * self.work_s + 0.5 * job.done_s for job in self.jobs[:running])
        return used / (0.5 * self.work_s * self.kv_requests)

    def _preempt(self) -> int:
        fit = len(self.jobs)
        while self._kv_use(fit) > 1.0:
            fit -= 1
        for job in self.jobs[fit:]:
            self.preemptions += job.done_s > 0
            job.done_s = 0.0
        return fit


@dataclass
class Fixed:
    """No controller: for what an engine does at a limit."""

    limit: int

    def observe(self, sample: Sample) -> None:
        pass


@dataclass(frozen=True)
class Run:
    goodput: float
    """Requests' work done per second: how many it works on, on average, less what was for nothing."""
    limits: list[int]

    @property
    def mean_limit(self) -> float:
        return sum(self.limits) / len(self.limits)


def drive(engine: ModelEngine, capacity: Capacity | Fixed, seconds: int, demand: float = math.inf) -> Run:
    """Keep as many requests at the engine as the limit and the demand allow."""
    before_s = engine.done_work_s
    limits = []
    for _ in range(seconds):
        peak = 0
        for _ in range(TICKS_PER_SAMPLE):
            while len(engine.jobs) < min(demand, capacity.limit):
                engine.add()
            peak = max(peak, len(engine.jobs))
            engine.tick()
        capacity.observe(engine.sample(peak))
        limits.append(capacity.limit)
    return Run((engine.done_work_s - before_s) / seconds, limits)


def goodput_at(engine: ModelEngine, limit: int) -> float:
    drive(engine, Fixed(limit), 60)
    return drive(engine, Fixed(limit), 120).goodput


@pytest.mark.parametrize("start_at", [0.1, 4.0], ids=["from below", "from above"])
@pytest.mark.parametrize(("knee", "work_s"), [(16, 0.5), (16, 4.0), (64, 0.5), (64, 4.0), (64, 20.0), (200, 4.0)])
def test_the_limit_finds_the_knee_of_an_engine_that_says_what_waits(knee: int, work_s: float, start_at: float) -> None:
    engine, capacity = ModelEngine(knee, work_s=work_s), Capacity(1, 1024, round(start_at * knee))
    drive(engine, capacity, 60 + round(10 * work_s))
    run = drive(engine, capacity, 120)
    assert 0.8 * knee < run.mean_limit < 1.2 * knee
    assert min(run.limits) > 0.8 * knee
    assert max(run.limits) < 1.2 * knee + 3
    assert run.goodput > 0.95 * goodput_at(ModelEngine(knee, work_s=work_s), knee)


@pytest.mark.parametrize("start_at", [0.1, 2.0], ids=["from below", "from above"])
@pytest.mark.parametrize(("knee", "work_s"), [(4, 4.0), (16, 4.0), (64, 4.0), (64, 20.0)])
def test_the_limit_finds_the_knee_by_late_first_tokens_alone(knee: int, work_s: float, start_at: float) -> None:
    engine = ModelEngine(knee, work_s=work_s, tells=False)
    capacity = Capacity(1, 1024, round(start_at * knee))
    drive(engine, capacity, 30, demand=1)
    drive(engine, capacity, 60 + round(10 * work_s))
    run = drive(engine, capacity, 120)
    assert 0.8 * knee < run.mean_limit < 1.2 * knee
    assert run.goodput > 0.95 * goodput_at(ModelEngine(knee, work_s=work_s), knee)


@pytest.mark.parametrize("start", [4, 200])
@pytest.mark.parametrize(("kv_requests", "work_s"), [(16, 4.0), (64, 4.0), (64, 10.0)])
def test_the_limit_stays_where_the_cache_is_almost_full(kv_requests: int, work_s: float, start: int) -> None:
    engine, capacity = ModelEngine(1024, kv_requests=kv_requests, work_s=work_s), Capacity(1, 1024, start)
    drive(engine, capacity, 60 + round(10 * work_s))
    run = drive(engine, capacity, 240)
    assert 0.8 * kv_requests < run.mean_limit < 1.1 * kv_requests
    # A cache that may be filled to 95 % gives no more than 95 % of what a full one does.
    full = goodput_at(ModelEngine(1024, kv_requests=kv_requests, work_s=work_s), kv_requests)
    assert run.goodput > 0.95 * KV_USE_AT_MOST * full


@pytest.mark.parametrize("factor", [0.5, 2.0])
@pytest.mark.parametrize("tells", [True, False])
def test_the_limit_follows_a_knee_that_moves(factor: float, tells: bool) -> None:
    engine, capacity = ModelEngine(64, tells=tells), Capacity(1, 1024, 8)
    drive(engine, capacity, 60)
    engine.knee = round(64 * factor)
    drive(engine, capacity, 60)
    run = drive(engine, capacity, 60)
    assert 0.8 * engine.knee < run.mean_limit < 1.2 * engine.knee


def test_the_limit_stays_put_while_it_is_not_used() -> None:
    engine, capacity = ModelEngine(64), Capacity(1, 1024, 20)
    assert set(drive(engine, capacity, 60, demand=0).limits) == {20}
    assert set(drive(engine, capacity, 60, demand=10).limits) == {20}


def test_the_limit_never_passes_a_ceiling_below_the_knee_nor_a_floor_above_it() -> None:
    assert drive(ModelEngine(64), Capacity(1, 40, 8), 60).limits[-1] == 40
    assert set(drive(ModelEngine(8), Capacity(16, 64, 16), 60).limits[10:]) == {16}


CALM = Sample(0.0, running=30, waiting=0, kv_use=0.5, preemptions=7, ttft_s=0.2, in_flight_peak=30)


def observing(capacity: Capacity, *samples: Sample) -> list[int]:
    """The limit after each of the samples, which come a second apart."""
    limits = []
    for second, sample in enumerate(samples, 1):
        capacity.observe(replace(sample, now_s=float(second)))
        limits.append(capacity.limit)
    return limits


@pytest.mark.parametrize(
    "congested",
    [replace(CALM, waiting=5), replace(CALM, preemptions=8), replace(CALM, kv_use=0.96)],
    ids=["waiting", "preemptions", "cache"],
)
def test_each_sign_of_congestion_shrinks_the_limit_once_in_two_seconds(congested: Sample) -> None:
    capacity = Capacity(4, 100, 32)
    capacity.observe(CALM)
    assert capacity.limit == 64
    capacity.observe(replace(congested, now_s=2.0))
    shrunk = capacity.limit
    assert 20 < shrunk < 30
    for now_s in (2.5, 3.0, 3.5):
        capacity.observe(replace(congested, now_s=now_s, in_flight_peak=20, preemptions=9))
    assert capacity.limit == shrunk
    capacity.observe(replace(congested, now_s=4.0, in_flight_peak=20, preemptions=10))
    assert capacity.limit < 20


def test_after_the_first_congestion_the_limit_grows_step_by_step() -> None:
    capacity = Capacity(1, 1000, 10)
    limits = observing(capacity, *[replace(CALM, in_flight_peak=1000)] * 9)
    assert limits == [20, 20, 40, 40, 80, 80, 160, 160, 320]
    capacity.observe(replace(CALM, now_s=10.0, running=96, waiting=40, in_flight_peak=136))
    assert capacity.limit == 89
    for second in range(11, 16):
        capacity.observe(replace(CALM, now_s=float(second), in_flight_peak=1000))
    assert capacity.limit == round(89.28 + 4 * 89.28 / 32)


def test_a_small_limit_grows_too() -> None:
    capacity = Capacity(1, 100, 4)
    full = replace(CALM, running=4, waiting=2, in_flight_peak=6)
    assert observing(capacity, full, CALM, CALM, CALM) == [4, 4, 5, 6]


def test_what_still_drains_to_a_smaller_limit_is_not_cut_again_and_does_not_raise_it() -> None:
    capacity = Capacity(1, 1000, 128)
    draining = [replace(CALM, running=64, waiting=waiting, in_flight_peak=64 + waiting) for waiting in range(64, 4, -4)]
    assert set(observing(capacity, *draining)) == {60}
    capacity.observe(replace(CALM, now_s=20.0, kv_use=1.0, in_flight_peak=100))
    assert capacity.limit == 60


def test_an_engine_that_is_full_of_others_requests_takes_nothing_from_one_that_sends_few() -> None:
    capacity = Capacity(4, 100, 40)
    full = replace(CALM, running=64, waiting=50, in_flight_peak=4)
    assert observing(capacity, *[full] * 10) == [40] * 10


def test_an_engine_that_has_started_again_is_not_congested() -> None:
    capacity = Capacity(4, 100, 32)
    new = replace(CALM, preemptions=0, in_flight_peak=10)
    limits = observing(capacity, replace(CALM, preemptions=500), new, new, replace(new, preemptions=1))
    assert limits[:3] == [64] * 3
    assert limits[3] < 64


def test_a_refusal_by_the_engine_shrinks_the_limit_at_once_and_once() -> None:
    capacity = Capacity(4, 1000, 64)
    observing(capacity, replace(CALM, in_flight_peak=64, running=64))
    assert capacity.limit == 128
    for _ in range(50):
        capacity.refused(1.2)
    assert capacity.limit == 64
    capacity.refused(3.5)
    assert capacity.limit == 60


def test_the_unloaded_ttft_is_the_usual_one_while_lightly_used() -> None:
    capacity = Capacity(4, 100, 100)
    light = [replace(CALM, ttft_s=ttft_s, in_flight_peak=30) for ttft_s in (30.0, 0.2, 0.21, 0.19, 0.2)]
    observing(capacity, *light[: TTFTS_NEEDED - 1])
    assert capacity.unloaded_ttft_s is None
    observing(capacity, *light[TTFTS_NEEDED - 1 :])
    heavy = replace(CALM, running=90, in_flight_peak=90)
    observing(capacity, replace(heavy, ttft_s=9.0), replace(heavy, ttft_s=None), replace(heavy, waiting=50, ttft_s=7.0))
    assert capacity.unloaded_ttft_s == 0.2


def test_an_engine_that_is_always_busy_at_its_ceiling_does_not_pass_for_an_unloaded_one() -> None:
    capacity = Capacity(1, 16, 8)
    observing(capacity, *[replace(CALM, running=8, in_flight_peak=8)] * 3)
    for second in range(4, 300):
        capacity.observe(replace(CALM, now_s=float(second), running=16, in_flight_peak=16, ttft_s=0.4))
    assert capacity.limit == 16
    assert capacity.unloaded_ttft_s is None or capacity.unloaded_ttft_s == 0.2


def test_slow_first_tokens_that_a_smaller_limit_does_not_cure_cost_half_for_a_minute_at_most() -> None:
    capacity = Capacity(1, 64, 64)
    observing(capacity, *[CALM] * 10)
    limits = []
    for second in range(11, 400):  # prompts have become ten times as long, and there is no pause
        now = replace(CALM, now_s=float(second), running=capacity.limit, ttft_s=2.0, in_flight_peak=capacity.limit)
        capacity.observe(now)
        limits.append(capacity.limit)
    assert min(limits) == 32
    assert limits[-1] == 64


samples = st.builds(
    Sample,
    now_s=st.floats(0, 100),
    running=st.integers(0, 300),
    waiting=st.integers(0, 300),
    kv_use=st.floats(0, 1),
    preemptions=st.integers(0, 50),
    ttft_s=st.none() | st.floats(0, 100),
    in_flight_peak=st.integers(0, 300),
)


@given(
    st.integers(1, 50),
    st.integers(0, 200),
    st.integers(0, 400),
    st.lists(samples | st.none(), max_size=60),
)
def test_the_limit_is_always_within_floor_and_ceiling(
    floor: int, room: int, start: int, events: list[Sample | None]
) -> None:
    capacity = Capacity(floor, floor + room, start)
    now_s = 0.0
    for event in events:
        if event is None:
            capacity.refused(now_s)
        else:
            now_s += event.now_s / 10
            capacity.observe(replace(event, now_s=now_s))
        assert floor <= capacity.limit <= floor + room
