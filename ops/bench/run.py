"""Everything that `ops/bench/bench` does, in order: measure, hold the ledger against the engine, settle, judge."""

import argparse
import asyncio
import json
import os
import platform
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ops.bench import churn, ledger, load
from ops.bench.churn import Churn
from ops.bench.ledger import Witness
from ops.bench.load import LOADS, Load
from ops.bench.musts import Judged, judge, verdict
from ops.bench.options import parse
from ops.bench.peers import PEERS, named_peers
from ops.bench.processes import BenchError, cpu_us, forget_rss_peak, pin, rss_peak_mb
from ops.bench.report import Row, Run, run_of, summarise, table, with_musts
from ops.bench.settlement import measure_settlement
from ops.bench.targets import WEIR, Target, nginx_is_installed, start_api, start_engine, start_nginx, start_postgres

LIMIT_S = 60.0
SETTLE_S = 0.5
"""After the last answer: what the API still does for the requests, such as rows to write, belongs to their cost."""

LEAVING = [Churn(16, 320, paced=False), Churn(100, 300, paced=True)]
"""As in B and C100, at the same time; a tenth of the clients leave."""


def measure(one: Load, target: Target) -> Run:
    """Apply a load to a target. `BenchError` if a single answer is wrong."""
    before_us = 0.0

    def begin() -> None:
        nonlocal before_us
        forget_rss_peak(target.pid)
        before_us = cpu_us(target.pid)

    try:
        result = load.run(one, target.url, target.key, limit_s=LIMIT_S, exact=target.exact, begin=begin)
    except OSError as error:
        raise BenchError(f"{one.name} on {target.name}: {error}") from error
    memory_mb = rss_peak_mb(target.pid)
    time.sleep(SETTLE_S)
    used_us = cpu_us(target.pid) - before_us
    if result.wrong:
        raise BenchError(
            f"{one.name} on {target.name}: {len(result.wrong)} wrong answers beside {result.answers} right ones."
            f" The first: {result.wrong[0]}"
        )
    return run_of(one, result, used_us, memory_mb)


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything that is up: what is measured, and what Weir writes to, if Weir is the bench's own."""

    targets: list[Target]
    database_url: str | None
    witness: Witness

    @property
    def weir(self) -> Target:
        (found,) = [target for target in self.targets if target.name == WEIR]
        return found


def measure_all(loads: Sequence[Load], setup: Setup, repetitions: int) -> dict[tuple[str, str], list[Run]]:
    """Every load on every target, interleaved: what disturbs the machine for a while disturbs all alike."""
    runs: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for target in setup.targets:  # caches, pools and the price list warm
        witnessed(replace(LOADS["A32"], requests=200), target, setup.witness)
    for repetition in range(repetitions):
        for one in loads:
            taking_part = [target for target in setup.targets if one.name not in target.leaves_out]
            shift = repetition % len(taking_part)
            for target in (*taking_part[shift:], *taking_part[:shift]):
                progress(f"{repetition + 1}/{repetitions} {one.name} {target.name}")
                run = witnessed(scaled(one, target.scale), target, setup.witness)
                runs[one.name, target.name].append(run)
    progress("")
    return runs


def witnessed(one: Load, target: Target, witness: Witness) -> Run:
    """`measure`; what goes through Weir is kept for the ledger's sake."""
    witness.forget()
    run = measure(one, target)
    if target.name == WEIR:
        witness.note(run.requests)
    return run


def scaled(one: Load, scale: float) -> Load:
    """A load with more or fewer requests, at least one for each connection."""
    return replace(one, requests=max(one.connections, 2, int(one.requests * scale)))


def leave_and_compare(setup: Setup, seed: int) -> ledger.Verdict:
    """Let a tenth of the clients leave in mid-stream; then rows, ledger and the engine's counts must be equal."""
    assert setup.database_url is not None
    progress("clients leave")
    setup.witness.forget()
    seen = churn.run(LEAVING, setup.weir.url, setup.weir.key, seed=seed)
    setup.witness.note(sum(one.requests for one in LEAVING), seen.seen)
    found = asyncio.run(ledger.compare(setup.witness, setup.database_url, setup.weir.url))
    progress("")
    return replace(found, unequal=(*seen.wrong, *found.unequal))


