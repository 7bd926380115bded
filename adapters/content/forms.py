"""Adapter layouts of trainers, archives and hubs: accepted ones, and advice for others.

They are recognised by file names and first bytes. docs/reference/adapter-forms.md shows these tables.
"""

import os
import re
import stat
from collections.abc import Collection, Mapping
from pathlib import Path, PurePosixPath

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
TEMPLATE_FILE = "chat_template.jinja"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.json", TEMPLATE_FILE)
"""Files that trainers save along with an adapter."""
MOST = 64 << 20
"""Largest such file that is read, in bytes."""
CHECKPOINT = re.compile(r"checkpoint-\d{1,12}")
MERGE = "Merge it into its base (merge_and_unload), and serve the result: roundhouse models add."

TAKEN: Mapping[str, str] = {
    "a folder written by peft's `save_pretrained`": "as it is",
    "peft's folder of an adapter that is not called `default`": "the one folder inside that holds the adapter",
    "a trainer's output folder with an adapter and `checkpoint-*`": "the adapter, without checkpoints",
    "a snapshot in a hub's cache, whose files are links into its `blobs`": "the linked files",
    "an archive made by macOS' Finder, with `__MACOSX` and `.DS_Store`": "everything but these files",
    "a tokenizer with the adapter": "the base's is used, and must have the same tokens under the same ids",
    "a chat template with the adapter": "used for its requests if it differs from the base's; see below",
}
"""Accepted forms, and what is used of each."""

SHADOWS = frozenset({"__MACOSX", ".DS_Store"})


def is_shadow(path: PurePosixPath) -> bool:
    """Return whether macOS added a member to an archive for itself."""
    return bool(SHADOWS.intersection(path.parts)) or path.name.startswith("._")


KINDS: Mapping[str, str] = {
    "ADALORA": f"AdaLoRA puts trained values between the two halves. {MERGE}",
    **dict.fromkeys(
        ("LOHA", "LOKR", "IA3", "OFT", "BOFT", "VERA", "FOURIERFT", "HRA", "LN_TUNING", "VBLORA", "BONE",
         "MISS", "RANDLORA", "SHIRA", "C3A", "ROAD", "WAVEFT"),
        f"The engine's places hold only plain LoRA. {MERGE}",
    ),
    **dict.fromkeys(
        ("XLORA", "POLY"),
        "It mixes several adapters anew for each input, which cannot be merged: train one LoRA instead.",
    ),
    **dict.fromkeys(
        ("PROMPT_TUNING", "PREFIX_TUNING", "P_TUNING", "MULTITASK_PROMPT_TUNING", "ADAPTION_PROMPT", "CPT",
         "CARTRIDGE"),
        "It trains inputs of the network instead of weights, which the engine does not support: train LoRA instead.",
    ),
}  # fmt: skip
"""peft_type to the remedy."""

SAVE_CONVERTED = "Save it again with peft's path_initial_model_for_weight_conversion."
INITS: Mapping[str, str] = {
    **dict.fromkeys(("pissa", "olora", "corda", "lora_ga"), SAVE_CONVERTED),
    "loftq": f"peft cannot convert it. {MERGE}",
}
"""Values of init_lora_weights that change the base, or how such values begin, to the remedy. peft's
LoraModel.subtract_mutated_init can convert most of them."""


def init_remedy(init: str) -> str:
    return next((remedy for name, remedy in INITS.items() if init.startswith(name)), SAVE_CONVERTED)


FOREIGN: Mapping[str, tuple[re.Pattern[str], str]] = {
    "mlx-lm": (
        re.compile(r"adapters\.(safetensors|npz)"),
        "Fuse it (mlx_lm.fuse, dequantized) and serve the result, or train it with peft.",
    ),
    "llama.cpp": (
        re.compile(r".*\.gguf"),
        "convert_lora_to_gguf.py made it from peft's folder: register that folder.",
    ),
    "diffusers": (
        re.compile(r"pytorch_lora_weights\.safetensors"),
        "It is for an image model, which is not served here.",
    ),
    "torchtune": (
        re.compile(r"adapter_\d+\.(pt|safetensors)"),
        "Convert it with torchtune.models.convert_weights.tune_to_peft_adapter_weights.",
    ),
    "the library adapters (AdapterHub)": (
        re.compile(r"pytorch_adapter\.bin|adapter\.safetensors"),
        "Merge it (merge_adapter), save the model and serve that, or train it with peft.",
    ),
    "DeepSpeed ZeRO": (
        re.compile(r"zero_to_fp32\.py|global_step\d+"),
        "Save the trained adapter with model.save_pretrained after accelerator.get_state_dict.",
    ),
    "FSDP": (
        re.compile(r"pytorch_model_fsdp_\d+|.*\.distcp"),
        "Merge the shards (accelerate merge-weights), load them into the PeftModel, and save it.",
    ),
    "NeMo": (re.compile(r".*\.nemo"), "Convert it to peft's form with NeMo's own export."),
}
"""Trainer to names of files that only it writes, and the remedy."""


def foreign_form(names: Collection[str]) -> str | None:
    """Name the format of a folder without peft's files, with advice; None if it is unknown."""
    for maker, (pattern, remedy) in FOREIGN.items():
        if any(pattern.fullmatch(name) for name in names):
            return f"This adapter has the format of {maker}, not of peft. {remedy}"
    return None


def inner_folder(folder: Path) -> Path:
    """Return the folder that holds the adapter: itself, or the only one inside that does.

    Raises ValueError, with a message for users, if there are several. Follows no links.
    """
    if not os.path.lexists(folder / CONFIG):
        inner = sorted(
            entry.name
            for entry in os.scandir(folder)
            if entry.is_dir(follow_symlinks=False)
            and not CHECKPOINT.fullmatch(entry.name)
            and os.path.lexists(Path(entry.path) / CONFIG)
        )
        if len(inner) > 1:
            few = ", ".join(inner[:5])
            raise ValueError(f"The folder holds {len(inner)} adapters ({few}): register each by its own folder.")
        if inner:
            return folder / inner[0]
    return folder


def blob_of(folder: Path, name: str) -> Path | None:
    """Resolve a link in a hub's cache: cache/snapshots/REVISION/name -> cache/blobs/DIGEST.

    Returns None for other links.
    """
    real = Path(os.path.realpath(folder))
    target = os.readlink(folder / name)
    if real.parent.name != "snapshots" or not re.fullmatch(r"\.\./\.\./blobs/[0-9a-f]{40,64}", target):
        return None
    blob = real.parent.parent / "blobs" / target.rpartition("/")[2]
    return blob if stat.S_ISREG(os.lstat(blob).st_mode) else None


FAMILIES = (
    "llama", "mistral", "mixtral", "qwen", "gemma", "phi", "granite", "stablelm", "olmo", "starcoder", "glm", "exaone",
    "falcon",
)  # fmt: skip
"""Words in the names of models with which their `model_type` also begins."""


def other_family(named: object, kind: str) -> str | None:
    """Return a note if the base named by a config is of another family than ours (`model_type`)."""
    name = str(named or "").rpartition("/")[2].lower()
    families = [family for family in FAMILIES if family in name]
    own = next((family for family in FAMILIES if kind.startswith(family)), None)
    if not families or own is None or own in families:
        return None
    return (
        f"adapter_config.json names {str(named)[:200]} as its base, but this model is a {kind}: an adapter that was "
        "trained on another model answers badly."
    )
