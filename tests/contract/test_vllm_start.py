"""What a start of EngineCore is spared: the fault on a fresh copy of vLLM's code, and that the outcome is the same."""

import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from adapters import vllm_start
from tests.contract.vllm_stock import stock

pytestmark = pytest.mark.real
DISPATCHER = "vllm.triton_utils.dispatcher"
LOADER = "vllm.model_executor.model_loader.base_loader"


class Kernel:
    """Stands for one of Triton's."""

    arg_names = ("x",)

    def __init__(self, name: str) -> None:
        self.__name__ = name
        self.fn = lambda x: x


class Owner:
    """What launches a kernel, as vLLM's warm-up does."""

    def __init__(self, kernel: object) -> None:
        self.kernel, self._kernel_arg_names = kernel, ("x",)


class Forbidding:
    """vLLM's stand-in for what is not installed: any question but for identity is an error."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def __eq__(self, other: object) -> bool:
        raise AssertionError("compared")

    __hash__ = None  # type: ignore[assignment]


def world(monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, ModuleType]:
    """Two modules: the first defines kernels, the second refers to them in each way."""
    home, user = ModuleType("kernels_home"), ModuleType("kernels_user")
    home.one, home.two, home.other = Kernel("one"), Kernel("two"), Kernel("other")  # type: ignore[attr-defined]
    user.mine, user.strange = home.one, Forbidding()  # type: ignore[attr-defined]
    user.owner, user.stranger = Owner(home.two), Owner(home.other)  # type: ignore[attr-defined]
    user.Held = type("Held", (), {"kernel": home.one})  # type: ignore[attr-defined]
    for module in (home, user):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return home, user


def implementation(x: object) -> str:
    return f"in C++: {x}"


OVERRIDES = {"kernels_home.one": implementation, "kernels_home.two": implementation}


def seen(home: ModuleType, user: ModuleType) -> list[object]:
    """Who answers where; the third and the last are not to be touched."""
    held = (home.one, home.two, home.other, user.mine, user.owner.kernel, user.stranger.kernel, user.Held.kernel)
    return [type(kernel).__name__ for kernel in held] + sorted(vars(user.owner)) + sorted(vars(user.stranger))


def test_kernels_are_replaced_where_vllm_replaces_them(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = []
    for patched in (False, True):
        dispatcher = stock(DISPATCHER)
        if patched:
            vllm_start.patch(dispatcher, SimpleNamespace())
        with monkeypatch.context() as fresh:
            home, user = world(fresh)
            dispatcher.register_kernels(OVERRIDES)
            outcomes.append(seen(home, user))
            assert user.mine[None](x=3) == "in C++: 3"
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][:7] == ["KernelOverride"] * 2 + ["Kernel"] + ["KernelOverride"] * 2 + [
        "Kernel",
        "KernelOverride",
    ]


def test_once_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork finds them replaced; vLLM's own code would look at everything again, and copy each page of it."""
    scans: list[int] = []

    class Counted(dict[str, Any]):
        def values(self) -> Any:
            scans.append(1)
            return super().values()

    for patched, wanted in ((False, 2), (True, 1)):
        dispatcher = stock(DISPATCHER)
        if patched:
            vllm_start.patch(dispatcher, SimpleNamespace())
            vllm_start.patch(dispatcher, SimpleNamespace())
        with monkeypatch.context() as fresh:
            world(fresh)
            counted = Counted(sys.modules)
            fresh.setattr(dispatcher, "sys", SimpleNamespace(modules=counted))
            fresh.setattr(vllm_start, "sys", SimpleNamespace(modules=counted))
            scans.clear()
            for _ in range(2):
                dispatcher.register_kernels(OVERRIDES)
            assert len(scans) == wanted
            assert set(dispatcher._registry) == set(OVERRIDES)
            dispatcher.register_kernels({"kernels_home.other": implementation})
            assert len(scans) == wanted + 1, "another one is replaced still"


def test_the_loader_imports_no_compressors_for_a_model_without_quantization(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm.model_executor.layers.quantization.online.base", None)
    loader, plain = stock(LOADER), SimpleNamespace(quant_config=None)
    with pytest.raises(ImportError):
        loader.log_online_quantization(plain)
    vllm_start.patch(None, loader)
    loader.log_online_quantization(plain)
    loader.log_online_quantization_time(plain)
    with pytest.raises(ImportError):  # with one, vLLM's own code is asked
        loader.log_online_quantization(SimpleNamespace(quant_config=SimpleNamespace()))


PROBE = """
import sys
from models import chat_prewarm
chat_prewarm.prewarm()
from vllm.triton_utils import dispatcher
from vllm.v1.worker import block_table
assert dispatcher._registry, "the kernels were not replaced before the fork"
assert type(block_table.ComputeSlotMappingKernel.kernel).__name__ == "KernelOverride"
assert "vllm.entrypoints.openai.responses.api_router" not in sys.modules, "EngineCore needs none of it"
chat_prewarm.prewarm_server()
missing = [name for name in chat_prewarm.SERVER if name not in sys.modules]
assert not missing, missing
"""


@pytest.mark.timeout(300)
def test_a_warm_slot_has_all_of_it() -> None:
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
