"""vLLM's code as installed, and a double of its request for an adapter, for tests of our patches."""

import importlib.util
from types import ModuleType


def stock(name: str) -> ModuleType:
    """Return a copy of a vLLM module as installed, whatever other tests have patched."""
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class SimpleLoRARequest:
    """The part of vLLM's LoRARequest that the patched code uses."""

    def __init__(self, adapter_id: int) -> None:
        self.lora_int_id = adapter_id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SimpleLoRARequest) and other.lora_int_id == self.lora_int_id

    def __hash__(self) -> int:
        return self.lora_int_id
