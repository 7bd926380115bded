"""Base and adapter as one model, by peft's `merge_and_unload`; imports torch."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from peft import PeftModel
from peft.tuners.lora import LoraLayer
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM

from adapters.compose.jobs import Merge, Unmergeable
from adapters.content.forms import TEMPLATE_FILE, TENSORS
from adapters.content.tokenizer import own_template
from registry.storage.files import sync_folder

COPIED_FILES = ("*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken", "*.py", "LICENSE*", "NOTICE*")
"""Files of the base that hold for the merged model too: its card does not."""


def merge(job: Merge, tell: Callable[[str, float], None]) -> None:
    """See `Merge`. Needs the base once, and one layer in float32. Raises Unmergeable."""
    tell("reading the base", 0.0)
    config = AutoConfig.from_pretrained(job.base, trust_remote_code=job.trust_remote_code)
    if getattr(config, "quantization_config", None):
        raise Unmergeable("Weights that are quantised take no merge: merge into the base that they were made from.")
    model = AutoModelForCausalLM.from_pretrained(job.base, dtype="auto", trust_remote_code=job.trust_remote_code)
    kind, written = type(model).__name__, config.architectures or []
    if kind not in written:
        raise Unmergeable(f"The base is a {', '.join(written)}, and only its language half ({kind}) would be left.")
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


def _copy_the_rest(base: Path, out: Path) -> None:
    """Tokenizer, template and configs are the base's own, byte by byte."""
    for file in {file for pattern in COPIED_FILES for file in base.glob(pattern)}:
        if file.is_file() and not file.name.endswith(".index.json"):
            shutil.copyfile(file, out / file.name)
