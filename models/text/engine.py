"""Base of the embedding and rerank engines: how both load a model of sentence-transformers."""

import asyncio
from pathlib import Path
from typing import Any, ClassVar

from models.batching.engine import BatchedEngine
from models.batching.worker import Batcher, BatchLimits, R
from models.flags import flags_of
from models.messages import LoadResult
from models.protocol import Report
from models.text.cpu import linear as int16
from models.text.encoder import TokenModel
from models.text.half import is_exact, open_settled
from models.text.loading import examination, import_library, limits_of, release, set_step_threads, weights_bytes
from models.text.sleep import ModuleSleeper
from models.text.tokens import Ids
from models.text.unpadded.network import use_graphs
from registry.recipes.definition import Recipe


class TextEngine(BatchedEngine[Ids, R]):
    """See `models.protocol` for what each method does in each state."""

    library_class: ClassVar[str]
    """The model's class in sentence_transformers."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self._what, self._device = what, "cpu"

    @staticmethod
    def long_answer(model: Any) -> Any:
        """Return the library's answer to inputs in which 16 bits would show: for `half.open_settled`."""
        raise NotImplementedError

    @staticmethod
    def is_like(narrow: Any, exact: Any) -> bool:
        """Return whether an answer in 16 bits is as good as one in float32: for `half.open_settled`."""
        raise NotImplementedError

    def _prepare(self, recipe: Recipe, model: Any) -> tuple[TokenModel[R], Any]:
        """Set up our path to the model. Returns it, and the library's answer to known inputs, which also warms up."""
        raise NotImplementedError

    async def _check(self, expected: Any, single: bool) -> None:
        """Compare our path with the library's answer, and check that inputs of a step are independent.

        Models that need more than token ids differ. single: computed in float32.
        """
        raise NotImplementedError

    async def _known(self) -> Any:
        """Return our answer to known inputs, as an array. It is compared before and after a sleep."""
        raise NotImplementedError

    def _limits(self, recipe: Recipe, path: Path, network: TokenModel[R]) -> BatchLimits:
        return limits_of(recipe, path, self._device, network.packed, network.model)

    async def load(self, recipe: Recipe, path: Path, device: str, report: Report) -> LoadResult:
        async with self._lifecycle.loading(recipe, report, self.close) as phases:
            self._device = device
            with phases.phase("importing", 0.0, "sentence-transformers"):
                library = await asyncio.to_thread(import_library)
            with phases.phase("weights", 0.4):
                make, flags = getattr(library, self.library_class), flags_of(recipe)
                model = await asyncio.to_thread(
                    open_settled, recipe, path, device, make, flags, self.long_answer, self.is_like
                )
            with phases.phase("warming", 0.8):
                network, expected = await asyncio.to_thread(self._prepare, recipe, model)
                limits = self._limits(recipe, path, network)
                prepare = set_step_threads if limits.workers > 1 else None
                use_graphs(network.unpadded, recipe, limits, network.tokens.context)
                ahead = network.prepare if network.unpadded is not None else None
                self._batcher = Batcher(self._what, network.run, limits, prepare, examination(device), ahead)
                self._batcher.start()
                await self._check(expected, is_exact(model))
                rounded = await int16.choose(recipe, network.bert)
        self._sleeper = sleeper = ModuleSleeper(model, device, self._known, network.unpadded)
        return LoadResult(
            resident_bytes=sleeper.device_bytes(),
            weights_bytes=weights_bytes(model) + rounded,
            host_bytes=sleeper.host_bytes(),
            asleep=sleeper.expected(),
            seconds=phases.seconds,
            context_length=network.tokens.context,
        )

    def _free(self) -> None:
        release(self._device)
