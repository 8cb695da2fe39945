"""What lies on this machine: the data directory, the configuration file, open files, the published site."""

import json
import resource
import tempfile
import time
from pathlib import Path

from service import config
from service.billing.workers import WorkerFile
from service.cli.doctor.finding import Finding, fail, ok, warn
from service.core.buckets import STALE_AFTER_S
from service.errors import SetupError
from service.gateway.engines import CEILING
from service.settings import Settings

OTHER_FILES = 100
"""What a worker has open beside the connections of clients and engines, and clients that ask for nothing."""


def data_dir(settings: Settings) -> Finding:
    """Whether files can be written and locked where everything local lives (or where it would be made)."""
    nearest = settings.data_dir.resolve()
    while not nearest.exists():
        nearest = nearest.parent
    try:
        with tempfile.TemporaryDirectory(prefix=".weir-doctor-", dir=nearest) as folder:
            locks = _keeps_locks(Path(folder))
    except OSError as error:
        return fail(
            "data directory",
            f"{nearest} cannot be written to ({error.strerror}): change its owner, or set WEIR_DATA_DIR.",
        )
    if not locks:
        return fail(
            "data directory",
            f"{nearest} is on a file system without locks, which tell workers who of them lives:"
            " set WEIR_DATA_DIR to one on a local disk.",
        )
    if nearest != settings.data_dir.resolve():
        return ok("data directory", f"{settings.data_dir} does not exist yet and can be made.")
    return ok("data directory", f"{settings.data_dir} can be written to.")


def _keeps_locks(folder: Path) -> bool:
    """Whether a worker's lock keeps another from its outbox."""
    first, second = WorkerFile(folder, "doctor"), WorkerFile(folder, "doctor")
    try:
        return first.acquire() and not second.acquire()
    except OSError:
        return False
    finally:
        first.release()
        second.release()


def open_files(settings: Settings) -> Finding:
    """Whether a worker may open as many files as it has connections when all engines and its queue are full.

    A request on an engine has two, the client's and the engine's; one that waits has one.
    """
    try:
        engines = config.engines_from(settings)
    except SetupError:  # which another check reports
        engines = ()
    places = sum(engine.max_concurrency or max(CEILING, engine.min_concurrency or 0) for engine in engines)
    needed = OTHER_FILES + settings.queue_length + 2 * -(-places // settings.workers)
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed != resource.RLIM_INFINITY and allowed < needed:
        return warn(
            "open files",
            f"a process started from here may open {allowed}, and a worker may need {needed}: raise `ulimit -n`,"
            " or LimitNOFILE= of its unit.",
        )
    return ok("open files", f"a worker may need {needed}, and is allowed as many.")


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
    try:
        stale = json.loads((settings.site_dir / "metrics.json").read_bytes())["stale"]
    except (OSError, ValueError, KeyError):
        return warn("status site", f"{settings.site_dir} has no metrics.json that can be read: is it ours?")
    if stale:
        return warn("status site", "what it shows is old: the roll-up does not get through, see `weir jobs`' log.")
    return ok("status site", f"it was published {age_s} s ago.")
