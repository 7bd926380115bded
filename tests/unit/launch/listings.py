"""Listings of files that do not exist."""

import json
from collections.abc import Mapping

from launch.files.listing import Listing


def listing_of(small: Mapping[str, object], large: Mapping[str, int] | None = None, where: str = "a/model") -> Listing:
    """Return a listing. `small`: name to content, as JSON or as text. `large`: name to size."""
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in small.items()}
    sizes = {name: len(text.encode()) for name, text in texts.items()} | dict(large or {})
    return Listing(where, sizes, lambda name: texts[name].encode())
