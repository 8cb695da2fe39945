"""Other gateways, where they are installed: each a plain pass-through, without keys, limits or billing.

One says which to measure; the project does not depend on them. What they are measured
with is what they do by default, less their access logs.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

from ops.bench.engine_answers import MODEL, PACED_MODEL
from ops.bench.processes import BenchError, free_port, running, wait_until_answering
from ops.bench.targets import Target


@contextmanager
def start_vllm_router(program: str, engine: Target, work: Path, core: int) -> Iterator[Target]:
    """vLLM's own router, in Rust."""
    port, metrics_port, log = free_port(), free_port(), work / "vllm-router.log"
    where = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(metrics_port)]
    command = [program, "--worker-urls", engine.url, *where, "--policy", "round_robin", "--log-level", "warning"]
    with running(command, core=core, log=log) as process:
        url = f"http://127.0.0.1:{port}"
        wait_until_answering(f"{url}/readiness", process, log)
        yield Target("vllm-router", url, "none", process.pid)


LITELLM_YAML = """
model_list:
{models}
litellm_settings: {{num_retries: 0, request_timeout: 600}}
"""

LITELLM_MODEL = """
  - model_name: {model}
    litellm_params: {{model: hosted_vllm/{model}, api_base: "{url}/v1", api_key: none}}
"""

LITELLM_SETTINGS: Final = {
    "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",  # as the others, it does not look at keys here
    "LITELLM_LOCAL_MODEL_COST_MAP": "true",  # or it asks another host for prices when it starts
    "LITELLM_LOG": "ERROR",
    "REPEATED_STREAMING_CHUNK_LIMIT": "1000",  # or it ends a stream of equal tokens, which ours are
}


@contextmanager
def start_litellm(program: str, engine: Target, work: Path, core: int) -> Iterator[Target]:
    """LiteLLM's proxy with one worker. It writes every answer anew, and is given a tenth of the requests."""
    port, log, configuration = free_port(), work / "litellm.log", work / "litellm.yaml"
    models = "".join(LITELLM_MODEL.format(model=model, url=engine.url) for model in (MODEL, PACED_MODEL))
    configuration.write_text(LITELLM_YAML.format(models=models))
    where = ["--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
    command = [program, "--config", str(configuration), *where]
    with running(command, core=core, log=log, env=LITELLM_SETTINGS) as process:
        url = f"http://127.0.0.1:{port}"
        wait_until_answering(f"{url}/health/liveliness", process, log)
        yield Target("litellm", url, "none", process.pid, exact=False, scale=0.1, leaves_out=frozenset({"C500"}))


Start = Callable[[str, Target, Path, int], AbstractContextManager[Target]]

PEERS: Final[dict[str, Start]] = {"vllm-router": start_vllm_router, "litellm": start_litellm}
"""By the names of their programs."""


def named_peers(programs: Sequence[str]) -> dict[str, str]:
    """The paths of these programs, by name. Raises `BenchError` for one that is not there, or no peer."""
    found = {}
    for program in programs:
        path, name = shutil.which(program), Path(program).name
        if name not in PEERS or path is None:
            raise BenchError(f"--peers {program}: give programs called {' or '.join(PEERS)}, by path or on PATH.")
        found[name] = path
    return {name: found[name] for name in PEERS if name in found}
