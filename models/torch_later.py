"""Libraries, parts of PyTorch most of all, that are imported once something of them is used, not with vLLM.

| part                                     | used                                                               |
|------------------------------------------|--------------------------------------------------------------------|
| the compiler: TorchDynamo, TorchInductor | where something is compiled; on a CPU, chat runs with `--enforce-eager` |
| sharded tensors: DTensor, FSDP           | by transformers, when it loads a model over several GPUs           |
| aiohttp                                  | by vLLM, when a message holds the address of a picture or recording |

They and what they take along, SymPy among it, are two fifths of the CPU time of vLLM's imports and 120 MiB.

| others, in their modules              | while vLLM is imported                    | once TorchDynamo is imported |
|---------------------------------------|-------------------------------------------|------------------------------|
| mark functions: `allow_in_graph`,     | have it noted; nothing traces, so the     | the marks are made           |
| `assume_constant_result`, `disable`   | functions run as they are                 |                              |
| mark tensors, as vLLM does in each step | nothing traces                          | they are marked              |
| `torch.compile` a function            | get one that compiles at its first call   | the same                     |
| change TorchInductor (`vllm.env_override`) | find none                            | change it                    |
"""

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import FunctionType, ModuleType
from typing import Any

from models.import_hooks import Around
from models.stand_ins import Name, Stand, StandIns

DYNAMO = "torch._dynamo"
PARTS = (
    DYNAMO, "torch._inductor", "torch.distributed.tensor", "torch.distributed.fsdp", "torch.distributed._composable",
    "transformers.distributed.sharding_utils", "transformers.distributed.tensor_parallel", "aiohttp",
)  # fmt: skip
LIGHT = ("torch._inductor.custom_graph_pass",)
"""A base class of vLLM's."""
LOWERING = "torch._inductor.lowering"
"""Not to be found meanwhile: vLLM changes it then when it is imported."""
TENSOR_MARKS = {"mark_dynamic", "mark_static", "mark_unbacked", "maybe_mark_dynamic"}


class TorchLater(StandIns):
    """Around the imports of vLLM: `only().imports()`."""

    def __init__(self) -> None:
        marks: dict[str, Callable[..., Any]] = {
            "disable": self._disable,
            "allow_in_graph": self._allow_in_graph,
            "assume_constant_result": _assume_constant_result,
        }
        known = {f"{DYNAMO}.{name}": functools.partial(_itself, mark) for name, mark in marks.items()}
        super().__init__(PARTS, LIGHT, known)
        self._disabled: list[Callable[[], None]] = []
        self.allowed: list[Any] = []
        self._compile: Any = None

    @contextmanager
    def imports(self) -> Iterator[None]:
        import torch

        if self._compile is None:
            self._compile = torch.compile
            sys.meta_path.insert(0, Around(frozenset({LOWERING}), _change_lowering))
        with super().imports():
            if self.open:
                torch.compile = self._compiled
            yield

    def end(self) -> None:
        if not self.open:
            return
        import torch

        torch.compile = self._compile
        super().end()
        vars(torch).setdefault("_dynamo", Stand(DYNAMO, self))  # for marks of tensors; an import takes its place

    def asked_for(self, module: str, name: str) -> Any:
        if f"{module}.{name}" == LOWERING:
            raise AttributeError(name)
        return super().asked_for(module, name)

    def asked_later(self, module: str, name: str) -> Any:
        if DYNAMO not in sys.modules:
            if name in TENSOR_MARKS:
                return _mark_nothing
            if (module, name) == (DYNAMO, "decorators"):
                return Stand(f"{module}.{name}", self)
        return super().asked_later(module, name)

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name == LOWERING:
            raise ModuleNotFoundError("not while vLLM is imported", name=name)
        return super().find_spec(name, path, target)

    def _compiled(self, model: Any = None, **options: Any) -> Any:
        if model is None:
            return functools.partial(self._compiled, **options)
        if not isinstance(model, FunctionType):
            self.end()
            return self._compile(model, **options)
        made: list[Any] = []

        @functools.wraps(model)
        def compiled(*args: Any, **kwargs: Any) -> Any:
            if not made:
                self.end()
                made.append(self._compile(model, **options))
            return made[0](*args, **kwargs)

        compiled._torchdynamo_orig_callable = model  # type: ignore[attr-defined]
        return compiled

    def _disable(self, fn: Any = None, *args: Any, **options: Any) -> Any:
        if fn is None:
            return lambda found: self._disable(found, *args, **options)
        if not isinstance(fn, FunctionType):
            return Name(self, DYNAMO, "disable")(fn, *args, **options)
        runs: list[Any] = [fn]

        @functools.wraps(fn)
        def disabled(*args: Any, **kwargs: Any) -> Any:
            return runs[0](*args, **kwargs)

        def mark() -> None:
            runs[0] = import_module(DYNAMO).disable(fn, *args, **options)

        self._disabled.append(mark)
        return disabled

    def _allow_in_graph(self, fn: Any) -> Any:
        self.allowed.append(fn)
        return fn

    @contextmanager
    def _imported(self, module: ModuleType) -> Iterator[None]:
        with super()._imported(module):
            yield
            if module.__name__ == DYNAMO:
                for mark in self._disabled:
                    mark()
                for fn in self.allowed:
                    vars(module)["allow_in_graph"](fn)


@contextmanager
def _change_lowering(_: ModuleType) -> Iterator[None]:
    yield
    change = getattr(sys.modules.get("vllm.env_override"), "_patch_inductor_fallback_allow_list", None)
    if change is not None:
        change()


def _itself(mark: Any) -> Any:
    return mark


def _assume_constant_result(fn: Any) -> Any:
    fn._dynamo_marked_constant = True
    return fn


def _mark_nothing(*args: Any, **kwargs: Any) -> None:
    """Of a tensor."""


@functools.cache
def only() -> TorchLater:
    """That of this process: what it noted counts until its end."""
    return TorchLater()
