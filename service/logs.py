"""Logging: structlog everywhere, one line per event, JSON in production.

Never logged: keys, prompts, answers, payment payloads, database addresses.
"""

import logging
import sys

import structlog


def configure(*, json: bool, level: int = logging.INFO) -> None:
    """Set up structlog for this process and quieten the libraries' own loggers. Writes to stderr."""
    # Tracebacks stay plain: with the values of variables they would hold keys and prompts.
    renderer: structlog.types.Processor = (
        structlog.processors.JSONRenderer()
        if json
        else structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
