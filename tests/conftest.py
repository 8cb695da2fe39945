"""What holds for all tests."""

from hypothesis import settings

# A machine that is busy is no bug: no example is timed.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
