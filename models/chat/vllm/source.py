"""Read the model classes of the installed vLLM from its source, without importing it.

If a version of vLLM has its tables elsewhere, nothing is checked before a load. `touches.PARSED` lists the tables.
"""

import ast
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from registry.vllm_source import parsed, root, table, tree

MODELS = "model_executor/models"
REGISTRY = f"{MODELS}/registry.py"
CHAT = ("_TEXT_GENERATION_MODELS", "_MULTIMODAL_MODELS", "_TRANSFORMERS_SUPPORTED_MODELS")
"""Tables of `registry.py` with models that generate text."""
FORMER, PLUGINS = "_PREVIOUSLY_SUPPORTED_MODELS", "_OOT_SUPPORTED_MODELS"
RENDERED = frozenset({
    "DeepseekV32ForCausalLM", "DeepseekV4ForCausalLM", "DeepseekV4ForConditionalGeneration", "DeepseekV41ForCausalLM",
    "InklingForCausalLM", "InklingForConditionalGeneration", "KimiK3ForConditionalGeneration",
})  # fmt: skip
"""Architectures without a template, whose chats vLLM renders with its own code (config/model.py)."""
DEEPEST = 5
"""Maximum depth of base classes that are searched."""


@cache
def architectures() -> Mapping[str, tuple[str, str]]:
    """Map architectures of models that generate text to module and class; empty if unknown."""
    models_by_architecture: dict[str, tuple[str, str]] = {}
    for models in CHAT:
        models_by_architecture |= {
            name: target for name, target in table(REGISTRY, models).items() if isinstance(target, tuple)
        }
    return models_by_architecture


def class_of(architecture: str) -> tuple[str, str] | None:
    """Return the full name of its module, and the name of its class; None if unknown."""
    module, name = architectures().get(architecture, ("", ""))
    if not module:
        return None
    return (module if module.startswith("vllm.") else f"vllm.{MODELS.replace('/', '.')}.{module}"), name


@cache
def former() -> Mapping[str, str]:
    """Map architectures to the last version of vLLM that served them."""
    return {name: str(version) for name, version in table(REGISTRY, FORMER).items()}


@cache
def plugin_models() -> Mapping[str, str]:
    """Map architectures to the address of a plug-in for vLLM that serves them."""
    return {name: str(address) for name, address in table(REGISTRY, PLUGINS).items()}


@cache
def quantizations() -> frozenset[str]:
    """Return the possible values of `quantization_config.quant_method`; empty if unknown."""
    for node in tree("model_executor/layers/quantization/__init__.py").body:
        if isinstance(node, ast.Assign) and any(getattr(t, "id", "") == "QuantizationMethods" for t in node.targets):
            return frozenset(str(c.value) for c in ast.walk(node.value) if isinstance(c, ast.Constant))
    return frozenset()


@cache
def config_kinds() -> frozenset[str]:
    """Return the `model_type`s whose config vLLM has; empty if unknown."""
    for node in tree("transformers_utils/config.py").body:
        if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == "_CONFIG_REGISTRY":
            words = [word for call in ast.walk(node) if isinstance(call, ast.Call) for word in call.keywords]
            spread = [word.value.keys for word in words if not word.arg and isinstance(word.value, ast.Dict)]
            keys = [key.value for keys in spread for key in keys if isinstance(key, ast.Constant)]
            return frozenset(str(name) for name in [*(word.arg for word in words if word.arg), *keys])
    return frozenset()


@cache
def takes_adapters(architecture: str) -> bool:
    """Return whether vLLM's class of an architecture, or a base class of it, supports LoRA."""
    module, name = architectures().get(architecture, ("", ""))
    return bool(module) and _supports(_file_of(module), name, DEEPEST)


def _supports(file: Path | None, name: str, deep: int) -> bool:
    if file is None or not deep:
        return False
    module = parsed(file)
    classes = {node.name: node for node in ast.walk(module) if isinstance(node, ast.ClassDef)}
    if name not in classes:
        return (other := _import_of(module, name, file)) is not None and _supports(other, name, deep - 1)
    bases = [base.id for base in classes[name].bases if isinstance(base, ast.Name)]
    return "SupportsLoRA" in bases or any(_supports(file, base, deep - 1) for base in bases)


def _import_of(module: ast.Module, name: str, file: Path) -> Path | None:
    """Return the file of vLLM from which `name` is imported, if any."""
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and any((alias.asname or alias.name) == name for alias in node.names):
            if not node.level:
                return _file_of(node.module or "")
            folder = file.parents[node.level - 1]
            return _python(folder.joinpath(*(node.module or "").split(".")))
    return None


def _file_of(module: str) -> Path | None:
    """Return the file of a module in the form of vLLM's tables, such as `llama` or `vllm.models.hy_v4`."""
    folder = root()
    if folder is None:
        return None
    parts = module.split(".")
    return _python(folder.joinpath(*parts[1:]) if parts[0] == "vllm" else folder.joinpath(MODELS, *parts))


def _python(path: Path) -> Path | None:
    files = (path.with_name(f"{path.name}.py"), path / "__init__.py")
    return next((file for file in files if file.is_file()), None)
