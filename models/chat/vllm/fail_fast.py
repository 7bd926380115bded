"""What is wrong with a list of a request is told of its first item, and the others are not looked at.

vLLM's request classes try every item as each of its kinds (61 for the input of a response) and note why it is none:
20,000 items that are numbers, 300 kB, keep the loop that feeds all streams for 30 s.
"""

import types
from functools import reduce
from operator import or_
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, FailFast


class _Fast(FailFast):
    __hash__ = object.__hash__  # a union of types wants to know which are the same


_FAST = _Fast()


def patch(app: Any) -> None:
    """The request classes of vLLM's application. An application that is made afterwards has what was changed."""
    for route in app.routes:
        for kind in get_type_hints(getattr(route, "endpoint", None) or object).values():
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                _patch(kind)


def _patch(kind: type[BaseModel]) -> None:
    for field in kind.model_fields.values():
        field.annotation = _fast(field.annotation)
    kind.model_rebuild(force=True)


def _fast(annotation: Any) -> Any:
    origin = get_origin(annotation)
    if origin is list:
        return Annotated[annotation, _FAST]
    if origin in (Union, types.UnionType):
        return reduce(or_, map(_fast, get_args(annotation)))
    if origin is Annotated and _FAST not in annotation.__metadata__:
        return Annotated[(_fast(get_args(annotation)[0]), *annotation.__metadata__)]
    return annotation
