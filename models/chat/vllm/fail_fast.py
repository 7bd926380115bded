"""What vLLM's request classes are to refuse: numbers that 64 bits cannot hold, and a list at its first fault.

vLLM's classes take integers of any size and infinite floats. EngineCore's transport, msgpack, ends at 64 bits, and
fails when the request's state is registered already. And the classes try every item of a list as each of its kinds
(61 for the input of a response) and note why it is none: 20,000 items that are numbers, 300 kB, keep the loop that
feeds all streams for 30 s.
"""

import sys
import types
from functools import reduce
from operator import or_
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Le
from pydantic import BaseModel, FailFast
from pydantic.dataclasses import is_pydantic_dataclass, rebuild_dataclass


class _Fast(FailFast):
    __hash__ = object.__hash__  # a union of types wants to know which are the same


_FAST = _Fast()
_BOUNDS: dict[Any, tuple[Any, ...]] = {
    int: (Ge(-(2**63)), Le(2**63 - 1)),
    float: (Ge(-sys.float_info.max), Le(sys.float_info.max)),
}
_OURS = (_FAST, *_BOUNDS[int], *_BOUNDS[float])


def patch(app: Any) -> None:
    """The request classes of vLLM's application. An application that is made afterwards has what was changed."""
    done: set[type] = set()
    for route in app.routes:
        for kind in get_type_hints(getattr(route, "endpoint", None) or object).values():
            if isinstance(kind, type):
                _patch(kind, done)


def _patch(kind: type, done: set[type]) -> None:
    """A model, or a dataclass of pydantic's; others stay as they are."""
    if kind in done:
        return
    done.add(kind)
    if issubclass(kind, BaseModel):
        for field in kind.model_fields.values():
            field.annotation = _bounded(field.annotation, done)
        kind.model_rebuild(force=True)
    elif is_pydantic_dataclass(kind):
        for name, inner in kind.__dataclass_fields__.items():
            inner.type = _bounded(kind.__pydantic_fields__[name].annotation, done)
        rebuild_dataclass(kind, force=True)


def _bounded(annotation: Any, done: set[type]) -> Any:
    origin, inner = get_origin(annotation), get_args(annotation)
    if annotation in _BOUNDS:
        return Annotated[annotation, *_BOUNDS[annotation]]
    if isinstance(annotation, type) and annotation.__module__.startswith("vllm."):
        _patch(annotation, done)
    if origin is list:
        return Annotated[list[_bounded(inner[0], done)], _FAST]  # type: ignore[misc]
    if origin is dict:
        return dict[inner[0], _bounded(inner[1], done)]  # type: ignore[misc,valid-type]
    if origin in (Union, types.UnionType):
        return reduce(or_, (_bounded(one, done) for one in inner))
    if origin is Annotated and not any(one is ours for one in annotation.__metadata__ for ours in _OURS):
        return Annotated[(_bounded(inner[0], done), *annotation.__metadata__)]
    return annotation
