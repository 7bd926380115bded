"""The rerank engine: a sentence-transformers cross-encoder with batches across requests."""

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
"""Characters up to which tokenising is quicker than handing it to a thread."""
PROBE = (("What must hold?", "The engine must give what its library gives."), ("Yes?", "No."))
LONG_PROBE = (*PROBE, (PROBE[0][0], 60 * PROBE[0][1]))
BESIDE = (3 * PROBE[0][1], "No.", "As far as anybody knows.", PROBE[0][1], "Yes?")
"""Documents of one step whose scores are compared with those that they have alone."""
TOLERANCE, TOLERANCE_16_BIT = 1e-3, 0.1
"""Largest difference of a logit between our path and the library's, with 32 and with 16 bits."""
STEPS_16_BIT = 2**-5
"""The further tolerance with 16 bits, as a share of the logit: two to four steps of bfloat16, whose numbers from 8 to
16 lie 0.0625 apart.
"""


class Scorer:
    """A loaded CrossEncoder, called on token ids. Gives raw logits.

    `packs`: run without padding if the model is one that `models.text.bert` knows. `unpadded` does the same for other
    networks on a GPU, once `leave_padding` has found that it can. `packed` tells whether either does.
    """

    def __init__(self, model: Any, tokens: Tokens, device: str, packs: bool = False) -> None:
        self.model, self.tokens, self.device = model, tokens, device
        self.bert: Bert | None = of_scorer(model, device) if packs else None
        self.unpadded: UnpaddedNetwork | None = None
        self._head: Head | None = None
        self.generates = getattr(model[0], "transformer_task", "") == "text-generation"
        """It scores by a word that it would say next."""

    @property
    def packed(self) -> bool:
        return self.bert is not None or self.unpadded is not None

    def leave_padding(self, inputs: Sequence[Ids], is_same: Callable[[list[float], list[float]], bool]) -> None:
        """Run without padding from now on, if it gives what the network gives for each input by itself.

        is_same: whether logits (first) are those.
        """
        network = self.model[0].model
        self._head = head_of(network) if len(self.model) == 1 else None
        if self._head is None:
            _log.warning("this model runs with padding, whatever `unpadded` says: its head is not known")
            return
        expected = [logit for given in inputs for logit in self.run([given])]

        def is_right(unpadded: UnpaddedNetwork) -> bool:
            return is_same(self._compute_unpadded(unpadded, unpadded.pack(inputs)), expected)

        self.unpadded = without_padding(network, self.device, self.tokens.wants_types, is_right)

    def run(self, inputs: Sequence[Ids]) -> list[float]:
        return self.prepare(inputs)()

    def prepare(self, inputs: Sequence[Ids]) -> Callable[[], list[float]]:
        """A step: what can be done without the device is done, the call does the rest.

        Any thread may prepare; one at a time may call.
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
                    features["logits_to_keep"] = 1  # else the whole vocabulary's for each token: gigabytes
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
        """Set up our way of calling the model; the library's own logits for PROBE, which warm up, too."""
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
        """Check that our path gives what the library's own `predict` gives, and that pairs of one step do not affect
        one another.
        """
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
        """The best chunk's logit of each document, the inputs by document, and the largest batch."""
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
                "The query and a document have no tokens: this model's tokenizer drops all that is in them. Send other "
                "text.",
                param="query",
            )
        # equal documents get one score: computed in two batches, they would differ in the last digits
        distinct = {tuple(part.ids): part for part in flat}
        places = {ids: place for place, ids in enumerate(distinct)}
        items = [Item(place, len(ids), part) for place, (ids, part) in enumerate(distinct.items())]
        answers = await self._batcher.submit(items)
        scores = iter([answers.results[places[tuple(part.ids)]] for part in flat])
        return [max(next(scores) for _ in parts) for parts in inputs], inputs, answers.batch

    async def _known(self) -> Any:
        """Logits of PROBE, to be compared before and after a sleep."""
        import numpy as np

        requests = [RerankRequest(query=query, documents=[document]) for query, document in PROBE]
        return np.asarray([(await self._score(request))[0][0] for request in requests], dtype=np.float32)

    def _let_go(self) -> None:
        self._pairs = None

    def _free(self) -> None:
        release(self._device)


def _differs(result: float, expected: float, *, single: bool) -> bool:
    """Whether two logits differ by more than their dtype explains. single: computed in float32."""
    allowed = TOLERANCE if single else TOLERANCE_16_BIT + STEPS_16_BIT * abs(expected)
    return not abs(result - expected) <= allowed  # nor may one be no number


def _library_answer(model: Any, pairs: Sequence[tuple[str, str]]) -> list[float]:
    """The library's own logits, one by one: without the tokenizer's padding, which may not be the network's."""
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
