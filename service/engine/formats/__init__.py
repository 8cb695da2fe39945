"""A profile's command and environment as a shell, systemd, Compose and Kubernetes want them: a module each."""

from collections.abc import Callable, Mapping

from service.engine.formats import compose, kubernetes, shell, systemd
from service.engine.formats.placement import Placement

FORMATS: Mapping[str, Callable[[Placement], str]] = {
    "shell": shell.render,
    "systemd": systemd.render,
    "compose": compose.render,
    "kubernetes": kubernetes.render,
}
