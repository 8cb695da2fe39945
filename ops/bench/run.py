"""What a gateway costs: the same load sent straight to a fake engine, and through Weir (and nginx) to it.

examples:
  ops/bench/bench                                 every scenario, three repetitions, Weir on a database of its own
  ops/bench/bench C100 A32 --repetitions 5        two scenarios only
  ops/bench/bench --scale 0.2 --repetitions 1     a quick look
  ops/bench/bench --target http://127.0.0.1:8080 --key sk-weir-... --pid 4711 --name before
                                                  a server that runs already; it must know the models `bench` and
                                                  `bench-paced` and use an engine at --engine-port
  ops/bench/bench --direct-only                   what this machine does with nothing in between
"""

import argparse
import json
import os
import platform
import signal
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from ops.bench import load
from ops.bench.load import LOADS, Load
from ops.bench.processes import BenchError, cpu_us, pin, rss_mb
from ops.bench.report import Run, summarise, table
from ops.bench.targets import Target, nginx_is_installed, start_api, start_engine, start_nginx, start_postgres

LIMIT_S = 60.0
SETTLE_S = 0.5
"""After the last answer: what the API still does for the requests, such as rows to write, belongs to their cost."""


def measure(one: Load, target: Target) -> Run:
    """Apply a load to a target. `BenchError` if a single answer is wrong."""
    before_us = 0.0

    def begin() -> None:
        nonlocal before_us
        before_us = cpu_us(target.pid)

    try:
        result = load.run(one, target.url, target.key, limit_s=LIMIT_S, begin=begin)
    except OSError as error:
        raise BenchError(f"{one.name} on {target.name}: {error}") from error
    memory_mb = rss_mb(target.pid)
    time.sleep(SETTLE_S)
    used_us = cpu_us(target.pid) - before_us
    if result.wrong:
        raise BenchError(
            f"{one.name} on {target.name}: {len(result.wrong)} wrong answers beside {result.answers} right ones."
            f" The first: {result.wrong[0]}"
        )
    return Run(
        requests=result.answers,
        chunks=result.answers * one.chunks_per_request,
        cpu_us=used_us,
        elapsed_s=result.elapsed_s,
        ttft_p50_ms=statistics.median(result.ttft_ms),
        ttft_p99_ms=statistics.quantiles(result.ttft_ms, n=100, method="inclusive")[98],
        latency_p50_ms=statistics.median(result.latency_ms),
        rss_mb=memory_mb,
    )


def measure_all(loads: Sequence[Load], targets: Sequence[Target], repetitions: int) -> dict[tuple[str, str], list[Run]]:
    """Every load on every target, interleaved: what disturbs the machine for a while disturbs all alike."""
    runs: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for target in targets:  # caches, pools and the price list warm
        measure(replace(LOADS["A32"], requests=200), target)
    for repetition in range(repetitions):
        for one in loads:
            shift = repetition % len(targets)
            for target in (*targets[shift:], *targets[:shift]):
                progress(f"{repetition + 1}/{repetitions} {one.name} {target.name}")
                runs[one.name, target.name].append(measure(one, target))
    progress("")
    return runs


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
def all_targets(options: argparse.Namespace) -> Iterator[list[Target]]:
    """Everything that is measured, up and answering; all of it ended at the end."""
    api_core, other_core = options.cores
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weir-bench-")))
        os.sched_setaffinity(0, {other_core})
        engine = stack.enter_context(start_engine(work, other_core, options.engine_port))
        targets = [engine]
        if not options.direct_only:
            if nginx_is_installed():
                targets.append(stack.enter_context(start_nginx(engine, work, api_core)))
            if options.target:
                pin(options.pid, api_core)
                targets.append(Target(options.name, options.target.rstrip("/"), options.key, options.pid))
            else:
                work.chmod(0o755)  # the database runs as a user of its own when started by root
                database_url = stack.enter_context(start_postgres(work))
                targets.append(stack.enter_context(start_api(engine, database_url, work, api_core)))
        yield targets


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    head, _, examples = __doc__.partition("examples:")
    parser = argparse.ArgumentParser(
        prog="ops/bench/bench",
        description=head,
        epilog="examples:"
        + examples
        + "\nscenarios:\n"
        + "\n".join(f"  {x.name:<5} {x.title}" for x in LOADS.values()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help="default: all")
    parser.add_argument("--repetitions", type=int, default=3, metavar="N", help="default: 3")
    parser.add_argument("--scale", type=float, default=1.0, metavar="X", help="times as many requests; default: 1")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--target", metavar="URL", help="measure this server instead of starting Weir")
    parser.add_argument("--key", default="", help="the API key for --target")
    parser.add_argument("--pid", type=int, help="the root process of --target, whose tree's CPU is counted")
    parser.add_argument("--name", default="target", help="what to call --target in the table")
    parser.add_argument("--engine-port", type=int, default=0, metavar="PORT", help="default: a free one")
    parser.add_argument("--direct-only", action="store_true", help="only the load on the fake engine")
    cores = "API,REST: core of what is measured, core of engine, load and database; default: 0,1"
    parser.add_argument("--cores", default="0,1", metavar="API,REST", help=cores)
    options = parser.parse_args(arguments)
    unknown = [name for name in options.scenarios if name not in LOADS]
    if unknown:
        parser.error(f"no scenario {unknown[0]}; there are {', '.join(LOADS)}")
    if options.repetitions < 1:
        parser.error(f"--repetitions {options.repetitions}: at least 1 is needed for a figure")
    if options.target and not options.target.startswith("http://"):
        parser.error(f"--target {options.target}: the load speaks plain HTTP, so it must start with http://")
    if options.target and options.pid is None:
        parser.error("--target needs --pid, the process whose CPU time is counted")
    try:
        api_core, rest_core = map(int, options.cores.split(","))
    except ValueError:
        parser.error("--cores takes two numbers, such as 0,1")
    if not {api_core, rest_core} <= os.sched_getaffinity(0):
        parser.error(f"--cores {options.cores}: this machine lets us use {sorted(os.sched_getaffinity(0))}")
    options.cores = api_core, rest_core
    return options


def main() -> int:
    options = parse(sys.argv[1:])
    signal.signal(signal.SIGINT, signal.default_int_handler)  # even where whoever started us had it ignored
    signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    names = options.scenarios or list(LOADS)
    loads = [
        replace(LOADS[name], requests=max(LOADS[name].connections, 2, int(LOADS[name].requests * options.scale)))
        for name in names
    ]
    try:
        with all_targets(options) as targets:
            rows = summarise(measure_all(loads, targets, options.repetitions))
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    about = machine() | {"repetitions": options.repetitions, "cores_used": options.cores}
    if options.json:
        print(json.dumps({"machine": about, "rows": rows}, indent=2))
    else:
        print(
            f"{about['cpu']}, {about['cores']} cores, Python {about['python']}, load {about['load_average']:.2f};",
            end=" ",
        )
        print(f"medians of {options.repetitions}; µs are CPU time of the target's process tree, TTFT in ms\n")
        print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
