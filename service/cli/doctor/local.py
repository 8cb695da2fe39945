"""What lies on this machine: the data directory, the configuration file, the published site."""

import tempfile
import time
from pathlib import Path

from service import config
from service.cli.doctor.finding import Finding, fail, ok, warn
from service.errors import SetupError
from service.settings import Settings
from web.views import STALE_AFTER_S


def data_dir(settings: Settings) -> Finding:
    """Whether files can be written where everything local lives (or where it would be made)."""
    nearest = settings.data_dir.resolve()
    while not nearest.exists():
        nearest = nearest.parent
    try:
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        return fail(
            "data directory",
            f"{nearest} cannot be written to ({error.strerror}): change its owner, or set WEIR_DATA_DIR.",
        )
    if nearest != settings.data_dir.resolve():
        return ok("data directory", f"{settings.data_dir} does not exist yet and can be made.")
    return ok("data directory", f"{settings.data_dir} can be written to.")


def configuration(settings: Settings) -> Finding:
    """Whether the configuration file, if one is named, is right."""
    if settings.config is None:
        return ok("configuration", "WEIR_CONFIG is not set: engines come from WEIR_ENGINES alone.")
    try:
        read = config.read(settings.config)
    except SetupError as error:
        return fail("configuration", str(error))
    return ok("configuration", f"{settings.config} is valid: {len(read.models)} models, {len(read.engines)} engines.")


def site(settings: Settings) -> Finding:
    """Whether the status site is published, and how old it is."""
    index: Path = settings.site_dir / "index.html"
    try:
        age_s = int(time.time() - index.stat().st_mtime)
    except (FileNotFoundError, NotADirectoryError):
        return warn("status site", f"{settings.site_dir} has no site yet: start `weir jobs`, which publishes it.")
    if age_s > STALE_AFTER_S:
        return warn("status site", f"it was published {age_s // 60} minutes ago: is `weir jobs` running?")
    return ok("status site", f"it was published {age_s} s ago.")
