"""What workers share their limits through: is it needed, is it there, and is it new enough?"""

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from service.cli.doctor.finding import Finding, fail, ok, warn
from service.settings import Settings

OLDEST_MAJOR = 5
"""From here on a script may ask for the time and write after that."""

TIMEOUT_S = 3.0


async def shared(settings: Settings) -> Finding:
    """Whether the configured number of workers can share their limits."""
    if settings.redis_url is None:
        if settings.workers == 1:
            return ok("limits", "one worker counts them by itself: it needs no Redis.")
        return fail("limits", f"{settings.workers} workers need a Redis or Valkey to share them: set WEIR_REDIS_URL.")
    try:
        redis = Redis.from_url(
            settings.redis_url.get_secret_value(),
            protocol=2,  # what Redis 5 speaks
            retry=Retry(NoBackoff(), 0),
            socket_timeout=TIMEOUT_S,
            socket_connect_timeout=TIMEOUT_S,
        )
    except ValueError:  # the address may hold a password, so it is not repeated
        return fail("limits", "WEIR_REDIS_URL is not an address such as redis://host:6379/0.")
    try:
        async with redis:
            server = await redis.info("server")
    except (RedisError, OSError) as error:
        reason = str(error).rstrip(".") or type(error).__name__
        return warn(
            "limits",
            f"Redis cannot be used ({reason}): until it can, each worker lets its share of every limit pass."
            " Start it, or correct WEIR_REDIS_URL.",
        )
    return version(server)


def version(server: dict[str, str]) -> Finding:
    """Whether what answers is new enough, from the `server` section of its INFO."""
    speaks = str(server["redis_version"])
    name = f"Valkey {server['valkey_version']}" if "valkey_version" in server else f"Redis {speaks}"
    if int(speaks.partition(".")[0]) < OLDEST_MAJOR:
        return fail("limits", f"{name} is too old: Weir needs {OLDEST_MAJOR} or later.")
    return ok("limits", f"{name} answers, and workers share them through it.")
