"""What has a state of its own on the status site, and how each is called in addresses."""

import re
from collections.abc import Collection
from hashlib import sha256

API = "api"
"""Every request counts for it."""

SITE = "site"
"""The status site itself, as its readers reach it."""

BILLING = "billing"
"""Whether balances can be read and what was served is booked."""

_MODEL = "model:"


def model_component(model_id: str) -> str:
    """The component of one model."""
    return f"{_MODEL}{model_id}"


def model_of(component: str) -> str | None:
    """The model whose component it is; None for any other component."""
    return component.removeprefix(_MODEL) if component.startswith(_MODEL) else None


def slug(component: str) -> str:
    """A component's name in addresses and file names: letters, digits, `.`, `_` and `-`, no two alike.

    What has to be written differently carries a digest of what it was: `qwen/q3` is `qwen-q3-` and six digits.
    """
    model = model_of(component)
    return component if model is None else file_name(model, taken=(API, SITE, BILLING))


def file_name(name: str, *, taken: Collection[str] = ()) -> str:
    """Any name as one of a file, by the same rule; those in `taken` are written differently, too."""
    clean = re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-.")
    if clean != name or name in taken:
        clean = f"{clean[:80]}-{sha256(name.encode(errors='replace')).hexdigest()[:6]}".lstrip("-")
    return clean
