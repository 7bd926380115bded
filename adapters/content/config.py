"""peft's adapter_config.json: fields that are used, ignored or refused.

Settings that change the meaning of the tensors are refused.
"""

import json
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from adapters.content.faults import Faults, few, quote_value
from adapters.content.forms import KINDS, MERGE, foreign_form, init_remedy
from adapters.content.tokenizer import TEMPLATE
from registry.bounds import Bounds

_Names = Annotated[list[str], BeforeValidator(lambda v: [v] if isinstance(v, str) else v)]
_Layers = Annotated[list[int], BeforeValidator(lambda v: [v] if isinstance(v, int) else v)]

REFUSED: dict[str, str] = {
    "use_dora": "DoRA rescales the base weights' columns, which adapter places cannot do. Merge it into the base, or "
    "train it with use_dora=false.",
    "modules_to_save": "it trains whole layers besides LoRA, which would have to replace the base's for all "
    "adapters. Train without modules_to_save, or serve the merged model as a base of its own.",
    "lora_bias": "the engine adds no bias to LoRA layers. Train with lora_bias=false.",
    "trainable_token_indices": "it changes rows of the token embedding, which all adapters of a base share.",
    "target_parameters": "LoRA on bare parameters (expert weights) is not supported; target linear layers.",
    "layer_replication": "it changes the number of layers of the base.",
    "alora_invocation_tokens": "activated LoRA changes weights within a sequence, which the engine cannot do.",
    "use_qalora": "QALoRA pools the inputs of each group, which the engine cannot do.",
    "use_bdlora": "block-diagonal LoRA has other shapes than the engine's places.",
    "arrow_config": "Arrow routes between several adapters in one layer.",
    "kasa_config": "KaSA puts a trained diagonal between the two halves.",
    "monteclora_config": "MonteCLoRA samples its weights.",
    "megatron_config": "Megatron's parallel layers split the tensors; save the adapter for plain linear layers.",
}
"""Settings that are refused if they are on, with the reason."""

INFORMATIONAL = {
    "peft_type", "peft_version", "auto_mapping", "base_model_name_or_path", "revision", "task_type", "inference_mode",
    "lora_dropout", "megatron_core", "loftq_config", "eva_config", "corda_config", "lora_ga_config", "velora_config",
    "qalora_group_size", "runtime_config", "ensure_weight_tying", "init_lora_weights", "bias", "fan_in_fan_out",
    "layers_pattern", TEMPLATE,
}  # fmt: skip
"""Known settings that do not change the meaning of trained tensors, or are checked separately below."""

_PLAIN_INITS = frozenset({"true", "false", "gaussian", "eva", "orthogonal", "mica"})
_FEATURE = re.compile(r"^(use_|lora_|apply_)|_(config|pattern|type)$")
_PLAIN_NAME = re.compile(r"^[A-Za-z0-9_.-]+$")
_Number = TypeVar("_Number", int, float)


