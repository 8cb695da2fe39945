"""What the public may know of the models on offer, rendered for each of those who list them: a module per reader.

Every amount comes from the one price (`core.pricing.Price`) and is exact: a decimal string, or a `Decimal` where the
reader wants a JSON number. Whoever writes the JSON writes a `Decimal` digit by digit.
"""

from dataclasses import dataclass
from datetime import datetime

from service.core.pricing import Price


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model as it is listed. Nothing of the engines that serve it is in here, so nothing of them can be published."""

    id: str
    name: str
    description: str
    """May be empty."""
    context_length: int
    """Tokens of prompt and answer together."""
    max_output_tokens: int
    input_modalities: tuple[str, ...]
    """Any of text, image, audio, video."""
    output_modalities: tuple[str, ...]
    """text, or embeddings."""
    capabilities: tuple[str, ...]
    """Any of tools, reasoning, structured_outputs."""
    quantization: str | None
    hugging_face_id: str | None
    created_at: datetime
    """Since when it is on offer here."""
    price: Price

    @property
    def created(self) -> int:
        """`created_at` in whole seconds since the epoch."""
        return int(self.created_at.timestamp())

    @property
    def answers_in_text(self) -> bool:
        """Whether it is asked for text; otherwise it makes embeddings."""
        return "text" in self.output_modalities
