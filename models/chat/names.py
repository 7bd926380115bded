"""The name in an answer: the engine knows digests, the client sees the name that it asked for."""

import json
import re
from collections.abc import Mapping

from msgspec import Raw


class Renamer:
    """Puts `shown` where the engine wrote `served`."""

    def __init__(self, served: str, shown: str) -> None:
        self._pattern = re.compile(rb'("model"\s*:\s*)' + re.escape(json.dumps(served, ensure_ascii=False).encode()))
        self._shown = json.dumps(shown, ensure_ascii=False).encode()
        self._same = served == shown
        self.told: Mapping[str, Raw] = {} if self._same else {"model": Raw(self._shown)}
        """For answers that hold objects of others, which may have a `model` too: by the field (`schemas.shape`)."""

    def __call__(self, data: bytes) -> bytes:
        """`data` holds whole `"model":"..."` pairs, and no JSON object of a client's or model's but inside a string:
        there the quotes of such a pair are escaped."""
        if self._same:
            return data
        return self._pattern.sub(lambda match: match.group(1) + self._shown, data)
