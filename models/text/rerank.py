"""The rerank engine: a sentence-transformers cross-encoder, with batching across requests."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.batching.engine import BatchedEngine
from models.batching.plan import Item
from models.batching.worker import Batcher
from models.flags import flags_of
from models.messages import LoadResult, RerankRequest, RerankResult, Usage
from models.protocol import Report
from models.text.bert import Bert, of_scorer
from models.text.cpu import linear as embed_int16
from models.text.encoder import tensors
from models.text.half import is_exact, open_settled
from models.text.loading import (
    context_of,
    examination,
    import_library,
    leaves_padding,
    limits_of,
    packs,
    padding_of,
    release,
    run_apart,
    runs_alone,
    set_step_threads,
    vocabulary_of,
    weights_bytes,
)
from models.text.pairs import Pairs
from models.text.sleep import ModuleSleeper
from models.text.tokens import Ids, Tokens, check_template, while_awaited
from models.text.unpadded.heads import Head, head_of
from models.text.unpadded.network import UnpaddedNetwork, use_graphs, without_padding
from models.text.unpadded.packing import Packing
from registry.errors import BadRequest, EngineFailed
from registry.recipes.definition import Recipe

if TYPE_CHECKING:
    from torch import Tensor

_log = logging.getLogger("roundhouse.text")
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


class Scorer:
    """A loaded CrossEncoder that turns token ids into raw logits.

    `packs`: run without padding if `models.text.bert` supports the model. `unpadded` does so for other networks on a
    GPU, after a successful `leave_padding`. `packed` is whether either is used.
    """

    def __init__(self, model: Any, tokens: Tokens, device: str, packs: bool = False) -> None:
        self.model, self.tokens, self.device = model, tokens, device
        self.bert: Bert | None = of_scorer(model, device) if packs else None
        self.unpadded: UnpaddedNetwork | None = None
        self._head: Head | None = None
        self.generates = getattr(model[0], "transformer_task", "") == "text-generation"
        """Whether it scores by the probability of a next token."""

    @property
    def packed(self) -> bool:
        return self.bert is not None or self.unpadded is not None

    def leave_padding(self, inputs: Sequence[Ids], is_same: Callable[[list[float], list[float]], bool]) -> None:
        """Run without padding from now on, if each input then gets the same answer as alone.

        is_same: whether logits (first) equal expected ones.
        """
        network = self.model[0].model
        self._head = head_of(network) if len(self.model) == 1 else None
        if self._head is None:
            _log.warning("this model runs with padding despite `unpadded`: its head is unknown")
            return
        expected = [logit for given in inputs for logit in self.run([given])]

        def is_right(unpadded: UnpaddedNetwork) -> bool:
            return is_same(self._compute_unpadded(unpadded, unpadded.pack(inputs)), expected)

        self.unpadded = without_padding(network, self.device, self.tokens.wants_types, is_right)

    def run(self, inputs: Sequence[Ids]) -> list[float]:
        return self.prepare(inputs)()

    def prepare(self, inputs: Sequence[Ids]) -> Callable[[], list[float]]:
        """Prepare a step on the host, and return a function that does the rest.

        Any thread may prepare, but only one at a time may call the function.
        """
        if self.unpadded is None:
            return partial(self._compute, inputs)
        return partial(self._compute_unpadded, self.unpadded, self.unpadded.pack(inputs))

    def _compute(self, inputs: Sequence[Ids]) -> list[float]:
        import torch

        with torch.inference_mode():
            if self.bert is None:
                features = tensors(inputs, self.tokens, self.device)
                if self.generates:
                    # otherwise logits of the whole vocabulary for each token, which are gigabytes
                    features["logits_to_keep"] = 1
                scores = self.model(features)["scores"]
            else:
                network = self.model[0].model
                scores = network.classifier(network.bert.pooler(self.bert.states(inputs)[:, None]))
            return _logits(scores, len(inputs))

    def _compute_unpadded(self, unpadded: UnpaddedNetwork, packing: Packing) -> list[float]:
        import torch

        assert self._head is not None
        with torch.inference_mode():
            states, moved = unpadded.states(packing)
            return _logits(self._head(states[moved.boundaries[:-1]]), len(packing.lengths))


def _logits(scores: "Tensor", count: int) -> list[float]:
    values: list[float] = scores.float().reshape(count).cpu().tolist()
    return values


class RerankingEngine(BatchedEngine[Ids, float]):
    """A loaded cross-encoder. See `models.protocol` for what each method does in each state."""

    def __init__(self) -> None:
        super().__init__("rerank")
        self._device = "cpu"
        self._pairs: Pairs | None = None

    async def load(self, recipe: Recipe, path: Path, device: str, report: Report) -> LoadResult:
        async with self._lifecycle.loading(recipe, report, self.close) as phases:
            self._device = device
            flags = flags_of(recipe)
            with phases.phase("importing", 0.0, "sentence-transformers"):
                library = await asyncio.to_thread(import_library)
            with phases.phase("weights", 0.4):
                model = await asyncio.to_thread(
                    open_settled, recipe, path, device, library.CrossEncoder, flags, _long_answer, _is_like
                )
            with phases.phase("warming", 0.8):
                scorer, expected = await asyncio.to_thread(self._prepare, recipe, model)
                limits = limits_of(recipe, path, device, scorer.packed, model)
                if runs_alone(model):
                    limits = replace(limits, items=1)
                prepare = set_step_threads if limits.workers > 1 else None
                use_graphs(scorer.unpadded, recipe, limits, scorer.tokens.context)
                ahead = scorer.prepare if scorer.unpadded is not None else None
                self._batcher = Batcher("rerank", scorer.run, limits, prepare, examination(device), ahead)
                self._batcher.start()
                await self._check(expected, is_exact(model))
                rounded = await embed_int16.choose(recipe, scorer.bert)
        self._sleeper = sleeper = ModuleSleeper(model, device, self._known, scorer.unpadded)
        return LoadResult(
            resident_bytes=sleeper.device_bytes(),
            weights_bytes=weights_bytes(model) + rounded,
            host_bytes=sleeper.host_bytes(),
            asleep=sleeper.expected(),
            seconds=phases.seconds,
            context_length=scorer.tokens.context,
        )

    def _prepare(self, recipe: Recipe, model: Any) -> tuple[Scorer, list[float]]:
        """Set up our path to the model. Returns the library's logits for PROBE, which also warm it up."""
        expected = _library_answer(model, PROBE)
        tokens = Tokens(model.tokenizer, vocabulary_of(model), context_of(recipe, model), padding_of(model))
        self._pairs = Pairs(model.tokenizer, tokens)
        scorer = Scorer(model, tokens, self._device, packs(recipe))
        if leaves_padding(recipe, self._device) and not scorer.packed:
            requests = [RerankRequest(query=query, documents=[text], truncate=True) for query, text in LONG_PROBE]
            inputs = [self._pairs.inputs(request)[0][0] for request in requests]
            scorer.leave_padding(inputs, partial(_is_same, single=is_exact(model)))
        return scorer, expected

    async def _check(self, expected: Sequence[float], single: bool) -> None:
        """Compare our path with the library's `predict`, and check that pairs of a step are independent."""
        differs = partial(_differs, single=single)
        if any(map(differs, await self._known(), expected)):
            raise EngineFailed("this model does not score plain pairs by their token ids: it cannot be served here")
        query, documents = PROBE[0][0], list(BESIDE)
        alone = [
            (await self._score(RerankRequest(query=query, documents=[document], truncate=True)))[0][0]
            for document in documents
        ]
        together, _, _ = await self._score(RerankRequest(query=query, documents=documents, truncate=True))
        if any(map(differs, together, alone)):
            assert self._batcher is not None
            run_apart(self._batcher.limits)

    async def rerank(self, request: RerankRequest) -> tuple[RerankResult, Usage]:
        self._lifecycle.check()
        if not request.query:
            raise BadRequest("'query' is empty.", param="query")
        logits, inputs, batch = await self._score(request)
        tokens = [sum(len(part.ids) for part in parts) for parts in inputs]
        result = RerankResult(logits=logits, chunks=[len(parts) for parts in inputs], tokens=tokens)
        return result, Usage(prompt_tokens=sum(tokens), batch=batch)

    async def _score(self, request: RerankRequest) -> tuple[list[float], list[list[Ids]], int]:
        """Return the best chunk's logit of each document, the inputs by document, and the largest batch."""
        if self._pairs is None or self._batcher is None:
            raise EngineFailed("the engine is not loaded")
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
        answers = await self._batcher.submit(items)
        scores = iter([answers.results[places[tuple(part.ids)]] for part in flat])
        return [max(next(scores) for _ in parts) for parts in inputs], inputs, answers.batch

    async def _known(self) -> Any:
        """Return logits of PROBE, which are compared before and after a sleep."""
        import numpy as np

        requests = [RerankRequest(query=query, documents=[document]) for query, document in PROBE]
        return np.asarray([(await self._score(request))[0][0] for request in requests], dtype=np.float32)

    def _let_go(self) -> None:
        self._pairs = None

    def _free(self) -> None:
        release(self._device)


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
