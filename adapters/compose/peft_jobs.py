"""Combine adapters by peft's `add_weighted_adapter`, merge by `merge_and_unload`; imports torch."""

import itertools
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model_state_dict
from peft.tuners.lora import LoraLayer
from safetensors import safe_open
from safetensors.torch import save
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from adapters.compose.jobs import Combine, Merge, Unmergeable
from adapters.content.base_shapes import read_base
from adapters.content.forms import TEMPLATE_FILE, TENSORS
from adapters.content.tokenizer import own_template
from registry.storage.files import sync_folder

RESULT = "made"


def combine(job: Combine, tell: Callable[[str, float], None]) -> None:
    """Run `Combine`. The same job gives the same bytes with the same number of threads.

    What `dare` drops depends only on the seed, but the last bits of a decomposition depend on the number of threads.
    Raises Unmergeable.
    """
    tell("reading the adapters", 0.0)
    linear = read_base(job.base.path).linear
    for part in job.parts:
        _check_fit(part.folder, linear)
    names = [f"part{number}" for number in range(len(job.parts))]
    config = LoraConfig.from_pretrained(str(job.parts[0].folder))
    config.task_type = None  # otherwise peft requires a language model around the layers
    model = PeftModel.from_pretrained(
        _layers(linear), str(job.parts[0].folder), names[0], config=config, torch_device="cpu"
    )
    for name, part in itertools.islice(zip(names, job.parts, strict=True), 1, None):
        model.load_adapter(str(part.folder), name, torch_device="cpu")
    ranks = max((set(layer.r.values()) for layer in model.modules() if isinstance(layer, LoraLayer)), key=len)
    if job.kind != "cat" and "svd" not in job.kind and len(ranks) > 1:
        raise Unmergeable(
            f"Halves of ranks {', '.join(map(str, sorted(ranks)))} in one layer cannot be combined: leave 'halves' "
            "out, or choose adapters of one rank."
        )
    tell("combining", 0.2)
    torch.manual_seed(job.seed)
    model.add_weighted_adapter(
        names,
        [part.weight for part in job.parts],
        RESULT,
        combination_type=job.kind,
        svd_rank=job.rank,
        svd_full_matrices=False,
        density=job.density,
    )
    tell("writing", 0.9)
    tensors = get_peft_model_state_dict(model, adapter_name=RESULT, save_embedding_layers=False)
    (job.out / TENSORS).write_bytes(save({name: _of_rank(job.rank, name, tensor) for name, tensor in tensors.items()}))
    model.peft_config[RESULT].save_pretrained(str(job.out))
    templates = {own_template(part.folder) for part in job.parts}
    if len(templates) == 1 and (template := templates.pop()):
        (job.out / TEMPLATE_FILE).write_text(template, encoding="utf-8")


def _of_rank(rank: int, name: str, half: torch.Tensor) -> torch.Tensor:
    """Pad with zeros up to the config's rank, which narrow layers do not reach."""
    missing = rank - half.shape[0 if "lora_A" in name else 1]
    return nn.functional.pad(half, (0, 0, 0, missing) if "lora_A" in name else (0, missing)).contiguous()


def _layers(linear: Mapping[str, tuple[int, int]]) -> nn.Module:
    """Return the base's linear layers without weights: one number expanded to the shape.

    peft needs only layers and shapes, so an 8B base costs nothing here. On the meta device peft's own tensors would
    have no values either.
    """
    root = nn.Module()
    for module, (out, width) in linear.items():
        *path, last = module.split(".")
        at = root
        for part in path:
            if not hasattr(at, part):
                at.add_module(part, nn.Module())
            at = at.get_submodule(part)
        layer = nn.Linear(width, out, bias=False, device="meta")
        layer.weight = nn.Parameter(torch.zeros(1, 1).expand(out, width), requires_grad=False)
        at.add_module(last, layer)
    return root


COPIED_FILES = ("*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken", "*.py", "LICENSE*", "NOTICE*")
"""Files of the base that also apply to the merged model, unlike its card."""


def merge(job: Merge, tell: Callable[[str, float], None]) -> None:
    """Run `Merge`. Needs memory for the base and one layer in float32. Raises Unmergeable."""
    tell("reading the base", 0.0)
    config = AutoConfig.from_pretrained(job.base, trust_remote_code=job.trust_remote_code)
    model = AutoModelForCausalLM.from_pretrained(job.base, dtype="auto", trust_remote_code=job.trust_remote_code)
    kind, written = type(model).__name__, config.architectures or []
    if kind not in written:
        raise Unmergeable(f"The base is a {', '.join(written)}, and only its language part ({kind}) would be left.")
    _check_fit(job.adapter, {name: tuple(layer.weight.shape) for name, layer in _linear(model)})
    tell("merging", 0.5)
    adapted = PeftModel.from_pretrained(model, str(job.adapter), torch_device="cpu")
    with safe_open(job.adapter / TENSORS, framework="pt") as tensors:
        pairs = len(tensors.keys()) // 2
    adapted_layers = sum(isinstance(module, LoraLayer) for module in adapted.modules())
    if adapted_layers != pairs:
        raise Unmergeable(
            f"The adapter changes {pairs} layers, and transformers finds {adapted_layers} of them in the base."
        )
    merged = adapted.merge_and_unload(safe_merge=True)
    tell("writing", 0.6)
    merged.save_pretrained(job.out)
    _copy_the_rest(job.base, job.out)
    if template := own_template(job.adapter):
        (job.out / TEMPLATE_FILE).write_text(template, encoding="utf-8")
    for path in job.out.iterdir():
        path.chmod(0o644)
        with path.open("rb") as file:
            os.fsync(file.fileno())
    sync_folder(job.out)


def _linear(model: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    return ((name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear))


def _check_fit(adapter: Path, linear: Mapping[str, tuple[int, ...]]) -> None:
    """Raise Unmergeable for an adapter with other shapes than its base, which has changed since it was registered."""
    with safe_open(adapter / TENSORS, framework="pt") as tensors:
        for name in tensors.keys():  # noqa: SIM118  it is no dict
            module, _, half = name.removeprefix("base_model.model.").removesuffix(".weight").rpartition(".lora_")
            side, shape = 1 if half == "A" else 0, tensors.get_slice(name).get_shape()
            if module in linear and shape[side] != linear[module][side]:
                raise Unmergeable(
                    f"The adapter does not fit the weights that its base has now: lora_{half} of {module} is "
                    f"{list(shape)}, and the layer {list(linear[module])}. Register a version that was trained on them."
                )


def _copy_the_rest(base: Path, out: Path) -> None:
    """Copy the base's tokenizer, template and configs unchanged."""
    for file in {file for pattern in COPIED_FILES for file in base.glob(pattern)}:
        if file.is_file() and not file.name.endswith(".index.json"):
            shutil.copyfile(file, out / file.name)
