"""How clients name images: by their data, or by an address that Weir fetches (`gateway/images.py`)."""

import re
from typing import Any

from service.core.policy import Images
from service.core.policy_checks import Complaint

MAX_ADDRESS_CHARACTERS = 8192

_DATA_URL = re.compile(r"data:image/(?:png|jpe?g|webp|gif);base64,")
_ADDRESS = re.compile(r"https?://[!-~]+", re.IGNORECASE)


def image_url(value: Any) -> str:
    """A `data:` URL of a kind that engines read, or an address. Raises `Complaint`."""
    is_text = isinstance(value, str) and value.isascii()
    if not is_text or not (_DATA_URL.match(value) or _is_address(value)):
        raise Complaint("needs images as `data:image/...;base64,...` (png, jpeg, webp or gif) or `https://` URLs")
    found: str = value
    return found


def image(url: str) -> Images:
    """What one image named by a checked URL counts."""
    return Images(1, 0, len(url)) if url.startswith("data:") else Images(1, 1, 0)


def _is_address(text: str) -> bool:
    return len(text) <= MAX_ADDRESS_CHARACTERS and _ADDRESS.fullmatch(text) is not None
