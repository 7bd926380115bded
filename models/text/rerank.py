"""Reranking: a cross-encoder's logits."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from models.batching.engine import BatchedEngine
from models.batching.plan import Item
from models.batching.worker import Batcher
from models.messages import RerankRequest, RerankResult, Usage
from models.text.bert import of_scorer
from models.text.encoder import Encoder
from models.text.engine import load
from models.text.half import is_exact, open_settled
from models.text.heads import ScoringHead
from models.text.loading import context_of, leaves_padding, packs, padding_of, run_apart, vocabulary_of
from models.text.pairs import Pairs
from models.text.tokens import Ids, Tokens, check_template, while_awaited
from registry.errors import BadRequest, EngineFailed
from registry.recipes.definition import Recipe

INLINE = 4096
"""Characters up to which tokenising is faster than using a thread."""
PROBE = (("What must hold?", "The engine must give what its library gives."), ("Yes?", "No."))
LONG_PROBE = (*PROBE, (PROBE[0][0], 60 * PROBE[0][1]))
BESIDE = (3 * PROBE[0][1], "No.", "As far as anybody knows.", PROBE[0][1], "Yes?")
"""Documents whose scores in one step are compared with their scores alone."""
TOLERANCE, TOLERANCE_16_BIT = 1e-3, 0.1
"""Largest difference between our logits and the library's, in 32 and in 16 bits."""
STEPS_16_BIT = 2**-5
"""Additional tolerance in 16 bits, relative to the logit: two to four steps of bfloat16, whose numbers from 8 to 16 are
0.0625 apart."""


def engine() -> "BatchedEngine[RerankingModel]":
    return BatchedEngine("rerank", partial(load, RerankingModel, "rerank"))


class RerankingModel:
    """A loaded cross-encoder, a `models.text.engine.TextModel`."""

    batcher: Batcher[Ids, float]

    def __init__(self, recipe: Recipe, opened: Any, device: str) -> None:
        self._expected = _library_answer(opened, PROBE)
        tokens = Tokens(opened.tokenizer, vocabulary_of(opened), context_of(recipe, opened), padding_of(opened))
        self._pairs = Pairs(opened.tokenizer, tokens)
        bert = of_scorer(opened, device) if packs(recipe) else None
        self.encoder = Encoder(opened, tokens, device, ScoringHead(opened), bert)
        if leaves_padding(recipe, device) and not self.encoder.packed:
            requests = [RerankRequest(query=query, documents=[text], truncate=True) for query, text in LONG_PROBE]
            inputs = [self._pairs.inputs(request)[0][0] for request in requests]
            self.encoder.leave_padding(inputs, partial(_is_same, single=is_exact(opened)))

    @staticmethod
    def open_files(library: Any, recipe: Recipe, path: Path, device: str) -> Any:
        return open_settled(recipe, path, device, library.CrossEncoder, _long_answer, _is_like)

    async def check(self, *, single: bool) -> None:
        differs = partial(_differs, single=single)
        if any(map(differs, await self.known(), self._expected)):
            raise EngineFailed("this model does not score plain pairs by their token ids: it cannot be served here")
        query, documents = PROBE[0][0], list(BESIDE)
        alone = [
            (await self._score(RerankRequest(query=query, documents=[document], truncate=True)))[0][0]
            for document in documents
        ]
        together, _, _ = await self._score(RerankRequest(query=query, documents=documents, truncate=True))
        if any(map(differs, together, alone)):
            run_apart(self.batcher.limits)

    async def rerank(self, request: RerankRequest) -> tuple[RerankResult, Usage]:
        if not request.query:
            raise BadRequest("'query' is empty.", param="query")
        logits, inputs, batch = await self._score(request)
        tokens = [sum(len(part.ids) for part in parts) for parts in inputs]
        result = RerankResult(logits=logits, chunks=[len(parts) for parts in inputs], tokens=tokens)
        return result, Usage(prompt_tokens=sum(tokens), batch=batch)

    async def _score(self, request: RerankRequest) -> tuple[list[float], list[list[Ids]], int]:
        """Return the best chunk's logit of each document, the inputs by document, and the largest batch."""
        if not request.documents:
            raise BadRequest("'documents' is empty: send at least one.", param="documents")
        make = self._pairs.inputs
        if len(request.query) + sum(map(len, request.documents)) <= INLINE:
            inputs = make(request)
        else:
            longest = max(map(len, (request.query, *request.documents)))
            inputs = await while_awaited(lambda going: make(request, going), longest)
        flat = [part for parts in inputs for part in parts]
        if not all(part.ids for part in flat):
            raise BadRequest(
                "The query and a document have no tokens: this model's tokenizer drops all of their content. Send "
                "other text.",
                param="query",
            )
        # score equal documents once, because in two batches their last digits would differ
        distinct = {tuple(part.ids): part for part in flat}
        places = {ids: place for place, ids in enumerate(distinct)}
        items = [Item(place, len(ids), part) for place, (ids, part) in enumerate(distinct.items())]
        answers = await self.batcher.submit(items)
        scores = iter([answers.results[places[tuple(part.ids)]] for part in flat])
        return [max(next(scores) for _ in parts) for parts in inputs], inputs, answers.batch

    async def known(self) -> Any:
        import numpy as np

        requests = [RerankRequest(query=query, documents=[document]) for query, document in PROBE]
        return np.asarray([(await self._score(request))[0][0] for request in requests], dtype=np.float32)


def _differs(result: float, expected: float, *, single: bool) -> bool:
    """Return whether two logits differ by more than their dtype explains. single: computed in float32."""
    allowed = TOLERANCE if single else TOLERANCE_16_BIT + STEPS_16_BIT * abs(expected)
    return not abs(result - expected) <= allowed  # also true for NaN


def _library_answer(model: Any, pairs: Sequence[tuple[str, str]]) -> list[float]:
    """Return the library's logits, one by one, as its padding may not be the network's."""
    import torch

    if model.num_labels != 1:
        raise EngineFailed(f"this cross-encoder gives {model.num_labels} scores for a pair; a reranker gives one")
    check_template(model.tokenizer, vocabulary_of(model))
    logits = model.predict(list(pairs), batch_size=1, activation_fn=torch.nn.Identity(), show_progress_bar=False)
    return [float(logit) for logit in logits]


def _long_answer(model: Any) -> list[float]:
    return _library_answer(model, LONG_PROBE)


def _is_same(logits: Sequence[float], expected: Sequence[float], *, single: bool) -> bool:
    return not any(_differs(*both, single=single) for both in zip(logits, expected, strict=True))


def _is_like(narrow: Sequence[float], exact: Sequence[float]) -> bool:
    return _is_same(narrow, exact, single=False)
