"""Shared parts of embedding and rerank engines: library, flags, threads, memory."""

import gc
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from models import nvml, tokenizer_files
from models.batching import engine as batched_engine
from models.batching.worker import SHARE, STEP_SECONDS, BatchLimits
from models.text import missing_config
from models.text.cpu import kernels
from registry.base import importing
from registry.base.processor import cores
from registry.errors import EngineFailed
from registry.files.context import NO_LIMIT, bytes_of_files
from registry.recipes.definition import Recipe

_log = logging.getLogger("roundhouse.text")
SMALL_WEIGHTS = 128 * 2**20
"""Weights in bytes up to which each core computes its own step under load."""
PACKED_SHARE = 64
"""Least tokens of a step, without padding, when idle cores share waiting inputs."""
MIN_TOKENS_TO_SPREAD = 96
"""Padded tokens of a step from which several threads are faster than one, with small weights."""


def import_library() -> Any:
    """Import sentence_transformers. Blocks for seconds the first time. Thread-safe."""
    settings = {"HF_HUB_DISABLE_TELEMETRY": "1", "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    for name, value in settings.items():  # read when the libraries are first imported
        os.environ.setdefault(name, value)
    with importing.fast_imports():
        import sentence_transformers
        import tqdm
        from transformers.utils import logging

    tokenizer_files.patch()
    logging.disable_progress_bar()
    tqdm.tqdm.set_lock(threading.RLock())  # its default is a semaphore in /dev/shm, which an ended slot leaves behind
    return sentence_transformers


def open_model(recipe: Recipe, path: Path, device: str, make: Callable[..., Any]) -> Any:
    """Open a model from local safetensors, in inference mode.

    make: SentenceTransformer or CrossEncoder. device: also `meta`, to check files without memory.
    """
    import torch

    flags = recipe.engine.flags
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
    missing_config.refuse_conversion(path, make.__name__)
    if not flags.get("trust_remote_code"):
        missing_config.refuse_other_functions(path)
    unmapped = unmapped_weights() if device == "cpu" else nullcontext()
    with unmapped, missing_config.collect_missing_weights() as missing:
        model = make(
            str(path),
            device=device,
            local_files_only=True,
            trust_remote_code=bool(flags.get("trust_remote_code", False)),
            model_kwargs=arguments,
        )
    missing_config.refuse_without_network(model)
    missing_config.refuse_routes(model)
    missing_config.refuse_missing_weights(missing, type(model[0].model).__name__)
    missing_config.read_plainly(model[0], path)
    missing_config.refuse_without_vocabulary(model.tokenizer, path)
    missing_config.add_stated_ends(model.tokenizer, path)
    missing_config.lend_padding(model.tokenizer, vocabulary_of(model))
    return model.eval().requires_grad_(False)


@contextmanager
def unmapped_weights() -> Iterator[None]:
    """Within this context, transformers reads weights into memory of its own instead of mapping their files.

    On a CPU, weights in their file's dtype would stay mapped: overwriting the file would change the answers of a loaded
    model, and truncating it would end the process with SIGBUS.
    """
    from transformers import modeling_utils

    mapping = modeling_utils.safe_open

    def safe_open(*arguments: Any, **named: Any) -> Any:
        return mapping(*arguments, **{**named, "backend": "pread"})

    modeling_utils.safe_open = safe_open
    try:
        yield
    finally:
        modeling_utils.safe_open = mapping


def packs(recipe: Recipe) -> bool:
    """Return whether the recipe lets the engine run without padding."""
    flags = recipe.engine.flags
    return bool(flags.get("packed", True)) and "attn_implementation" not in flags


def leaves_padding(recipe: Recipe, device: str) -> bool:
    """Return whether the recipe lets other networks run without padding (`models.text.unpadded`)."""
    return device != "cpu" and packs(recipe) and bool(recipe.engine.flags.get("unpadded", False))


def workers(recipe: Recipe, path: Path, device: str) -> int:
    """Return the number of concurrent steps: one per core for small weights on a CPU, else one.

    Threads of one step wait for each other at every layer, which takes much of the time with small layers: two steps
    with a thread each do more than one step with two (docs/design/notebook.md).
    """
    small = bytes_of_files(path) <= SMALL_WEIGHTS
    return cores() if device == "cpu" and "threads" not in recipe.engine.flags and small else 1


def limits_of(recipe: Recipe, path: Path, device: str, packed: bool, model: Any) -> BatchLimits:
    """Return the limits of steps. packed: they run without padding."""
    limits = batched_engine.limits_of(recipe, STEP_SECONDS)
    if turns_by_length(model):
        return replace(limits, items=1)
    return replace(
        limits,
        items=1 if runs_alone(model) else limits.items,
        workers=workers(recipe, path, device),
        padded=not packed,
        share=PACKED_SHARE if packed else SHARE,
    )


def run_apart(limits: BatchLimits) -> None:
    """Run each input in its own step from now on, because the network sees a step's padding."""
    _log.warning("answers depend on other inputs in a step, so each input is a step of its own, which is slower")
    limits.items = 1


def turns_by_length(model: Any) -> bool:
    """Return whether a step's longest input determines all its positions (LongRoPE).

    The network stores that choice, so inputs must run one at a time.
    """
    kinds = [kind for module in model.modules() if (kind := getattr(module, "rope_type", None))]
    return any(name == "longrope" for kind in kinds for name in (kind.values() if isinstance(kind, dict) else [kind]))


def set_step_threads(tokens: int, alone: bool) -> None:
    """Set the next step's threads: all cores for a single long step, else one."""
    import torch

    threads = cores() if alone and tokens >= MIN_TOKENS_TO_SPREAD else 1
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


def context_of(recipe: Recipe, model: Any) -> int:
    """Return the tokens that the model takes. Raises EngineFailed if the recipe has more."""
    network = model[0].model
    positions = getattr(network.config, "max_position_embeddings", None)
    most = positions - first_position(network) if positions else None
    text_options = getattr(model[0], "processing_kwargs", {}).get("text", {})
    own: int | None = text_options.get("max_length", model.max_seq_length)
    if own is None or own > NO_LIMIT:
        own = most or 512
    if most is not None:
        own = min(own, most)  # some tokenizers also count the padding's positions
        if recipe.context_length is not None and recipe.context_length > most:
            raise EngineFailed(f"context_length is {recipe.context_length}, but the model has {most} positions")
    return recipe.context_length or own


def first_position(network: Any) -> int:
    """Return the position of the first token: in RoBERTa after the padding's, else 0.

    Found from the layers, as in sentence-transformers; `registry.files.context` has only names.
    """
    for module in network.modules():
        padding = getattr(module, "padding_idx", None)
        if isinstance(padding, int) and getattr(module, "position_embeddings", None) is not None:
            return padding + 1
    return 0


def vocabulary_of(model: Any) -> int:
    """Return the number of token embeddings."""
    return int(model[0].model.get_input_embeddings().weight.shape[0])


def padding_of(model: Any) -> int | None:
    """Return the network's padding token, which need not be the tokenizer's."""
    own: int | None = model[0].model.config.get_text_config().pad_token_id
    return own if own is not None and 0 <= own < vocabulary_of(model) else None


def runs_alone(model: Any) -> bool:
    """Return whether each input must be a step of its own.

    A classifier made from a chat model reads the last token. Without a padding token it would read the padding.
    """
    return type(model[0].model).__name__.endswith("ForSequenceClassification") and padding_of(model) is None


def examination(device: str) -> Callable[[], None] | None:
    """Return a check that raises if this process has lost the GPU's context; None on a CPU.

    After that every step fails until the process ends. Lack of memory does not count.
    """
    if device == "cpu":
        return None
    import torch

    return partial(torch.cuda.synchronize, device)


def weights_bytes(model: Any) -> int:
    """Return the bytes of parameters and buffers, counting shared ones once."""
    tensors = {t.data_ptr(): t.numel() * t.element_size() for t in (*model.parameters(), *model.buffers())}
    return sum(tensors.values())


def resident_bytes(device: str) -> int:
    """Return this process's bytes, on a GPU from the driver or the allocator."""
    if device == "cpu":
        return int(psutil.Process().memory_info().rss)
    if (driver_bytes := nvml.used_by(device, [os.getpid()])) is not None:
        return driver_bytes
    import torch

    return int(torch.cuda.memory_reserved(device)) + (1 << 29)


def release(device: str) -> None:
    """Free a model's memory after its last reference is gone."""
    gc.collect()
    if device != "cpu":
        import torch

        torch.cuda.empty_cache()


def prewarm(hurried: Callable[[], bool]) -> None:
    """Import what both engines need. All of it is needed early, so `hurried` is not used."""
    import_library()
    import torch

    if torch.version.cuda is None:
        kernels.load_library()
