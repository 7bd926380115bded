"""The name in an answer: the engine knows digests, the client sees the name that it asked for."""

import json
import re


class Renamer:
    """Puts `shown` where the engine wrote `served`, in bytes that hold whole `"model":"..."` pairs.

    Such a pair cannot lie inside a JSON string: there its quotes are escaped.
    """

    def __init__(self, served: str, shown: str) -> None:
        self._pattern = re.compile(rb'("model"\s*:\s*)' + re.escape(json.dumps(served, ensure_ascii=False).encode()))
        self._shown = json.dumps(shown, ensure_ascii=False).encode()
        self._same = served == shown

    def __call__(self, data: bytes) -> bytes:
        if self._same:
            return data
        return self._pattern.sub(lambda match: match.group(1) + self._shown, data)
