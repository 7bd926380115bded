"""vLLM's own code as it was installed, for tests of the patches to it."""

import importlib.util
from types import ModuleType


def stock(name: str) -> ModuleType:
    """A copy of a vLLM module as it was installed, whatever other tests patched."""
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
