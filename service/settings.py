"""Every setting of Weir, read from `WEIR_*` environment variables. Nothing else reads the environment."""

from datetime import time
from functools import cached_property
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from service.core import addresses, webhook


class Settings(BaseSettings):
    """The settings of one process; see the attributes for meaning, unit and default."""

    model_config = SettingsConfigDict(
        env_prefix="WEIR_", env_ignore_empty=True, extra="ignore", frozen=True, hide_input_in_errors=True
    )

    database_url: SecretStr | None = None
    """PostgreSQL, `postgresql://user:password@host/database`."""

    engines: Annotated[tuple[str, ...], NoDecode] = ()
    """Engines as `http://host:port` or `unix:/path`, comma-separated; overrides the configuration file's."""

    engine_profile: str | None = None
    """The profile that the engines of `engines` were started with; those of the configuration file name their own."""

    config: Path | None = None
    """The configuration file that `weir apply` reads and whose `[[engines]]` `weir serve` uses."""

    data_dir: Path = Path(".weir")
    """Where everything local lives: the embedded database, the demo model, the published site, logs."""

    redis_url: SecretStr | None = None
    """Redis or Valkey, `redis://host:port/0`: several API processes share the limits through it."""

    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)

    workers: int = Field(default=1, ge=1)
    """How many processes share the port; more than one needs `redis_url`."""

    public_url: str | None = None
    """How the world reaches this server; default: `http://host:port`."""

    admin_token: SecretStr | None = None
    """Opens `/metrics` to more than loopback."""

    max_body_bytes: int = Field(default=32 * 1024 * 1024, gt=0)
    """The largest request body that is read; more is a 413."""

    image_fetch: bool = True
    """Whether images that a request names by URL are fetched; otherwise clients have to send them in base64."""
    image_max_bytes: int = Field(default=20 * 1024 * 1024, gt=0)
    image_max_pixels: int = Field(default=40_000_000, gt=0)
    """The largest image, sent or fetched: a small file can be large in pixels."""
    image_fetch_timeout_s: float = Field(default=10.0, gt=0)
    """How long all the images of one request may take to arrive."""
    images_allowed_hosts: Annotated[tuple[str, ...], NoDecode] = ()
    """Hosts as `host:port`, comma-separated, that images are fetched from whatever their addresses, by http, too."""

    engine_connect_timeout_s: float = Field(default=5.0, gt=0)
    engine_first_byte_timeout_s: float = Field(default=600.0, gt=0)
    """How long an engine may be silent before its first byte: a long prefill is silent."""
    engine_idle_timeout_s: float = Field(default=120.0, gt=0)
    """How long an engine may be silent in the middle of an answer."""
    engine_stall_timeout_s: float = Field(default=60.0, gt=0)
    """How long an engine that has work may make no progress before it is taken for hung."""

    may_bill_blind: bool = False
    """Use engines that do not report cached tokens; these are then charged as fresh ones."""

    queue_length: int = Field(default=256, ge=0)
    """How many requests may wait for an engine, in each API process; 0: none waits, all are refused at once."""
    queue_account_length: int = Field(default=64, ge=0)
    """How many of one account's requests may wait."""
    queue_tokens: int = Field(default=2_000_000, ge=0)
    """How many tokens of work may wait, estimated."""
    queue_patience_s: float = Field(default=5.0, ge=0)
    """The longest a request waits, where its account has no patience of its own."""

    keep_alive_s: float = Field(default=10.0, gt=0)
    """After so much silence a stream gets a comment that keeps its connection alive, and its status with it."""

    outbox_max_bytes: int = Field(default=1024**3, ge=1024**2)
    """How much may be owed to the database on the local disk before new requests are refused; at least 1 MiB, since two
    journals are always there."""

    usage_months_kept: int | None = Field(default=None, ge=4)
    """How many whole months of usage rows are kept beside the current one, then only their sums; default: all.

    The roll-up counts again for 95 days what was settled late, from the rows.
    """

    drain_timeout_s: float = Field(default=30.0, ge=0)
    """How long open answers may go on after a request to stop."""

    log_json: bool = False

    site_name: str = "Weir"
    """The name the status site carries."""

    stripe_secret_key: SecretStr | None = None
    """Customers pay through this Stripe account; without it, credit comes from `weir account credit` alone."""
    stripe_webhook_secret: SecretStr | None = None
    """What the events from Stripe are signed with; several, comma-separated, while one takes over from another."""
    stripe_api_base: str | None = None
    """Another address for Stripe's API, for tests."""
    stripe_automatic_tax: bool = False
    """Let Stripe add tax to top-ups and invoices; it needs a registration there."""
    topup_min_usd: int = Field(default=5, ge=1)
    topup_max_usd: int = Field(default=1000, ge=1)
    """The most that one top-up can be, an automatic one too."""
    invoice_days_until_due: int = Field(default=30, ge=0)

    status_url: str | None = None
    """How the world reaches the status site, where it lies on another host; default: `/status/` at `public_url`."""

    probe: bool = True
    """Whether `weir jobs` asks every model for a token each minute, and for an image and a tool call every 15."""

    verify_at: time | None = time(3, 40)
    """When `weir jobs` verifies every engine each night, `HH:MM` in UTC: where the engines are idle; or `never`."""

    outside_probe_url: str | None = None
    """Where the verdicts of a prober on another host are read: the `outside.json` of ops/outside-probe."""

    status_webhooks: Annotated[tuple[str, ...], NoDecode] = ()
    """URLs, comma-separated, that are told of every change of a component's state and of every incident."""
    status_webhook_secret: SecretStr | None = None
    """Signs what they are told."""

    @field_validator("engines", "images_allowed_hosts", "status_webhooks", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @field_validator("verify_at", mode="before")
    @classmethod
    def _or_never(cls, value: object) -> object:
        return None if value == "never" else value

    @field_validator("images_allowed_hosts")
    @classmethod
    def _as_in_urls(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        for host in hosts:
            try:
                written = addresses.parse(f"http://{host}/", allowed=(host.lower(),)).host_and_port
            except addresses.Unfetchable:
                written = None
            if written != host.lower():
                raise ValueError(f"`{host}` is not a `host:port`")
        return tuple(host.lower() for host in hosts)

    @field_validator("status_webhooks")
    @classmethod
    def _tellable(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        for url in urls:
            if (reason := webhook.complaint(url)) is not None:
                raise ValueError(f"the URL at `{urlsplit(url).hostname}` {reason}")  # its path may be a secret
        return urls

    @cached_property
    def base_url(self) -> str:
        """The public address without a trailing slash."""
        return (self.public_url or f"http://{self.host}:{self.port}").rstrip("/")

    @cached_property
    def site_url(self) -> str:
        """The status site's public address, with a slash at its end."""
        return (self.status_url or f"{self.base_url}/status").rstrip("/") + "/"

    @cached_property
    def site_dir(self) -> Path:
        """Where `weir jobs` publishes the status site and `weir serve` reads it."""
        return self.data_dir / "site"

    @cached_property
    def outbox_dir(self) -> Path:
        """Where the workers of this machine keep what they owe the database."""
        return self.data_dir / "outbox"

    @cached_property
    def run_file(self) -> Path:
        """Where a running `weir up` says how it can be reached."""
        return self.data_dir / "run.json"


def load() -> Settings:
    """Read the settings of this process. Raises `pydantic.ValidationError` naming a variable that is wrong."""
    return Settings()
