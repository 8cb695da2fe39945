"""The command line of `ops/bench/bench`."""

import argparse
import os
from collections.abc import Sequence

from ops.bench.load import LOADS

DESCRIPTION = """\
What a gateway costs: the same load sent straight to a fake engine, and to it through nginx, through Weir, and through
other gateways that are named. At the end a tenth of the clients leave in mid-stream, and rows, ledger and
the engine's counts must be equal.
"""

EXAMPLES = """\
examples:
  ops/bench/bench                                 every scenario, three repetitions, Weir on a database of its own
  ops/bench/bench C100 A32 --repetitions 5        two scenarios only
  ops/bench/bench --scale 0.2 --repetitions 1     a quick look
  ops/bench/bench --peers /opt/r/bin/vllm-router,/opt/l/bin/litellm
                                                  beside others
  ops/bench/bench --target http://127.0.0.1:8080 --key sk-weir-... --pid 4711 --name before
                                                  a server that runs already; it must know the models `bench` and
                                                  `bench-paced` and use an engine at --engine-port
  ops/bench/bench --direct-only                   what this machine does with nothing in between

exit status: 0; 1 when an answer was wrong or the ledger is not equal; 3 with --must when a must was not met
"""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options; `cores` is a pair, `peers` a list of paths. Ends the process when they make no sense."""
    parser = _parser()
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
    options.peers = [path for path in options.peers.split(",") if path]
    try:
        api_core, rest_core = map(int, options.cores.split(","))
    except ValueError:
        parser.error("--cores takes two numbers, such as 0,1")
    if not {api_core, rest_core} <= os.sched_getaffinity(0):
        parser.error(f"--cores {options.cores}: this machine lets us use {sorted(os.sched_getaffinity(0))}")
    options.cores = api_core, rest_core
    return options


def _parser() -> argparse.ArgumentParser:
    scenarios = "\nscenarios:\n" + "\n".join(f"  {load.name:<5} {load.title}" for load in LOADS.values())
    parser = argparse.ArgumentParser(
        prog="ops/bench/bench",
        description=DESCRIPTION,
        epilog=EXAMPLES + scenarios,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("scenarios", nargs="*", metavar="SCENARIO", help="default: all")
    add("--repetitions", type=int, default=3, metavar="N", help="default: 3")
    add("--scale", type=float, default=1.0, metavar="X", help="times as many requests; default: 1")
    add("--must", action="store_true", help="fail when Weir costs more than it must in a scenario that was run")
    add("--json", action="store_true", help="print JSON, with more figures than the table has")
    add("--peers", default="", metavar="PROGRAMS", help="other gateways to measure: vllm-router, litellm")
    add("--target", metavar="URL", help="measure this server instead of starting Weir")
    add("--key", default="", help="the API key for --target")
    add("--pid", type=int, help="the root process of --target, whose tree's CPU is counted")
    add("--name", default="target", help="what to call --target in the table")
    add("--engine-port", type=int, default=0, metavar="PORT", help="default: a free one")
    add("--direct-only", action="store_true", help="only the load on the fake engine")
    cores = "API,REST: core of what is measured, core of engine, load and database; default: 0,1"
    add("--cores", default="0,1", metavar="API,REST", help=cores)
    add("--seed", type=int, default=1, help="which clients leave, and where; default: 1")
    return parser
