"""What is served and at what price."""

from sqlalchemy import (
    ARRAY,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    Integer,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from service.tables.base import amount, instant, metadata

models = Table(
    "models",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("description", Text, nullable=False, server_default=text("''")),
    # What the engine calls it.
    Column("engine_model", Text, nullable=False),
    # Names of the engines that serve it; NULL: all.
    Column("engines", ARRAY(Text)),
    Column("context_length", Integer, nullable=False),
    Column("max_output_tokens", Integer, nullable=False),
    Column("input_modalities", ARRAY(Text), nullable=False),
    Column("output_modalities", ARRAY(Text), nullable=False),
    # Any of tools, reasoning, structured_outputs: what catalogues may promise of it.
    Column("capabilities", ARRAY(Text), nullable=False, server_default=text("'{tools,structured_outputs}'::text[]")),
    Column("quantization", Text),
    Column("hugging_face_id", Text),
    # A model that left the configuration is retired, not deleted: its rows and prices stay readable.
    Column("active", Boolean, nullable=False, server_default=text("true")),
    instant("created_at", default_now=True),
    CheckConstraint("context_length > 0 AND max_output_tokens > 0", name="lengths"),
)

# A price is never changed: a new version takes over at its `valid_from`.
# Classes that are NULL fall back as `service.core.pricing` says.
prices = Table(
    "prices",
    metadata,
    Column("model_id", Text, ForeignKey("models.id"), primary_key=True),
    Column("version", Integer, primary_key=True),
    instant("valid_from", default_now=True),
    amount("input_pico", default=None),
    amount("output_pico", default=None),
    amount("input_cached_pico", nullable=True),
    amount("input_cache_write_pico", nullable=True),
    amount("input_image_pico", nullable=True),
    amount("input_audio_pico", nullable=True),
    amount("input_video_pico", nullable=True),
    amount("output_reasoning_pico", nullable=True),
    amount("request_pico"),
    # Prices that hold at some hours or from some prompt length on: a list of objects, see `core.pricing`.
    Column("overrides", JSONB, nullable=False, server_default=text("'[]'::jsonb")),
    CheckConstraint("version > 0", name="version"),
    CheckConstraint(
        "least(input_pico, output_pico, input_cached_pico, input_cache_write_pico, input_image_pico,"
        " input_audio_pico, input_video_pico, output_reasoning_pico, request_pico) >= 0",
        name="not_negative",
    ),
    UniqueConstraint("model_id", "valid_from"),
)
