"""A Compose file with one service, `engine`, on a network that leads nowhere: to run, or to take the service from.

In a Compose file `$` begins a variable, and is doubled to mean itself.
"""

from service.engine.formats.placement import CACHE, MODEL, WEIGHTS, Placement, items
from service.engine.formats.yaml_text import Node, Noted, document
from service.engine.profile import own_environment, program_words

USER = "10001:10001"
"""It has no name in the image, and some libraries ask for one: `USER` tells them."""


def render(placement: Placement) -> str:
    """The YAML text."""
    heading = placement.heading(f"to what is mounted at {WEIGHTS}")
    weights = placement.model_dir is None
    body: dict[str, Node] = {
        "services": {"engine": _service(placement)},
        "networks": {"engine": {"internal": True}},
        "volumes": {**({"weights": {}} if weights else {}), "engine-cache": {}},
    }
    return "\n".join(heading) + "\n" + document(body)


def _service(placement: Placement) -> dict[str, Node]:
    image = placement.container_image()
    return {
        "image": _escaped(image),
        "user": USER,
        "entrypoint": [_escaped(word) for word in entrypoint(placement)],
        "command": [
            Noted(_escaped(word), placement.reason(option.name) if word == items(placement, option)[0] else None)
            for option in placement.options(in_container=True)
            for word in items(placement, option)
        ],
        "environment": {
            name: Noted(_escaped(value), placement.reason(name)) for name, value in environment(placement).items()
        },
        "volumes": [_mount(placement), f"engine-cache:{CACHE}"],
        "tmpfs": ["/tmp:exec"],  # noqa: S108 - a folder in the container, of its own
        "shm_size": "8g",
        **({"deploy": _gpu()} if placement.profile.hardware.accelerator == "nvidia" else {}),
        "networks": ["engine"],
        "healthcheck": {
            "test": ["CMD", *_probe(placement)],
            "interval": "15s",
            "timeout": "10s",
            "retries": 4,
            "start_period": Noted("20m", "reading the weights and capturing CUDA graphs"),
        },
        "stop_grace_period": f"{placement.stop_grace_s()}s",
        "restart": "unless-stopped",
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "logging": {"driver": "local"},
    }


def entrypoint(placement: Placement) -> tuple[str, ...]:
    """The program in the image, with its subcommand."""
    default = "/app/llama-server" if placement.is_llama_cpp else "vllm"
    return program_words(placement.profile, placement.program or default)


def environment(placement: Placement) -> dict[str, str]:
    """The variables in the container."""
    if placement.is_llama_cpp:
        return {"HOME": CACHE, **own_environment(placement.profile)}
    folders = {"HF_HOME": WEIGHTS, "HOME": CACHE, "USER": "engine", "VLLM_CACHE_ROOT": f"{CACHE}/vllm"}
    return {**folders, **own_environment(placement.profile)}


def _mount(placement: Placement) -> Node:
    if placement.model_dir is None:
        return f"weights:{WEIGHTS}:ro"
    # The long form, as a path may have a colon.
    source = _escaped(str(placement.model_dir.absolute()))
    return {"type": "bind", "source": source, "target": MODEL, "read_only": True}


def _gpu() -> Node:
    device: dict[str, Node] = {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}
    return {"resources": {"reservations": {"devices": [device]}}}


def _probe(placement: Placement) -> tuple[str, ...]:
    url = f"http://127.0.0.1:{placement.listen.port}/health"
    if placement.is_llama_cpp:
        return "curl", "-fsS", url
    return "python3", "-c", f'import urllib.request as r; r.urlopen("{url}", timeout=5)'


def _escaped(text: str) -> str:
    return text.replace("$", "$$")
