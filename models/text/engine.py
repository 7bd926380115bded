"""Load a model of sentence-transformers, so that it answers with batching across requests."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Protocol, TypeVar

from models.batching.engine import Loaded
from models.batching.worker import Batcher
from models.lifecycle import LoadPhases
from models.messages import LoadResult
from models.text.cpu import linear as int16_products
from models.text.encoder import Encoder
from models.text.half import is_exact
from models.text.loading import examination, import_library, limits_of, release, set_step_threads, weights_bytes
from models.text.sleep import ModuleSleeper
from models.text.tokens import Ids
from models.text.unpadded.network import use_graphs
from registry.recipes.definition import Recipe


class TextModel(Protocol):
    """A model whose requests become inputs of an encoder."""

    encoder: Encoder[Any]
    batcher: Batcher[Ids, Any]
    """Set before `check`."""

    @staticmethod
    def open_files(library: Any, recipe: Recipe, path: Path, device: str) -> Any:
        """Open the model's files. Runs in a thread. library: sentence_transformers."""

    def __init__(self, recipe: Recipe, opened: Any, device: str) -> None:
        """Set up our path to the opened model, in a thread.

        The library also answers known inputs, which warms the model up.
        """

    async def check(self, *, single: bool) -> None:
        """Compare our path with the library's answers, and check that inputs of a step are independent.

        single: whether the model computes in float32.
        """

    async def known(self) -> Any:
        """Return answers to known inputs as one array, to compare those before and after a sleep."""


T = TypeVar("T", bound=TextModel)


async def load(
    kind: type[T], step: str, recipe: Recipe, path: Path, device: str, phases: LoadPhases, ending: AsyncExitStack
) -> Loaded[T]:
    """See `models.batching.engine.Load`. step: the name of its steps in logs."""
    with phases.phase("importing", 0.0, "sentence-transformers"):
        library = await asyncio.to_thread(import_library)
    with phases.phase("weights", 0.4):
        opened = await asyncio.to_thread(kind.open_files, library, recipe, path, device)
    with phases.phase("warming", 0.8):
        model = await asyncio.to_thread(kind, recipe, opened, device)
        encoder = model.encoder
        limits = limits_of(recipe, path, device, encoder.packed, opened)
        prepare = set_step_threads if limits.workers > 1 else None
        use_graphs(encoder.unpadded, recipe, limits, encoder.tokens.context)
        ahead = encoder.prepare if encoder.unpadded is not None else None
        batcher = model.batcher = Batcher(step, encoder.run, limits, prepare, examination(device), ahead)
        batcher.start()
        ending.push_async_callback(asyncio.to_thread, release, device)
        ending.push_async_callback(asyncio.to_thread, batcher.close)
        await model.check(single=is_exact(opened))
        rounded = await int16_products.choose(recipe, encoder.bert)
    sleeper = ModuleSleeper(opened, device, model.known, encoder.unpadded)
    result = LoadResult(
        resident_bytes=sleeper.device_bytes(),
        weights_bytes=weights_bytes(opened) + rounded,
        host_bytes=sleeper.host_bytes(),
        asleep=sleeper.expected(),
        seconds=phases.seconds,
        context_length=encoder.tokens.context,
    )
    return Loaded(model, batcher, sleeper, result)
