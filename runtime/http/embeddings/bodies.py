"""Bodies and answers of the embedding endpoints."""

import asyncio
import binascii
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import msgspec
import orjson
from msgspec import Meta

from models.messages import EmbedRequest, EmbedResult, Event
from registry.base.lazy import LazyModule, import_in_thread
from registry.errors import BadRequest, EngineFailed
from runtime.http.bodies import ADAPTER_FIELDS
from runtime.http.errors import Dialect
from runtime.http.schema import COUNT, NUMBER, STRING, array, component, either, record

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    np = LazyModule("numpy")

Token = Annotated[int, Meta(ge=0, le=2**31 - 1)]
_Text = Annotated[str, Meta(extra_json_schema={"minLength": 1})]
_Tokens = Annotated[list[Token], Meta(extra_json_schema={"minItems": 1})]
_List = Annotated[list[_Text | Token | _Tokens], Meta(extra_json_schema={"minItems": 1})]
Inputs = Annotated[
    _Text | _List,
    Meta(
        description="A string, a list of strings, a list of token ids, or a list of such lists, none of them empty; "
        "2,048 inputs where the server is not set otherwise.",
        examples=["a warm kitchen", ["a warm kitchen", "a cold cellar"], [101, 2023, 102], [[101, 102], [101, 7, 102]]],
    ),
]
"""`input_list` checks for empty values, with clearer errors than a schema; `runtime.http.bodies` counts the inputs."""
CUT = "Cut the vectors to this length and normalise them again, if the model allows it."
Dimensions = Annotated[int, Meta(ge=1, le=2**20, description=CUT)]
DimensionsOrZero = Annotated[
    int,
    Meta(ge=0, le=2**20, description=f"{CUT} 0, which Infinity's client sends, leaves them as they are."),
]

PROMPTS = {
    "query": ["query", "search_query"],
    "search_query": ["query", "search_query"],
    "document": ["document", "passage", "corpus", "search_document"],
    "search_document": ["document", "passage", "corpus", "search_document"],
    "passage": ["passage", "document", "corpus", "search_document"],
}
"""Values of `input_type` of several vendors, with the names under which models have the matching prompt."""
CHANGING = frozenset((
    *ADAPTER_FIELDS, "add_special_tokens", "bits", "embd_normalize", "embed_dtype", "embed_overrides",
    "embedding_type", "embedding_types", "endianness", "input_type", "instruction", "late_chunking", "modality",
    "normalize", "normalized", "output_dimension", "output_dtype", "prompt", "prompt_name", "return_multivector",
    "task", "truncate_dim", "truncation_direction", "truncation_side", "use_activation",
))  # fmt: skip
"""Fields of other servers that change vectors. Each body here has some of them."""
_SAME = {
    "instruction": "write it into each input", "output_dimension": "send 'dimensions'",
    "prompt": "write it into each input", "truncate_dim": "send 'dimensions'",
}  # fmt: skip
INSTEAD: Mapping[Dialect, Mapping[str, str]] = {
    Dialect.OPENAI: {
        **_SAME, "embedding_type": "send 'encoding_format'", "prompt_name": "send 'input_type'",
        "task": "send 'input_type'",
    },
    Dialect.TEI: {**_SAME, "input_type": "send 'prompt_name'", "task": "send 'prompt_name'"},
}  # fmt: skip
"""Advice on fields that have another name here."""
DEFAULTS: Mapping[str, Sequence[object]] = {
    "add_special_tokens": (True,), "embd_normalize": (2,), "embed_dtype": ("float32",), "embedding_type": ("float",),
    "embedding_types": (["float"],), "endianness": ("little", "native"), "instruction": ("",),
    "late_chunking": (False,), "modality": ("text",), "normalize": (True,), "normalized": (True,),
    "output_dtype": ("float",), "prompt": ("",), "return_multivector": (False,),
    "truncation_direction": ("right", "Right"), "truncation_side": ("right",), "use_activation": (True,),
}  # fmt: skip
"""Values with which those fields have no effect. Clients of vLLM, llama.cpp, Jina and Infinity send some of them."""


