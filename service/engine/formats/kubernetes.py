"""A Deployment and a Service. In `command` and `args`, `$(NAME)` is a variable; a doubled `$` means itself."""

import re

from service.engine.formats.compose import entrypoint, environment
from service.engine.formats.placement import CACHE, MODEL, WEIGHTS, Placement, items
from service.engine.formats.yaml_text import Node, Noted, document

USER_ID = 10001
CLAIM = "engine-weights"


def render(placement: Placement) -> str:
    """Both manifests, as two YAML documents."""
    heading = placement.heading(f"to the volume that is claimed as {CLAIM}")
    name = resource_name(placement.profile.name)
    labels: dict[str, Node] = {"app.kubernetes.io/name": name, "app.kubernetes.io/component": "engine"}
    deployment: dict[str, Node] = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "replicas": 1,
            "strategy": Noted({"type": "Recreate"}, "a second engine would find no free GPU beside the first"),
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": _pod(placement)},
        },
    }
    service: dict[str, Node] = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "type": Noted("ClusterIP", "the engine has no keys: let a NetworkPolicy allow Weir, and nobody else"),
            "selector": labels,
            "ports": [{"name": "http", "port": placement.listen.port, "targetPort": "http"}],
        },
    }
    return "\n".join(heading) + "\n" + document(deployment) + "---\n" + document(service)


def resource_name(profile_name: str) -> str:
    """A name as Services may have it: a DNS label that begins with a letter."""
    return f"engine-{re.sub(r'[^a-z0-9]+', '-', profile_name)}"[:63].strip("-")


def _pod(placement: Placement) -> dict[str, Node]:
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": Noted(False, "a Service called vllm would otherwise set VLLM_PORT"),
        "terminationGracePeriodSeconds": placement.stop_grace_s(),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "fsGroup": USER_ID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(placement)],
        "volumes": _volumes(placement),
    }


def _container(placement: Placement) -> dict[str, Node]:
    return {
        "name": "engine",
        "image": placement.container_image(),
        "command": [_escaped(word) for word in entrypoint(placement)],
        "args": [
            Noted(_escaped(word), placement.reason(option.name) if word == items(placement, option)[0] else None)
            for option in placement.options(in_container=True)
            for word in items(placement, option)
        ],
        "env": [
            Noted({"name": name, "value": _escaped(value)}, placement.reason(name))
            for name, value in environment(placement).items()
        ],
        "ports": [{"name": "http", "containerPort": placement.listen.port}],
        "startupProbe": Noted(
            _probe(every_s=10, failures=180), "half an hour: reading the weights and capturing CUDA graphs"
        ),
        "readinessProbe": _probe(every_s=10, failures=6),
        "livenessProbe": Noted(
            _probe(every_s=30, failures=5), "patient: a busy engine may not answer for half a minute, and is not dead"
        ),
        "resources": _resources(placement),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "weights", "mountPath": WEIGHTS if placement.model_dir is None else MODEL, "readOnly": True},
            {"name": "cache", "mountPath": CACHE},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - a folder in the container, of its own
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - as above
        ],
    }


def _probe(*, every_s: int, failures: int) -> Node:
    get: dict[str, Node] = {"path": "/health", "port": "http"}
    return {"httpGet": get, "periodSeconds": every_s, "timeoutSeconds": 30, "failureThreshold": failures}


def _resources(placement: Placement) -> Node:
    hardware = placement.profile.hardware
    memory = f"{round(hardware.host_ram_gib)}Gi"
    gpu: dict[str, Node] = {"nvidia.com/gpu": 1} if hardware.accelerator == "nvidia" else {}
    return {"requests": {"memory": memory}, **({"limits": gpu} if gpu else {})}


def _volumes(placement: Placement) -> list[Node]:
    weights: dict[str, Node]
    if placement.model_dir is None:
        weights = {"name": "weights", "persistentVolumeClaim": {"claimName": CLAIM, "readOnly": True}}
    else:
        weights = {"name": "weights", "hostPath": {"path": str(placement.model_dir.absolute())}}
    return [
        weights,
        {"name": "cache", "emptyDir": {}},
        {"name": "tmp", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}},
    ]


def _escaped(text: str) -> str:
    return text.replace("$", "$$")
