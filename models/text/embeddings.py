"""Embeddings: a SentenceTransformer's vectors."""

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from models.batching.engine import BatchedEngine
from models.batching.plan import Item
from models.batching.worker import Batcher
from models.messages import EmbedRequest, EmbedResult, Usage
from models.text.bert import of_embedder
from models.text.encoder import Encoder
from models.text.engine import load
from models.text.half import is_exact, open_settled
from models.text.heads import PoolingHead, Row
from models.text.loading import context_of, leaves_padding, packs, run_apart, vocabulary_of
from models.text.tokens import Going, Ids, Tokens, always, check_template, while_awaited
from registry.errors import BadRequest, EngineFailed
from registry.recipes.definition import Recipe

INLINE = 4096
"""Characters up to which tokenising is faster than using a thread (about 0.3 ms)."""
PROBE = ["The engine must give what its library gives.", "Yes."]
LONG_PROBE = " ".join(60 * PROBE)
"""A long probe, because values overflow in 16 bits first in long texts."""
TOLERANCE = 1e-4
"""Largest difference between our values and the library's, both in float32."""
TOLERANCE_16_BIT = 0.02
"""The same in 16 bits, where the order of sums matters."""
LIKE_ALONE, LIKE_ALONE_16_BIT = 0.99999, 0.998
"""Least cosine between an input's vectors in a padded step and alone; below it, inputs run in separate steps."""


def engine() -> "BatchedEngine[EmbeddingModel]":
    return BatchedEngine("embedding", partial(load, EmbeddingModel, "embed"))


class EmbeddingModel:
    """A loaded embedding model, a `models.text.engine.TextModel`."""

    batcher: Batcher[Ids, Row]

    def __init__(self, recipe: Recipe, opened: Any, device: str) -> None:
        self._expected = _library_answer(opened, PROBE)  # before Tokens, which sets truncation
        tokens = Tokens(opened.tokenizer, vocabulary_of(opened), context_of(recipe, opened))
        bert = of_embedder(opened, device) if packs(recipe) else None
        self.encoder = Encoder(opened, tokens, device, PoolingHead(opened), bert)
        if leaves_padding(recipe, device) and not self.encoder.packed:
            inputs = tokens.inputs([*PROBE, LONG_PROBE], "", truncate=True)
            self.encoder.leave_padding(inputs, partial(_is_unchanged, single=is_exact(opened)))
        self._prompts, self._default = dict[str, str](opened.prompts), opened.default_prompt_name
        self._skips_prompt = any(getattr(module, "include_prompt", True) is False for module in opened)
        """Whether the pooling omits prompts."""
        self._truncates = recipe.truncate
        self._sizes = frozenset(map(_whole, _listed(recipe.engine.flags.get("matryoshka_dimensions", []))))
        self._dimensions = 0

    @staticmethod
    def open_files(library: Any, recipe: Recipe, path: Path, device: str) -> Any:
        return open_settled(recipe, path, device, library.SentenceTransformer, _long_answer, _is_like)

    async def check(self, *, single: bool) -> None:
        """Also refuses sizes of vectors that the model does not have. Models that need more than token ids differ."""
        alone = np.concatenate([await self.known([text]) for text in PROBE])
        self._dimensions = int(alone.shape[1])
        if not _is_same(alone, self._expected, single=single):
            raise EngineFailed("this model does not embed plain text by its token ids: it cannot be served here")
        if not _are_alike(await self.known(), alone, single=single):
            run_apart(self.batcher.limits)
        if wrong := [size for size in self._sizes if not 0 < size <= self._dimensions]:
            raise EngineFailed(f"matryoshka_dimensions has {wrong[0]}, the model {self._dimensions} dimensions")

    async def embed(self, request: EmbedRequest) -> tuple[EmbedResult, Usage]:
        if request.dimensions is not None and request.dimensions not in self._sizes | {self._dimensions}:
            smaller = sorted(self._sizes - {self._dimensions})
            raise BadRequest(
                f"This model's vectors have {self._dimensions} dimensions"
                + (f" and may be cut to {', '.join(map(str, smaller))}." if smaller else " and cannot be cut.")
                + f" Leave 'dimensions' out, or do not send {request.dimensions}.",
                param="dimensions",
            )
        vectors, inputs, batch = await self._vectors(request)
        counts = [len(given.ids) for given in inputs]
        result = EmbedResult(
            vectors=vectors.tobytes(),
            dimensions=int(vectors.shape[1]),
            tokens=counts,
            warning=self._cut_warning(inputs) if request.truncate is None else "",
        )
        return result, Usage(prompt_tokens=sum(counts), batch=batch)

    async def _vectors(self, request: EmbedRequest) -> tuple[Any, Sequence[Ids], int]:
        """Return the vectors, the inputs as tokens, and the number of inputs in the step that computed them."""
        if not request.inputs:
            raise BadRequest("'input' is empty: send at least one text or token list.", param="input")
        prompt = self._prompt(request.prompt_name, request.prompt_fallbacks)
        size = sum(len(given) for given in request.inputs)
        if size <= INLINE:
            inputs = self._tokenised(request, prompt)
        else:
            longest = max(map(len, request.inputs))
            inputs = await while_awaited(lambda going: self._tokenised(request, prompt, going), longest)
        answers = await self.batcher.submit([Item(i, len(given.ids), given) for i, given in enumerate(inputs)])
        if len(inputs) * self._dimensions <= INLINE * 16:
            return _finish(answers.results, request.dimensions, request.normalize), inputs, answers.batch
        vectors = await asyncio.to_thread(_finish, answers.results, request.dimensions, request.normalize)
        return vectors, inputs, answers.batch

    def _tokenised(self, request: EmbedRequest, prompt: str, going: Going = always) -> Sequence[Ids]:
        tokens = self.encoder.tokens
        length = 0
        if prompt and self._skips_prompt:
            length = len(tokens.template.before) + len(tokens.plain([prompt])[0])
        truncate = self._truncates if request.truncate is None else request.truncate
        inputs = tokens.inputs(request.inputs, prompt, truncate, going)
        return [given._replace(prompt=length) for given in inputs] if length else inputs

    def _cut_warning(self, inputs: Sequence[Ids]) -> str:
        """Return a warning about inputs that were cut; '' if none was."""
        cut = [index for index, given in enumerate(inputs) if given.is_cut]
        if not cut:
            return ""
        context = self.encoder.tokens.context
        return f"inputs were cut to this model's {context} tokens: {len(cut)} of {len(inputs)}, first input {cut[0]}"

    def _prompt(self, name: str | None, instead: Sequence[str]) -> str:
        if name is None:
            name = self._default
        if name is None:
            return ""
        names = [known for known in (name, *instead) if known in self._prompts]
        if not names:
            raise BadRequest(
                f"This model has no prompt '{name}'; it has {', '.join(sorted(self._prompts)) or 'none'}.",
                param="prompt_name",
            )
        # the library adds empty 'query' and 'document' prompts to models whose own prompts have other names
        return next(filter(None, map(self._prompts.get, names)), "")

    async def known(self, texts: Sequence[str] = PROBE) -> Any:
        """Return vectors of texts; those of PROBE are compared before and after a sleep."""
        return (await self._vectors(EmbedRequest(inputs=list(texts), truncate=True, normalize=False)))[0]