class AdapterConfig(BaseModel):
    """The settings that are needed for checking and normalising.

    Patterns are those of peft: regular expressions for the end of a module's name, of which the first match wins.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    r: int = Field(ge=1, le=65536)
    lora_alpha: float = Field(allow_inf_nan=False)
    use_rslora: bool = False
    target_modules: _Names | None = None
    target_regex: str | None = None
    target_parameters: _Names = []
    """Refused; kept to explain its layers, which `target_modules` lacks."""
    exclude_modules: _Names = []
    exclude_regex: str | None = None
    layers_to_transform: _Layers = []
    rank_pattern: dict[str, Annotated[int, Field(ge=1, le=65536)]] = {}
    alpha_pattern: dict[str, Annotated[float, Field(allow_inf_nan=False)]] = {}

    def rank(self, module: str) -> int:
        return _by_pattern(self.rank_pattern, module, self.r)

    def scale(self, module: str) -> float:
        """Return the factor of B·A: alpha / r, or alpha / √r for rank-stabilised LoRA."""
        rank = self.rank(module)
        return _by_pattern(self.alpha_pattern, module, self.lora_alpha) / (math.sqrt(rank) if self.use_rslora else rank)

    def targets(self, module: str) -> bool:
        """Return whether peft gives this module (in a numbered layer) an adapter."""
        if self.exclude_regex is not None and re.fullmatch(self.exclude_regex, module):
            return False
        if _ends_with(module, self.exclude_modules):
            return False
        if self.target_regex is not None:
            if self.target_regex.lower() != "all-linear" and not re.fullmatch(self.target_regex, module):
                return False
        elif module in (named := self.target_modules or []):
            return True  # regardless of layers_to_transform
        elif not _ends_with(module, named):
            return False
        layer = re.match(r".*?\.?[^.]+\.(\d+)\.", module)
        return not self.layers_to_transform or (layer is not None and int(layer.group(1)) in self.layers_to_transform)


def read_config(raw: bytes, bounds: Bounds, faults: Faults) -> tuple[AdapterConfig | None, list[str]]:
    """Parse and check adapter_config.json.

    Returns the settings, or None if `faults` make them unusable, and notes on ignored settings.
    """
    try:
        data = json.loads(raw.decode("utf-8"), parse_constant=_no_constant)
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        faults.add(f"adapter_config.json is not JSON: {error}")
        return None, []
    if not isinstance(data, dict):
        faults.add("adapter_config.json must hold a JSON object.")
        return None, []
    kind = data.get("peft_type")
    if kind != "LORA":
        if kind is None and ("lora_parameters" in data or "num_layers" in data):  # peft always writes it
            faults.add(foreign_form(["adapters.safetensors"]) or "")
            return None, []
        remedy = KINDS.get(str(kind), MERGE)
        faults.add(
            f"peft_type is {quote_value(kind)}: only LORA adapters can be served, not other kinds of peft. {remedy}"
        )
        return None, []
    notes = _check_settings(data, faults)
    for key in ("target_modules", "exclude_modules"):  # a string is a regular expression, a list holds names
        value = data.get(key)
        if isinstance(value, str):
            data[key.removesuffix("_modules") + "_regex"] = value
            data.pop(key)
    fields = {key: value for key, value in data.items() if value is not None and key in AdapterConfig.model_fields}
    for key in ("target_modules", "exclude_modules"):
        if isinstance(fields.get(key), list):
            fields[key] = sorted(map(str, fields[key]))
    try:
        config = AdapterConfig.model_validate(fields)
    except ValidationError as error:
        for fault in error.errors():
            location = ".".join(map(str, fault["loc"]))
            if fault["type"] == "missing":
                faults.add(f"adapter_config.json: {location} is missing: peft writes it with save_pretrained.")
            else:
                faults.add(f"adapter_config.json: {location}: {fault['msg']} (it is {quote_value(fault['input'])}).")
        return None, notes
    return (config if _is_usable(config, bounds.adapter_patterns, faults) else None), notes


def _check_settings(data: dict[str, Any], faults: Faults) -> list[str]:
    """Refuse settings that change the meaning, and return notes on unknown ones."""
    notes = []
    for key, value in data.items():
        on = value not in (None, False, 0, "", "none") and value != [] and value != {}
        if key in REFUSED and on:
            faults.add(f"{key} is set ({quote_value(value)}): {REFUSED[key]}")
        elif key in REFUSED or key in INFORMATIONAL or key in AdapterConfig.model_fields:
            continue
        elif on and _FEATURE.search(key):
            faults.add(
                f"{key} is set ({quote_value(value)}): this setting is unknown, and such settings can change what the "
                "tensors mean. Remove it from adapter_config.json if you are sure that it does not."
            )
        elif on:
            notes.append(f"Setting {quote_value(key)} of adapter_config.json is unknown and was ignored.")
    bias = data.get("bias", "none")
    if bias not in ("none", None):
        faults.add(
            f"bias is {quote_value(bias)}: it trains the base's biases, which all adapters share. "
            "Train with bias='none'; "
            "if the base and so the file have none, write that into adapter_config.json."
        )
    init = str(data.get("init_lora_weights", True)).lower()
    if init not in _PLAIN_INITS and data.get("init_lora_weights") is not None:
        faults.add(
            f"init_lora_weights is {quote_value(data['init_lora_weights'])}: "
            f"this initialisation changes the base weights, and the adapter fits only those. {init_remedy(init)}"
        )
    task = data.get("task_type")
    if task not in (None, "CAUSAL_LM"):
        faults.add(f"task_type is {quote_value(task)}: only adapters of language models (CAUSAL_LM) can be served.")
    if data.get("fan_in_fan_out"):
        notes.append("fan_in_fan_out was ignored, as peft does for linear layers.")
    return few(notes, "notes")


def _is_usable(config: AdapterConfig, patterns: int, faults: Faults) -> bool:
    sound = True
    for key, alpha in {"lora_alpha": config.lora_alpha, **config.alpha_pattern}.items():
        if alpha <= 0:
            faults.add(
                f"{quote_value(key)} is {alpha:g}: the adapter would change nothing, or the wrong way. "
                "It must be above 0."
            )
            sound = False
    if config.target_modules is None and config.target_regex is None:
        faults.add("target_modules is missing: name the linear layers that the adapter changes.")
        sound = False
    if len(config.rank_pattern) + len(config.alpha_pattern) > patterns:
        faults.add(f"rank_pattern and alpha_pattern have more than {patterns} entries.")
        sound = False
    regexes = [*config.rank_pattern, *config.alpha_pattern, config.target_regex or "", config.exclude_regex or ""]
    for regex in regexes:
        try:
            if len(regex) > 1000:
                raise re.error("longer than 1000 characters")
            re.compile(regex)
        except (re.error, RecursionError, OverflowError) as error:
            faults.add(f"{quote_value(regex)} is not a usable pattern: {error}.")
            sound = False
    return sound


def _by_pattern(patterns: Mapping[str, _Number], module: str, default: _Number) -> _Number:
    for pattern, value in patterns.items():
        if _PLAIN_NAME.match(pattern):  # most are plain names, which need no regex
            if module == pattern or module.endswith("." + pattern):
                return value
        elif re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return default


def _ends_with(module: str, names: list[str]) -> bool:
    return any(module == name or module.endswith("." + name) for name in names)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")
