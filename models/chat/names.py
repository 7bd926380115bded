"""The name in an answer: the engine knows digests, the client sees the name that it asked for."""

import json
import re
from collections.abc import Mapping

from msgspec import Raw


class Renamer:
    """Puts `display_name` where the engine wrote `served`."""

    def __init__(self, served: str, display_name: str) -> None:
        self._pattern = re.compile(rb'("model"\s*:\s*)' + re.escape(json.dumps(served, ensure_ascii=False).encode()))
        self._display_name = json.dumps(display_name, ensure_ascii=False).encode()
        self._same = served == display_name
        self.overrides: Mapping[str, Raw] = {} if self._same else {"model": Raw(self._display_name)}
        """For answers that hold objects of others, which may have a `model` too: by the field (`schemas.shape`)."""

    def __call__(self, data: bytes) -> bytes:
        """`data` holds whole `"model":"..."` pairs, and no JSON object of a client's or model's but inside a string:
        there the quotes of such a pair are escaped."""
        if self._same:
            return data
        return self._pattern.sub(lambda match: match.group(1) + self._display_name, data)
