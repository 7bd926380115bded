"""Shared parts of embedding and rerank engines: library, flags, threads, memory."""

import gc
import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from models import nvml
from models.batching import engine as batched_engine
from models.batching.worker import SHARE, STEP_SECONDS, BatchLimits
from models.text import missing_config
from models.text.cpu import kernels
from registry.base import importing
from registry.base.processor import cores
from registry.errors import EngineFailed
from registry.files.context import NO_LIMIT, bytes_of_files
from registry.recipes.definition import Recipe
from registry.recipes.fields import Flag

_log = logging.getLogger("roundhouse.text")
SMALL_WEIGHTS = 128 * 2**20
"""Bytes of weights up to which each core computes a step of its own under load."""
PACKED_SHARE = 64
"""Tokens from which on idle cores share what waits, without padding: smaller steps cost little more for each token."""
MIN_TOKENS_TO_SPREAD = 96
"""Padded tokens of a step from which on several threads are quicker than one, with small weights."""


def import_library() -> Any:
    """sentence_transformers. Blocks for seconds the first time; safe in any thread."""
    settings = {"HF_HUB_DISABLE_TELEMETRY": "1", "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    for name, value in settings.items():  # they are read when the libraries are first imported
        os.environ.setdefault(name, value)
    with importing.fast_imports():
        import sentence_transformers
        import tqdm
        from transformers.utils import logging

    logging.disable_progress_bar()
    tqdm.tqdm.set_lock(threading.RLock())  # its own is a semaphore in /dev/shm, which a slot's end leaves there
    return sentence_transformers


def open_model(recipe: Recipe, path: Path, device: str, make: Callable[..., Any], flags: Mapping[str, Flag]) -> Any:
    """Open a model from local safetensors, in inference mode. `make`: SentenceTransformer or CrossEncoder.

    device: also `meta`, for a look at the files without memory.
    """
    import torch

    if device == "cpu":
        torch.set_num_threads(int(str(flags.get("threads", cores()))))
    dtype: Any = getattr(torch, recipe.dtype, None) if recipe.dtype != "auto" else None
    if recipe.dtype == "int8":
        raise EngineFailed("sentence-transformers runs no int8: write float32, float16, bfloat16 or auto")
    arguments: dict[str, Any] = {"use_safetensors": True, "dtype": dtype or ("float32" if device == "cpu" else "auto")}
    if device == "meta":
        arguments["device_map"] = "meta"
    if "attn_implementation" in flags:
        arguments["attn_implementation"] = flags["attn_implementation"]
    if not flags.get("trust_remote_code"):
        missing_config.refuse_other_functions(path)
    with missing_config.collect_missing_weights() as missing:
        model = make(
            str(path),
            device=device,
            local_files_only=True,
            trust_remote_code=bool(flags.get("trust_remote_code", False)),
            model_kwargs=arguments,
        )
    missing_config.refuse_routes(model)
    missing_config.refuse_missing_weights(missing, type(model[0].model).__name__)
    missing_config.read_plainly(model[0], path)
    missing_config.refuse_without_vocabulary(model.tokenizer, path)
    missing_config.lend_padding(model.tokenizer, vocabulary_of(model))
    return model.eval().requires_grad_(False)


def packs(recipe: Recipe) -> bool:
    """Whether the recipe lets the engine run without padding where it can."""
    flags = recipe.engine.flags
    return bool(flags.get("packed", True)) and "attn_implementation" not in flags


def leaves_padding(recipe: Recipe, device: str) -> bool:
    """Whether the recipe lets the engine run other networks without padding (`models.text.unpadded`)."""
    return device != "cpu" and packs(recipe) and bool(recipe.engine.flags.get("unpadded", False))


def workers(path: Path, device: str, flags: Mapping[str, Flag]) -> int:
    """Steps at the same time: one per core for small weights on a CPU, else one.

    Threads of one step wait for each other at every layer, which with small layers is much of their time: two steps
    with a thread each do more than one step with two (docs/design/notebook.md).
    """
    small = bytes_of_files(path) <= SMALL_WEIGHTS
    return cores() if device == "cpu" and "threads" not in flags and small else 1


def limits_of(recipe: Recipe, path: Path, device: str, packed: bool, model: Any) -> BatchLimits:
    """Limits of the steps. `packed`: they run without padding."""
    limits = batched_engine.limits_of(recipe, STEP_SECONDS)
    if turns_by_length(model):
        return replace(limits, items=1)
    return replace(
        limits,
        workers=workers(path, device, recipe.engine.flags),
        padded=not packed,
        share=PACKED_SHARE if packed else SHARE,
    )


def run_apart(limits: BatchLimits) -> None:
    """Run inputs apart from now on: the network sees a step's padding."""
    _log.warning("answers depend on what shares a step: each input is a step of its own, which is slower")
    limits.items = 1


def turns_by_length(model: Any) -> bool:
    """Whether a step's longest input turns all positions in it (LongRoPE).

    The network keeps that choice, so neither other inputs nor a step beside it may be there.
    """
    kinds = [kind for module in model.modules() if (kind := getattr(module, "rope_type", None))]
    return any(one == "longrope" for kind in kinds for one in (kind.values() if isinstance(kind, dict) else [kind]))


def set_step_threads(tokens: int, alone: bool) -> None:
    """Set the next step's threads: all cores for a long step alone, else one."""
    import torch

    threads = cores() if alone and tokens >= MIN_TOKENS_TO_SPREAD else 1
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


def context_of(recipe: Recipe, model: Any) -> int:
    """Tokens that the model takes. EngineFailed if the recipe wants more."""
    network = model[0].model
    positions = getattr(network.config, "max_position_embeddings", None)
    most = positions - first_position(network) if positions else None
    text_options = getattr(model[0], "processing_kwargs", {}).get("text", {})
    own: int | None = text_options.get("max_length", model.max_seq_length)
    if own is None or own > NO_LIMIT:
        own = most or 512
    if most is not None:
        own = min(own, most)  # some tokenizers count the positions that the padding takes, too
        if recipe.context_length is not None and recipe.context_length > most:
            raise EngineFailed(f"context_length is {recipe.context_length}, but the model has {most} positions")
    return recipe.context_length or own


def first_position(network: Any) -> int:
    """Position of the first token: in RoBERTa after the padding's, else 0.

    Told from the layers, as sentence-transformers does it: `registry.files.context` has only names to go by.
    """
    for module in network.modules():
        padding = getattr(module, "padding_idx", None)
        if isinstance(padding, int) and getattr(module, "position_embeddings", None) is not None:
            return padding + 1
    return 0


def vocabulary_of(model: Any) -> int:
    """Rows of the token embeddings."""
    return int(model[0].model.get_input_embeddings().weight.shape[0])


def padding_of(model: Any) -> int | None:
    """The padding token that the network knows, which need not be the tokenizer's."""
    own: int | None = model[0].model.config.get_text_config().pad_token_id
    return own if own is not None and 0 <= own < vocabulary_of(model) else None


def runs_alone(model: Any) -> bool:
    """Whether each input must be a step of its own.

    A classifier made from a chat model reads the last token; one without a padding token would read the padding.
    """
    return type(model[0].model).__name__.endswith("ForSequenceClassification") and padding_of(model) is None


def examination(device: str) -> Callable[[], None] | None:
    """A check that raises once this process has lost the GPU's context.

    Each later step fails then, too, until the process ends. Lack of memory does not count. None on a CPU.
    """
    if device == "cpu":
        return None
    import torch

    return partial(torch.cuda.synchronize, device)


def weights_bytes(model: Any) -> int:
    """Bytes of parameters and buffers, shared ones once."""
    tensors = {t.data_ptr(): t.numel() * t.element_size() for t in (*model.parameters(), *model.buffers())}
    return sum(tensors.values())


def resident_bytes(device: str) -> int:
    """Bytes of this process on a CPU, or on a GPU by driver or allocator."""
    if device == "cpu":
        return int(psutil.Process().memory_info().rss)
    if (driver_bytes := nvml.used_by(device, [os.getpid()])) is not None:
        return driver_bytes
    import torch

    return int(torch.cuda.memory_reserved(device)) + (1 << 29)


def release(device: str) -> None:
    """Give a model's memory back after its last reference is gone."""
    gc.collect()
    if device != "cpu":
        import torch

        torch.cuda.empty_cache()


def prewarm(hurried: Callable[[], bool]) -> None:
    """Import what both engines need. All is needed early: `hurried` is not used."""
    import_library()
    import torch

    if torch.version.cuda is None:
        kernels.load_library()
