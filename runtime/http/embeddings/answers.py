"""Vectors as JSON, in slices so that a large answer does not block the event loop."""

import asyncio
import binascii
from collections.abc import Callable

import msgspec
import numpy as np
import orjson
from numpy.typing import NDArray

from models.messages import EmbedResult
from registry.errors import EngineFailed
from runtime.http.schema import COUNT, NUMBER, STRING, array, component, either, record

SLICE = 32 * 1024
"""Numbers that are written without a pause: 2 to 4 ms as text."""

Matrix = NDArray[np.float32]
EMBEDDINGS = component(
    "Embeddings",
    record(
        {
            "object": {"const": "list"},
            "data": array(
                record(
                    {
                        "object": {"const": "embedding"},
                        "index": COUNT,
                        "embedding": either(array(NUMBER), {**STRING, "contentEncoding": "base64"}),
                    }
                )
            ),
            "model": STRING,
            "usage": record({"prompt_tokens": COUNT, "total_tokens": COUNT}),
        }
    ),
)
VECTORS = component("Vectors", array(array(NUMBER)))


def matrix(result: EmbedResult, inputs: int) -> Matrix:
    """The vectors as inputs x dimensions. Raises EngineFailed when the engine's answer does not add up."""
    rows, columns = len(result.tokens), result.dimensions
    if rows != inputs or len(result.vectors) != rows * columns * 4:
        raise EngineFailed(f"The engine answered {inputs} inputs with {rows} vectors or broken ones.")
    vectors = np.frombuffer(result.vectors, dtype="<f4").reshape(rows, columns)
    if not np.isfinite(vectors).all():
        raise EngineFailed("The engine's vectors hold values that are not finite.")
    return vectors


def numbers(rows: Matrix) -> list[bytes]:
    """Each row as a JSON array. float32 is written with the fewest digits that read back to the same float32."""
    return [orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY) for row in rows]


def base64(rows: Matrix) -> list[bytes]:
    """Each row as a JSON string: base64 of little-endian float32."""
    return [b'"%s"' % binascii.b2a_base64(row, newline=False) for row in rows]


async def write_rows(vectors: Matrix, write: Callable[[Matrix], list[bytes]]) -> list[bytes]:
    """Each row as `write` writes it, a slice at a time."""
    step = max(1, SLICE // max(1, vectors.shape[1]))
    parts: list[bytes] = []
    for start in range(0, len(vectors), step):
        if start:
            await asyncio.sleep(0)
        parts += write(vectors[start : start + step])
    return parts


async def openai_json(vectors: Matrix, model: str, tokens: int, *, as_base64: bool) -> bytes:
    """The body of /v1/embeddings."""
    rows = await write_rows(vectors, base64 if as_base64 else numbers)
    data = b",".join(b'{"object":"embedding","index":%d,"embedding":%s}' % pair for pair in enumerate(rows))
    usage = b'{"prompt_tokens":%d,"total_tokens":%d}' % (tokens, tokens)
    return b'{"object":"list","data":[%s],"model":%s,"usage":%s}' % (data, msgspec.json.encode(model), usage)


async def tei_json(vectors: Matrix) -> bytes:
    """The body of /embed: a bare list of vectors."""
    return b"[%s]" % b",".join(await write_rows(vectors, numbers))
