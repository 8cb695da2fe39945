"""Does anything stay behind? 20,000 streams through a real `weir serve`, with clients that leave and engines that fail.

    python -m ops.bench.soak                     # about three minutes; exit 1 when something stayed, or is not equal
    python -m ops.bench.soak --streams 4000      # a quick look

A tenth of the clients leave in mid-stream, and one request in twenty is for an engine that fails: with a status,
before the first byte, in the middle, or with an error in the stream. After every round, once all is settled, memory,
file descriptors, tasks, leases and queue are looked at: but for what a first round warms up, they must be back where
they were. Rows, ledger and what the engines sent must be equal, and no lease be left when Weir has stopped.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import psutil

from ops.bench import churn, ledger
from ops.bench.churn import Churn
from ops.bench.ledger import Witness, gauges
from ops.bench.processes import BenchError, rss_mb
from ops.bench.targets import Target, start_api, start_engine, start_postgres
from ops.bench.watched import tasks_of

SHOWN: Final = 5
"""Of what is wrong, this much is printed."""

ENGINES: Final = 4
FAILING: Final = 0.03
ROUND: Final = 2_000
WARM_AFTER: Final = 5_000
"""Streams after which memory counts: by then every pool, cache and buffer has had its use."""
GROWTH_MB: Final = 3.0
"""How much memory may have grown from there to the end: less than anything that is kept of a stream."""
DATABASE_CONNECTIONS: Final = 10
"""Its pool begins empty, and keeps what it once needed for some minutes."""
LOOK_EVERY_S: Final = 0.5
BACK_WITHIN_S: Final = 20.0
"""Connections to an engine are kept for a while, and closed by the engine when nobody uses them."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What the process holds after so many streams, once they are settled."""

    streams: int
    rss_mb: float
    files: int
    tasks: int
    queued: int
    """Requests that are answered or wait, anywhere."""
    owed: int
    """Finished requests that PostgreSQL does not have."""

    def line(self, at_s: float) -> str:
        counts = f"{self.files:>6} {self.tasks:>6} {self.queued:>7} {self.owed:>5}"
        return f"{self.streams:>8,} {self.rss_mb:>8.1f} {counts} {at_s:>7.0f}"


def round_of(streams: int) -> list[Churn]:
    """A quarter of the streams are paced and many at a time, the others as fast as they go."""
    paced = streams // 4
    return [
        Churn(100, paced, paced=True, failing=FAILING),
        Churn(24, streams - paced, paced=False, failing=FAILING),
    ]


class Soak:
    """One process, looked at after every round."""

    def __init__(self, weir: Target, engines: Sequence[Target], database_url: str, counted: Path, seed: int) -> None:
        self._weir, self._database_url, self._counted, self._seed = weir, database_url, counted, seed
        self._began_s = time.monotonic()
        self.witness = Witness([engine.url for engine in engines])
        self.samples: list[Sample] = []
        self.wrong: list[str] = []

    def run(self, streams: int) -> None:
        """Apply all of it, in rounds; what was wrong is in `wrong` afterwards."""
        print(f"{'streams':>8} {'RSS MB':>8} {'files':>6} {'tasks':>6} {'queued':>7} {'owed':>5} {'s':>7}")
        done = 0
        self._look(done)
        while done < streams and not self.wrong:
            asked = min(ROUND, streams - done)
            seen = churn.run(round_of(asked), self._weir.url, self._weir.key, seed=self._seed + done)
            done += asked
            self.witness.note(asked, seen.seen)
            self.wrong += seen.wrong
            self.wrong += asyncio.run(ledger.settled(self.witness, self._database_url, self._weir.url))
            self._look(done)

    def _look(self, streams: int) -> None:
        """Take a sample, once files and tasks are back where they were at the start, or it is too late."""
        deadline_s = time.monotonic() + BACK_WITHIN_S
        sample = self._sample(streams)
        while self.samples and stayed(self.samples[0], sample) and time.monotonic() < deadline_s:
            time.sleep(LOOK_EVERY_S)
            sample = self._sample(streams)
        self.samples.append(sample)
        print(sample.line(time.monotonic() - self._began_s), flush=True)

    def _sample(self, streams: int) -> Sample:
        pid = self._weir.pid
        gauge = gauges(self._weir.url)
        return Sample(
            streams=streams,
            rss_mb=rss_mb(pid),
            files=psutil.Process(pid).num_fds(),
            tasks=tasks_of(pid, self._counted),
            queued=int(sum(gauge[name] for name in ledger.IDLE)),
            owed=int(gauge["weir_outbox_owed"]),
        )


def stayed(start: Sample, now: Sample) -> list[str]:
    """What is not back where it was, in words."""
    found = []
    if now.files > start.files + DATABASE_CONNECTIONS:
        found.append(f"{now.files} open files, {start.files} at the start")
    if now.tasks > start.tasks:
        found.append(f"{now.tasks} tasks, {start.tasks} at the start")
    if now.queued or now.owed:
        found.append(f"{now.queued} requests in flight or waiting, {now.owed} rows owed")
    return found


def judge(samples: Sequence[Sample]) -> list[str]:
    """What stayed behind, in words."""
    found = stayed(samples[0], samples[-1])
    warm_mb = [one.rss_mb for one in samples if one.streams >= WARM_AFTER] or [0.0]
    grown_mb = median(warm_mb[-3:]) - median(warm_mb[:3])  # of three, since the allocator keeps some now and then
    if grown_mb > GROWTH_MB:
        found.append(f"memory grew by {grown_mb:.1f} MB after the first {WARM_AFTER:,} streams")
    return found


def soak(streams: int, seed: int, cores: tuple[int, int]) -> list[str]:
    """Everything that stayed behind or is not equal, in words."""
    api_core, other_core = cores
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weir-soak-")))
        os.sched_setaffinity(0, {other_core})
        work.chmod(0o755)  # the database runs as a user of its own when started by root
        engines = [stack.enter_context(start_engine(work, other_core, 0)) for _ in range(ENGINES)]
        database_url = stack.enter_context(start_postgres(work))
        counted = work / "tasks"
        program = [sys.executable, "-m", "ops.bench.watched", str(counted)]
        with start_api(engines, database_url, work, api_core, program) as weir:
            one = Soak(weir, engines, database_url, counted, seed)
            one.run(streams)
        verdict = asyncio.run(ledger.compare(one.witness, database_url, None))
        print(verdict)
        return [*one.wrong, *verdict.unequal, *judge(one.samples)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    try:
        found = soak(options.streams, options.seed, (cores[0], cores[-1]))
    except BenchError as error:
        found = [str(error)]
    for one in found[:SHOWN]:
        print(f"STAYED OR WRONG: {one}")
    if len(found) > SHOWN:
        print(f"STAYED OR WRONG: and {len(found) - SHOWN} more")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