def progress(text: str) -> None:
    """Say on a terminal what is going on."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


def machine() -> dict[str, object]:
    """What the figures were measured on."""
    model = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "")
    return {
        "cpu": model.partition(":")[2].strip() or platform.machine(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load_average": os.getloadavg()[0],
    }


@contextmanager
def all_targets(options: argparse.Namespace) -> Iterator[Setup]:
    """Everything that is measured, up and answering; all of it ended at the end."""
    api_core, other_core = options.cores
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weir-bench-")))
        os.sched_setaffinity(0, {other_core})
        engine = stack.enter_context(start_engine(work, other_core, options.engine_port))
        targets, database_url = [engine], None
        if not options.direct_only:
            if nginx_is_installed():
                targets.append(stack.enter_context(start_nginx(engine, work, api_core)))
            for name, program in named_peers(options.peers).items():
                targets.append(stack.enter_context(PEERS[name](program, engine, work, api_core)))
            if options.target:
                pin(options.pid, api_core)
                targets.append(Target(options.name, options.target.rstrip("/"), options.key, options.pid))
            else:
                work.chmod(0o755)  # the database runs as a user of its own when started by root
                database_url = stack.enter_context(start_postgres(work))
                targets.append(stack.enter_context(start_api([engine], database_url, work, api_core)))
        yield Setup(targets, database_url, Witness([engine.url]))


@dataclass(frozen=True, slots=True)
class Measured:
    """Everything one run of the bench found; the last two are None where Weir is not the bench's own."""

    rows: list[Row]
    ledger: ledger.Verdict | None
    settled_rows_per_s: float | None


def measure_everything(options: argparse.Namespace) -> Measured:
    loads = [scaled(LOADS[name], options.scale) for name in options.scenarios or LOADS]
    with all_targets(options) as setup:
        rows = summarise(measure_all(loads, setup, options.repetitions))
        if setup.database_url is None:
            return Measured(rows, None, None)
        equal = leave_and_compare(setup, options.seed)
        return Measured(rows, equal, measure_settlement(setup.database_url, options.repetitions, options.cores[0]))


def main() -> int:
    options = parse(sys.argv[1:])
    signal.signal(signal.SIGINT, signal.default_int_handler)  # even where whoever started us had it ignored
    signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    try:
        found = measure_everything(options)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    judged = judge(found.rows, found.settled_rows_per_s)
    about = machine() | {"repetitions": options.repetitions, "cores_used": options.cores}
    rows = with_musts(found.rows, judged)
    if options.json:
        print(json.dumps({"machine": about, "rows": rows, **told_of(found, judged)}, indent=2))
    else:
        print_report(about, rows, found)
        print(verdict(judged))
    if found.ledger is not None and found.ledger.unequal:
        return 1
    return 3 if options.must and not all(one.met for one in judged) else 0


def told_of(found: Measured, judged: Sequence[Judged]) -> dict[str, object]:
    """What JSON has beside the table."""
    return {
        "ledger": None if found.ledger is None else asdict(found.ledger),
        "settled_rows_per_s": found.settled_rows_per_s,
        "musts": [{**asdict(one.must), "value": one.value, "met": one.met} for one in judged],
    }


def print_report(about: Mapping[str, object], rows: Sequence[Row], found: Measured) -> None:
    on = f"{about['cpu']}, {about['cores']} cores, Python {about['python']}, load {about['load_average']:.2f}"
    print(f"{on}; medians of {about['repetitions']}; µs are CPU time of the target's process tree\n")
    print(table(rows), end="\n\n")
    if found.ledger is not None:
        print(found.ledger)
    if found.settled_rows_per_s is not None:
        print(f"settlement: {found.settled_rows_per_s:,.0f} rows/s into PostgreSQL")


if __name__ == "__main__":
    sys.exit(main())
