"""Parts of PyTorch that are imported once something of them is used, not with vLLM.

| part                                     | used                                                               |
|------------------------------------------|--------------------------------------------------------------------|
| the compiler: TorchDynamo, TorchInductor | where something is compiled; on a CPU, chat runs with `--enforce-eager` |
| sharded tensors: DTensor, FSDP           | by transformers, when it loads a model over several GPUs           |

They and what they take along, SymPy among it, are two fifths of the CPU time of vLLM's imports and 110 MiB. Meanwhile
stand-ins take their places:

| others, in their modules              | meanwhile                                 | once the part is imported |
|---------------------------------------|-------------------------------------------|---------------------------|
| take a name from such a part          | get a `Name`                              | have the real one         |
| mark functions: `allow_in_graph`,     | have it noted; nothing traces, so the     | the marks are made        |
| `assume_constant_result`, `disable`   | functions run as they are                 |                           |
| `torch.compile` a function            | get one that compiles at its first call   | the same                  |
| change TorchInductor (`vllm.env_override`) | find none                            | change it                 |

Whatever else is asked of a stand-in ends all of them: the part is imported then and there.
"""

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from operator import attrgetter
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from models.import_hooks import Around

DYNAMO = "torch._dynamo"
PARTS = (
    DYNAMO, "torch._inductor", "torch.distributed.tensor", "torch.distributed.fsdp", "torch.distributed._composable",
    "transformers.distributed.sharding_utils", "transformers.distributed.tensor_parallel",
)  # fmt: skip
LOWERING = "torch._inductor.lowering"
"""Not to be found meanwhile: vLLM changes it then when it is imported (`_changed`)."""
LIGHT = "torch._inductor.custom_graph_pass"
"""Imported as it is: a base class of vLLM's, and it needs nothing else of the compiler."""
TENSOR_MARKS = {"mark_dynamic", "mark_static", "mark_unbacked", "maybe_mark_dynamic"}
"""What TorchDynamo is told of a tensor for what traces it next: nothing does, as long as it is not imported."""


class Name:
    """Stands for what a module calls `name`, or for an attribute of that."""

    __slots__ = ("_later", "_module", "_name")

    def __init__(self, later: "StandIns", module: str, name: str) -> None:
        self._later, self._module, self._name = later, module, name

    def of(self, part: str) -> bool:
        return f"{self._module}.".startswith(f"{part}.")

    def real(self) -> Any:
        self._later.end()
        return attrgetter(self._name)(import_module(self._module))

    def __getattr__(self, attribute: str) -> Any:
        """Meanwhile everything is there (a test compares); what it is, is seen when it is used."""
        if attribute.startswith("__"):  # asked of each object by who goes through modules
            raise AttributeError(attribute)
        if not self._later.open:
            return getattr(self.real(), attribute)
        self._later.asked.append((self._module, f"{self._name}.{attribute}"))
        return Name(self._later, self._module, f"{self._name}.{attribute}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.real()(*args, **kwargs)

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self.real(),)

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, self.real())

    def __subclasscheck__(self, subclass: type) -> bool:
        return issubclass(subclass, self.real())

    def __or__(self, other: Any) -> Any:  # in annotations
        return Any

    __ror__ = __getitem__ = __or__


class Stand(ModuleType):
    """Stands for a module of the compiler."""

    def __init__(self, name: str, later: "StandIns") -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self.__dict__["_later"] = later

    def __getattr__(self, name: str) -> Any:
        full = f"{self.__name__}.{name}"
        if full == LOWERING or name.startswith("__"):
            raise AttributeError(name)
        if not self._later.open:
            if DYNAMO not in sys.modules and name in TENSOR_MARKS:
                return _mark_nothing
            if DYNAMO not in sys.modules and full == f"{DYNAMO}.decorators":
                return Stand(full, self._later)
            return getattr(import_module(self.__name__), name)
        if full in self._later.marks:
            return self._later.marks[full]
        self._later.asked.append((self.__name__, name))
        return Name(self._later, self.__name__, name)