class EmbeddingsBody(msgspec.Struct, kw_only=True):
    """OpenAI's embedding request."""

    model: Annotated[str, Meta(description="Id or alias of an embedding model.", examples=["starter-embed"])]
    input: Inputs
    dimensions: DimensionsOrZero | None = None
    encoding_format: Annotated[
        Literal["float", "base64"] | None,
        Meta(description="float: JSON numbers (the default). base64: little-endian float32, several times smaller."),
    ] = None
    user: Annotated[str | None, Meta(description="Accepted; not stored.")] = None
    input_type: Annotated[
        Literal["query", "document", "search_query", "search_document", "passage"] | None,
        Meta(description="Put the model's prompt for queries or documents before each input."),
    ] = None
    truncate: Annotated[
        bool | Literal["NONE", "START", "END"] | None,
        Meta(
            description="Cut inputs over the context length instead of refusing them; default: as in the recipe. "
            "NVIDIA's clients send NONE (false) or END (true); START is not available."
        ),
    ] = None
    truncation: Annotated[bool | None, Meta(description="Voyage's name of `truncate`.")] = None
    truncate_prompt_tokens: Annotated[
        int | None, Meta(description="vLLM's field; only -1 (the model's context length) can be honoured.")
    ] = None

    def request(self) -> EmbedRequest:
        """Raises BadRequest for inputs that are empty or mixed."""
        if self.truncate_prompt_tokens not in (None, -1):
            raise BadRequest(
                "'truncate_prompt_tokens' may only be -1, the model's context length. Cut the inputs yourself, or "
                "send 'truncate': true.",
                param="truncate_prompt_tokens",
                code="unsupported_value",
            )
        if self.truncate == "START":
            raise BadRequest(
                "Inputs can be cut at the end only: send 'truncate': true.", param="truncate", code="unsupported_value"
            )
        truncate = self.truncation if self.truncate is None else self.truncate in (True, "END")
        names = PROMPTS[self.input_type] if self.input_type else []
        return EmbedRequest(
            inputs=input_list(self.input, "input"),
            prompt_name=names[0] if names else None,
            prompt_fallbacks=names[1:],
            dimensions=self.dimensions or None,
            truncate=True if self.truncate_prompt_tokens == -1 else truncate,
        )


class EmbedBody(msgspec.Struct, kw_only=True):
    """The request of Text Embeddings Inference."""

    inputs: Inputs
    model: Annotated[str | None, Meta(description="Ours: needed where there are several embedding models.")] = None
    normalize: Annotated[bool | None, Meta(description="Vectors of length 1 (the default).")] = None
    truncate: Annotated[
        bool | None, Meta(description="Cut inputs that are over the context length; default: as in the recipe.")
    ] = None
    truncation_direction: Literal["Right", "Left", "right", "left"] | None = None
    prompt_name: Annotated[str | None, Meta(description="Name of one of the model's prompts, such as query.")] = None
    dimensions: Dimensions | None = None

    def request(self) -> EmbedRequest:
        """Raises BadRequest for inputs that are empty or mixed."""
        is_left = self.truncation_direction in ("Left", "left")
        if self.truncate and is_left:
            raise BadRequest(
                "Inputs can be cut on the right only. Leave 'truncation_direction' out.",
                param="truncation_direction",
                code="unsupported_value",
            )
        return EmbedRequest(
            inputs=input_list(self.inputs, "inputs"),
            prompt_name=self.prompt_name,
            dimensions=self.dimensions,
            truncate=False if is_left else self.truncate,
            normalize=self.normalize is not False,
        )


def input_list(value: str | list[str | int | list[int]], param: str) -> list[str | list[int]]:
    """The inputs as a list, in the client's order. Raises BadRequest for empty or mixed inputs."""
    items: list[str | list[int]]
    if isinstance(value, str):
        items = [value]
    elif not value:
        raise BadRequest(f"'{param}' is an empty list. Send at least one input.", param=param)
    else:
        kinds = set(map(type, value))
        if len(kinds) > 1:
            raise BadRequest(f"'{param}' mixes strings, token ids and lists. Send one kind only.", param=param)
        items = [value] if kinds == {int} else value  # type: ignore[list-item, assignment]
    for index, item in enumerate(items):
        if not item:
            where = param if isinstance(value, str) else f"{param}[{index}]"
            raise BadRequest(f"'{where}' is empty. Every input needs at least one character or token.", param=where)
    return items


SLICE = 32 * 1024
"""Numbers formatted without yielding to the event loop, which takes milliseconds."""

Matrix: TypeAlias = "NDArray[np.float32]"
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


async def received(events: AsyncIterator[Event], inputs: int) -> tuple[Matrix, int]:
    """The engine's vectors as a matrix of inputs x dimensions, and its tokens.

    Raises EngineFailed if its answer is inconsistent.
    """
    results = [event async for event in events if isinstance(event, EmbedResult)]
    if len(results) != 1:
        raise EngineFailed("The engine answered with something other than one embedding.")
    await import_in_thread("numpy")
    result = results[0]
    rows, columns = len(result.tokens), result.dimensions
    if rows != inputs or len(result.vectors) != rows * columns * 4:
        raise EngineFailed(f"The engine answered {inputs} inputs with {rows} vectors or broken ones.")
    vectors = np.frombuffer(result.vectors, dtype="<f4").reshape(rows, columns)
    if not np.isfinite(vectors).all():
        raise EngineFailed("The engine's vectors hold values that are not finite.")
    return vectors, sum(result.tokens)


def numbers(rows: "NDArray[Any]") -> list[bytes]:
    """Each row as a JSON array, floats with the fewest digits from which the same float32 can be read."""
    return [orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY) for row in rows]


def base64(rows: Matrix) -> list[bytes]:
    """Each row as a JSON string: base64 of little-endian float32."""
    return [b'"%s"' % binascii.b2a_base64(row, newline=False) for row in rows]


async def write_rows(vectors: Matrix, write: Callable[[Matrix], list[bytes]]) -> list[bytes]:
    """Format each row with `write`, a slice at a time."""
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
