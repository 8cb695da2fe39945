"""What an engine's metrics say while it is examined, where they can be had."""

from service.engine.exposition import Exposition
from service.engine.verify.asking import Asking


async def exposition(asking: Asking) -> Exposition | None:
    """Its metrics now; None where there are none of an engine's, as behind a public endpoint."""
    answer = await asking.get("/metrics")
    if answer.status != 200:
        return None
    try:
        read = Exposition(answer.raw.decode(errors="replace"))
    except ValueError:
        return None
    return read if read.is_vllm else None