class StandIns(MetaPathFinder):
    """Around the imports of vLLM or transformers: `only().imports()`."""

    def __init__(self) -> None:
        self.open = False
        self.asked: list[tuple[str, str]] = []
        """What others took to be there: (module, name)."""
        self.marks: dict[str, Callable[..., Any]] = {
            f"{DYNAMO}.disable": self._disable,
            f"{DYNAMO}.allow_in_graph": self._allow_in_graph,
            f"{DYNAMO}.assume_constant_result": _assume_constant_result,
        }
        self._disabled: list[Callable[[], None]] = []
        self._allowed: list[Any] = []
        self._compile: Any = None

    @contextmanager
    def imports(self) -> Iterator[None]:
        """Parts that are imported already are as they are."""
        import torch

        if DYNAMO in sys.modules:
            yield
            return
        if self._compile is None:
            sys.meta_path.insert(0, Around(frozenset({*PARTS, LOWERING}), self._changed))
        self.open, self._compile = True, torch.compile
        torch.compile = self._compiled
        sys.meta_path.insert(0, self)
        try:
            yield
        finally:
            self.end()

    def end(self) -> None:
        """From now on imports of the parts import them. Safe to call twice."""
        if not self.open:
            return
        import torch

        self.open, torch.compile = False, self._compile
        sys.meta_path.remove(self)
        for name, module in list(sys.modules.items()):
            if isinstance(module, Stand):
                del sys.modules[name]
                parent, _, child = name.rpartition(".")
                if parent in sys.modules and vars(sys.modules[parent]).get(child) is module:
                    delattr(sys.modules[parent], child)
        # vLLM marks tensors in each step with logprobs; an import takes this one's place
        vars(torch).setdefault("_dynamo", Stand(DYNAMO, self))

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        import torch

        if name == LOWERING:
            raise ModuleNotFoundError("not while vLLM is imported", name=name)
        if name == LIGHT:
            file = Path(torch.__file__).parent.joinpath(*name.split(".")[1:]).with_suffix(".py")
            return ModuleSpec(name, SourceFileLoader(name, str(file)), origin=str(file))
        if any(name == part or name.startswith(f"{part}.") for part in PARTS):
            return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Stand(spec.name, self)

    def exec_module(self, module: ModuleType) -> None:
        """A stand-in holds nothing."""

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
        self._allowed.append(fn)
        return fn

    @contextmanager
    def _changed(self, module: ModuleType) -> Iterator[None]:
        """The real one is imported."""
        if LIGHT.startswith(f"{module.__name__}.") and LIGHT in sys.modules:
            setattr(module, LIGHT.rpartition(".")[2], sys.modules[LIGHT])
        yield
        if module.__name__ == LOWERING:
            patch = getattr(sys.modules.get("vllm.env_override"), "_patch_inductor_fallback_allow_list", None)
            if patch is not None:
                patch()
            return
        if module.__name__ == DYNAMO:
            for mark in self._disabled:
                mark()
            for fn in self._allowed:
                vars(module)["allow_in_graph"](fn)
        for holder, attribute, name in names():
            if name.of(module.__name__):
                with suppress(ImportError, AttributeError):
                    setattr(holder, attribute, name.real())


def _mark_nothing(*args: Any, **kwargs: Any) -> None:
    """Of a tensor."""


@functools.cache
def only() -> StandIns:
    """Those of this process: what they noted counts until its end."""
    return StandIns()


def _assume_constant_result(fn: Any) -> Any:
    fn._dynamo_marked_constant = True
    return fn


def names() -> list[tuple[ModuleType, str, Name]]:
    """Every name in a module that stands for something: (module, attribute, name)."""
    return [
        (holder, attribute, value)
        for holder in list(sys.modules.values())
        for attribute, value in list((getattr(holder, "__dict__", None) or {}).items())
        if type(value) is Name
    ]
