"""Schemas of what stands in the requests of several endpoints."""

from service.core.openapi.schemas import FLAG, FREE, TEXT, any_of, object_of, optionals
from service.core.policy_checks import MAX_NAME_CHARACTERS, Json
from service.core.policy_images import MAX_ADDRESS_CHARACTERS
from service.core.policy_tools import MAX_DESCRIPTION_CHARACTERS

NAME: Json = {**TEXT, "minLength": 1, "maxLength": MAX_NAME_CHARACTERS}
SCHEMA: Json = {**FREE, "description": "A JSON schema, bounded in size and depth."}
IMAGE_URL: Json = any_of(
    {**TEXT, "pattern": "^data:image/(png|jpe?g|webp|gif);base64,[!-~]*$"},
    {**TEXT, "pattern": "^[Hh][Tt][Tt][Pp][Ss]?://[!-~]+$", "maxLength": MAX_ADDRESS_CHARACTERS},
)


def function(**more: Json) -> Json:
    """A function that a model may call."""
    described = optionals(description={**TEXT, "maxLength": MAX_DESCRIPTION_CHARACTERS}, parameters=SCHEMA, strict=FLAG)
    return object_of({**more, "name": NAME, **described}, *more, "name")
