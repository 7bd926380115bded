"""Read the header of a GGUF file, and advise on files that cannot be used.

The layout is llama.cpp's: magic, version, counts, then key-value pairs whose strings carry their length in 64 bits.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass

MAGIC = b"GGUF"
STRING, ARRAY = 8, 9
WIDTHS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of value types with a fixed width."""
MOST_PAIRS, LONGEST = 10_000, 1 << 16


@dataclass(frozen=True, slots=True)
class GgufHeader:
    architecture: str
    base: str
    """The model it was converted from, as `org/name`; '' if the file does not say."""
    kind: str = "model"
    """`adapter` for a LoRA adapter."""


def read_header(data: bytes) -> GgufHeader | None:
    """Read a header from a file's first MiB, even if truncated; None if it is not a GGUF."""
    if data[:4] != MAGIC:
        return None
    pairs = _pairs(data)
    url = pairs.get("general.base_model.0.repo_url", "") or pairs.get("general.source.url", "")
    base = url.removeprefix("https://huggingface.co/") if url.startswith("https://huggingface.co/") else ""
    return GgufHeader(pairs.get("general.architecture", "unknown"), base, pairs.get("general.type", "model"))


def _pairs(data: bytes) -> Mapping[str, str]:
    """Return the pairs whose values are strings."""
    result: dict[str, str] = {}
    try:
        (pairs,) = struct.unpack_from("<Q", data, 16)
        at = 24
        for _ in range(min(pairs, MOST_PAIRS)):
            key, at = _text(data, at)
            (kind,) = struct.unpack_from("<I", data, at)
            at += 4
            if kind == STRING:
                result[key], at = _text(data, at)
            elif kind == ARRAY:
                break  # vocabularies follow, after the facts about the model
            else:
                at += WIDTHS[kind]
    except (struct.error, KeyError, ValueError):
        pass  # truncated, or with a newer value type: use what was read
    return result


def _text(data: bytes, at: int) -> tuple[str, int]:
    (length,) = struct.unpack_from("<Q", data, at)
    if length > LONGEST or at + 8 + length > len(data):
        raise ValueError("too long")
    return data[at + 8 : at + 8 + length].decode("utf-8", "replace"), at + 8 + length
