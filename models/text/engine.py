"""Base of the embedding and rerank engines: sentence-transformers, with batching across requests."""

import asyncio
from pathlib import Path
from typing import Any

from models.batching.engine import BatchedEngine
from models.batching.worker import Batcher, R
from models.flags import check_flags
from models.messages import LoadResult
from models.protocol import Report
from models.text.cpu import linear as int16_products
from models.text.encoder import Encoder
from models.text.half import is_exact
from models.text.loading import examination, import_library, limits_of, release, set_step_threads, weights_bytes
from models.text.sleep import ModuleSleeper
from models.text.tokens import Ids
from models.text.unpadded.network import use_graphs
from registry.recipes.definition import Recipe


class TextEngine(BatchedEngine[Ids, R]):
    """Base of engines whose requests become inputs of an `Encoder`. See `models.protocol` for each state."""

    def __init__(self, what: str, step: str) -> None:
        """Make an engine that is not loaded. step: what its steps are named in logs."""
        super().__init__(what)
        self._step = step
        self._device = "cpu"

    async def load(self, recipe: Recipe, path: Path, device: str, report: Report) -> LoadResult:
        async with self._lifecycle.loading(recipe, report, self.close) as phases:
            self._device = device
            check_flags(recipe)
            with phases.phase("importing", 0.0, "sentence-transformers"):
                library = await asyncio.to_thread(import_library)
            with phases.phase("weights", 0.4):
                model = await asyncio.to_thread(self._open, library, recipe, path)
            with phases.phase("warming", 0.8):
                encoder, expected = await asyncio.to_thread(self._prepare, recipe, model)
                limits = limits_of(recipe, path, device, encoder.packed, model)
                prepare = set_step_threads if limits.workers > 1 else None
                use_graphs(encoder.unpadded, recipe, limits, encoder.tokens.context)
                ahead = encoder.prepare if encoder.unpadded is not None else None
                self._batcher = Batcher(self._step, encoder.run, limits, prepare, examination(device), ahead)
                self._batcher.start()
                await self._check(expected, single=is_exact(model))
                rounded = await int16_products.choose(recipe, encoder.bert)
        self._sleeper = sleeper = ModuleSleeper(model, device, self._known, encoder.unpadded)
        return LoadResult(
            resident_bytes=sleeper.device_bytes(),
            weights_bytes=weights_bytes(model) + rounded,
            host_bytes=sleeper.host_bytes(),
            asleep=sleeper.expected(),
            seconds=phases.seconds,
            context_length=encoder.tokens.context,
        )

    def _open(self, library: Any, recipe: Recipe, path: Path) -> Any:
        """Open the model's files. Runs in a thread. library: sentence_transformers."""
        raise NotImplementedError

    def _prepare(self, recipe: Recipe, model: Any) -> tuple[Encoder[R], Any]:
        """Set up our path to the model, in a thread.

        Returns it and the library's answers to known inputs, which also warm the model up.
        """
        raise NotImplementedError

    async def _check(self, expected: Any, *, single: bool) -> None:
        """Compare our path with the library's answers, and check that inputs of a step are independent.

        single: whether the model computes in float32.
        """
        raise NotImplementedError

    async def _known(self) -> Any:
        """Return answers to known inputs as one array, to compare those before and after a sleep."""
        raise NotImplementedError

    def _free(self) -> None:
        release(self._device)