def _finish(rows: Sequence[Row], dimensions: int | None, normalize: bool) -> npt.NDArray[np.float32]:
    """Return len(rows) x dimensions, little-endian, cut and (if requested) normalised."""
    matrix = np.stack(rows).astype("<f4", copy=False)
    if dimensions is not None and dimensions < matrix.shape[1]:
        matrix = matrix[:, :dimensions]
    if normalize:
        length = np.linalg.norm(matrix, axis=1, keepdims=True)
        matrix = matrix / np.maximum(length, 1e-12)
    return np.ascontiguousarray(matrix, dtype="<f4")


def _library_answer(model: Any, texts: list[str]) -> Any:
    """Return the library's vectors of texts, computed one by one and so without padding."""
    check_template(model.tokenizer, vocabulary_of(model))
    return model.encode(texts, batch_size=1, show_progress_bar=False)


def _long_answer(model: Any) -> Any:
    return _library_answer(model, [*PROBE, LONG_PROBE])


def _is_same(vectors: Any, expected: Any, *, single: bool) -> bool:
    """Return whether our vectors equal the library's. single: computed in float32."""
    ours, theirs = np.asarray(vectors), np.asarray(expected)
    tolerance = TOLERANCE if single else TOLERANCE_16_BIT
    return ours.shape == theirs.shape and np.allclose(ours, theirs, atol=tolerance, rtol=tolerance)


def _are_alike(vectors: Any, others: Any, *, single: bool) -> bool:
    """Return whether vectors have the same directions as others. single: computed in float32."""
    least = LIKE_ALONE if single else LIKE_ALONE_16_BIT
    return all(cosine(*both) >= least for both in zip(vectors, others, strict=True))


def _is_unchanged(vectors: list[Row], expected: list[Row], *, single: bool) -> bool:
    return _is_same(vectors, expected, single=single) and _are_alike(vectors, expected, single=single)


def _is_like(narrow: Any, exact: Any) -> bool:
    vectors = zip(np.asarray(narrow, np.float32), np.asarray(exact, np.float32), strict=True)
    return all(cosine(*both) >= LIKE_ALONE_16_BIT for both in vectors)  # NaN compares as False


def cosine(one: Row, other: Row) -> float:
    """Return the cosine of two vectors. A vector of zeros has 1 to another one, and 0 to all others."""
    lengths = np.linalg.norm(one) * np.linalg.norm(other)
    return float(one @ other / lengths) if lengths else float(np.array_equal(one, other))


def _listed(value: object) -> list[object]:
    return list(value) if isinstance(value, list) else []


def _whole(value: object) -> int:
    try:
        return int(str(value))
    except ValueError:
        raise EngineFailed(f"matryoshka_dimensions has {value!r}: write whole numbers") from None
