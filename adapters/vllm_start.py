"""What each start of EngineCore spends a second of CPU on, for nothing.

- Without Triton, vLLM puts its C++ kernels in the place of Triton's wherever a module refers to one: each attribute of
  some 6,000 modules is compared with each kernel in turn, and in a fork each page that is looked at is copied. Here it
  is done once, before the fork (`models.chat_prewarm`), by a table of identities.
- To log whether weights are quantized while they are read, the loader imports the compressors of quantized checkpoints,
  also for a model without any quantization.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any


def _rebind_kernels(overrides: Sequence[tuple[Any, Any]]) -> None:
    """Let every reference to an original kernel point to its wrapper: attributes of modules, and `kernel` of objects
    there that launch one. `overrides` holds (original, wrapper), so no original's id is another object's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some modules warn of what is merely looked at
        _rebind({id(original): wrapper for original, wrapper in overrides})


def _rebind(wrappers: Mapping[int, Any]) -> None:
    for module in list(sys.modules.values()):
        for name, value in list((getattr(module, "__dict__", None) or {}).items()):
            if (wrapper := wrappers.get(id(value))) is not None:
                setattr(module, name, wrapper)
                continue
            launched = vars(value).get("kernel") if hasattr(value, "__dict__") else None
            if (wrapper := wrappers.get(id(launched))) is not None:
                value.kernel = wrapper
                if not isinstance(value, type):
                    vars(value).pop("_kernel_arg_names", None)


def _registers_once(register: Callable[[Mapping[str, Any]], None], registry: Mapping[str, Any]) -> Callable[..., None]:
    def register_kernels(overrides: Mapping[str, Any]) -> None:
        """Modules that were imported since the first time have found the wrappers in place."""
        new = {name: impl for name, impl in overrides.items() if registry.get(name, (None, None))[1] is not impl}
        if new:
            register(new)

    register_kernels.roundhouse = True  # type: ignore[attr-defined]
    return register_kernels


def _asks_only_if_quantized(ask: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def online_quantization_config(vllm_config: Any) -> Any:
        return None if vllm_config.quant_config is None else ask(vllm_config)

    online_quantization_config.roundhouse = True  # type: ignore[attr-defined]
    return online_quantization_config


def patch_installed() -> None:
    """Patch vLLM as it is installed here."""
    from vllm.model_executor.model_loader import base_loader

    dispatcher = None
    with suppress(ModuleNotFoundError):  # not in 0.26
        dispatcher = import_module("vllm.triton_utils.dispatcher")
    patch(dispatcher, base_loader)


def patch(dispatcher: Any, base_loader: Any) -> None:
    """`dispatcher`: vllm.triton_utils.dispatcher; `base_loader`: vllm.model_executor.model_loader.base_loader. Either
    may be without what is changed: older releases do neither. Safe to call twice."""
    if hasattr(dispatcher, "_rebind_kernels") and not hasattr(dispatcher.register_kernels, "roundhouse"):
        dispatcher._rebind_kernels = _rebind_kernels
        dispatcher.register_kernels = _registers_once(dispatcher.register_kernels, dispatcher._registry)
    ask = getattr(base_loader, "_get_online_quantization_config", None)
    if ask is not None and not hasattr(ask, "roundhouse"):
        base_loader._get_online_quantization_config = _asks_only_if_quantized(ask)
