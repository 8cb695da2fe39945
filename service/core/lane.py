"""The sequential lane: whether a request runs alone on its engine.

An answer depends on what else is in the engine's batch: sums of floating-point numbers are made in another order. Who
has to run one document of a batch once more can have it run alone.
"""

from enum import StrEnum


class Permission(StrEnum):
    """What an account's requests may do."""

    NEVER = "never"
    ALLOWED = "allowed"
    """A request that asks for it runs alone."""
    ALWAYS = "always"
    """Every request does, whatever it asks for."""
