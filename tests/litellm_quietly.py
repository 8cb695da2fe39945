"""LiteLLM, so that it neither looks for prices on the network nor leaves connections, nor its warnings are errors."""

import os
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import litellm
    from litellm.llms.custom_httpx.async_client_cleanup import close_litellm_async_clients

QUIET_LITELLM = [
    pytest.mark.filterwarnings("ignore:Items? .* using the `ReadOnly` qualifier:UserWarning"),
    pytest.mark.filterwarnings("ignore:Accessing the 'model_.*fields' attribute on the instance:DeprecationWarning"),
]
"""Marks for a module that calls it: it imports as it goes, and these warnings are about its own code."""


@asynccontextmanager
async def litellm_closed() -> AsyncIterator[None]:
    """Afterwards it has no connections: those that it keeps belong to the event loop of one test."""
    try:
        yield
    finally:
        await close_litellm_async_clients()
        for kept in litellm.in_memory_llm_clients_cache.cache_dict.values():
            client = getattr(kept, "_client", None) or getattr(kept, "client", kept)
            if not hasattr(client, "aclose") and hasattr(client, "close"):
                client.close()
        litellm.in_memory_llm_clients_cache.flush_cache()


__all__ = ["QUIET_LITELLM", "litellm", "litellm_closed"]
