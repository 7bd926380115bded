"""vLLM's code as installed, for tests of our patches."""

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
