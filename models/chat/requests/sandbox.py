"""A sandbox for chat templates of adapters that bounds their memory, and steps that nothing could interrupt.

jinja2's own sandbox bounds neither: `'x' * 10**10` takes 10 GB, and `10 ** 10 ** 10` never ends. Here the characters
and items of each result are counted, before it is made where it may be much larger than what it is made of.
"""

import re
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial, wraps
from types import MethodType
from typing import Any, TypeVar, cast

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.environment import Template
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

T = TypeVar("T")
MOST = 128 << 20
"""Characters and items of all results of a rendering. They take 0.5 GiB at worst."""
BITS = 1 << 13
"""Largest number. Its binary digits, with separators, are about as many as WIDTH."""
WIDTH = 10_000
"""Largest number that says how wide or how many something is."""
PADDING = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs"})
SEARCHES = frozenset({"lstrip", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "strip"})
"""Methods that take as long as the product of two lengths, in one step."""
SPLITS = frozenset({"rsplit", "split", "splitlines"})
PIECE = 16
"""Cost of a piece of a split text in addition to its characters, since it takes 64 bytes."""
SIZED = frozenset({"batch", "center", "indent", "pprint", "round", "slice", "tojson", "truncate", "wordwrap"})
"""Filters whose numbers say how large their results are."""
UNBOUNDED = frozenset({"urlize"})
"""Filters with a step of any length: a regular expression may take seconds for 10,000 characters."""
READING = frozenset({"attr", "count", "d", "default", "first", "items", "last", "length", "random"})
"""Filters that make nothing. Templates ask for the length of a conversation at each of its messages."""
_WIDTHS = re.compile(r"\d{5}|\*|\{[^{}]*\{")
"""Widths in a text to be formatted that have five digits, of any script, or are arguments."""
_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))


def bound(stock: Template, source: str) -> Template:
    """Compile `source` with bounds, in the environment of `stock`, which is used for nothing else."""
    stock.environment.__class__ = BoundedEnvironment
    environment = cast(BoundedEnvironment, stock.environment)
    environment.begin()
    return environment.from_string(source)


class _Generator(CodeGenerator):
    """Counts the results of operators that a sandbox cannot intercept."""

    def _count(self, write: Callable[[], None]) -> None:
        self.write("environment.counted(")
        write()
        self.write(")")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.joined((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        self._count(partial(super().visit_List, node, frame))

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        self._count(partial(super().visit_Dict, node, frame))

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        write = partial(super().visit_Tuple, node, frame)
        self._count(write) if node.ctx == "load" else write()

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        write = partial(super().visit_Getitem, node, frame)
        if isinstance(node.arg, nodes.Slice):
            self.write("environment.sliced(")
            write()
            self.write(")")
        else:
            write()


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Raises SecurityError beyond the bounds. Each thread has bounds of its own, and renders one prompt."""

    code_generator_class = _Generator
    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def begin(self) -> None:
        self._thread = threading.local()
        self.globals.pop("lipsum", None)
        filters = {name: work for name, work in self.filters.items() if name not in UNBOUNDED}
        self.filters = {name: self._bounded_filter(name, work) for name, work in filters.items()}
        if "strftime_now" in self.globals:  # of transformers
            self.globals["strftime_now"] = self._bounded_clock(cast(Any, self.globals["strftime_now"]))
        self.finalize = self.printed

    # --- counting ---------------------------------------------------------------------------------------------------
    def _charge(self, count: int) -> None:
        spent = getattr(self._thread, "spent", 0) + count
        if spent > MOST:
            raise SecurityError(f"The chat template makes more than {MOST} characters.")
        self._thread.spent = spent

    def counted(self, value: T) -> T:
        """Count a result, and return it."""
        if isinstance(value, str | bytes):
            self._charge(len(value))
        elif isinstance(value, list | tuple | dict | set):
            self._charge(len(value))
            _size(value)
        elif isinstance(value, Namespace):
            self._charge(_size(value))
        elif isinstance(value, int):
            _check_bits(value.bit_length())
        return value

    def printed(self, value: T) -> T:
        """Count a value that is about to be printed, and return it."""
        if isinstance(value, (*_VIEWS, MethodType)):
            self._charge(_size(value))
        return self.counted(value)

    def sliced(self, value: T) -> T:
        """Count a slice, whose items were counted before, and return it."""
        if isinstance(value, str | bytes | list | tuple):
            self._charge(len(value))
        return value

    def joined(self, parts: Sequence[object]) -> str:
        """Join the operands of `~`."""
        self._charge(sum(map(_size, parts)))
        return "".join(map(str, parts))

    def concat(self, pieces: Iterable[str]) -> str:
        pieces = list(pieces)
        self._charge(sum(map(len, pieces)))
        return "".join(pieces)

    # --- operators, calls and filters -------------------------------------------------------------------------------
    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        match operator:
            case "*":
                for sequence, times in ((left, right), (right, left)):
                    if isinstance(times, int) and isinstance(sequence, str | bytes | list | tuple):
                        self._charge(max(0, times) * _size(sequence))
                if isinstance(left, int) and isinstance(right, int):
                    _check_bits(left.bit_length() + right.bit_length())
            case "**" if isinstance(left, int) and isinstance(right, int):
                _check_bits(left.bit_length() * abs(right))
            case "%" if isinstance(left, str | bytes):
                self._check_format(left, right)
            case "+" if isinstance(left, str | bytes):
                self._charge(_size(left) + _size(right))
        return self.counted(super().call_binop(context, operator, left, right))

    def call(self, context: Context, obj: Callable[..., object], *args: object, **kwargs: object) -> object:
        owner = getattr(getattr(obj, "__wrapped__", obj), "__self__", None)
        if isinstance(owner, str | bytes):
            args = self._check_method(owner, getattr(obj, "__name__", ""), args, kwargs)
        elif isinstance(owner, int):
            _check_widths((*args, *kwargs.values()), 0)  # of to_bytes
        elif dict in (obj, owner) and args:  # owner: of fromkeys
            args = self._check_keys(args[0]), *args[1:]
        return self.counted(super().call(context, obj, *args, **kwargs))

    def _check_method(self, owner: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Count what a method of a text will make. Returns its arguments, of which iterators are lists."""
        if name in SPLITS:
            self._charge(PIECE * _pieces(owner, (*args, *kwargs.values())))
        match name:
            case "join" if args:
                return self._check_join(owner, args[0]), *args[1:]
            case "replace" if len(args) >= 2:
                self._check_replace(owner, args[0], args[1])
            case "format" | "format_map":
                self._check_format(owner, (args, kwargs))
            case "encode":  # ten characters for one, or its whole name for an error
                self._charge(len(owner) * (100 if len(args) > 1 or "errors" in kwargs else 10))
            case "translate":
                raise SecurityError("Chat templates of adapters may not use 'translate'.")
            case _ if name in SEARCHES:
                _check_search(len(owner), (*args, *kwargs.values()))
            case _ if name in PADDING:
                width = _check_widths((*args, *kwargs.values()), 8)
                self._charge(len(owner) + width * (1 + (name == "expandtabs") * len(owner)))
        return args

    def _bounded_filter(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        if name in READING:
            return work
        first = int(hasattr(work, "jinja_pass_arg"))

        @wraps(work)
        def bounded(*args: Any, **kwargs: Any) -> Any:
            value, more = args[first], (*args[first + 1 :], *kwargs.values())
            self._charge(_size(value))
            match name:
                case "join":
                    value = self._check_join(max(more, key=_size, default=""), value)
                case "replace":
                    for old in more:
                        for new in more:
                            self._check_replace(str(value), str(old), str(new))
                case "format":
                    self._check_format(str(value), more)
                case "trim":
                    _check_search(_size(value), more)
                case "sum" if any(isinstance(one, list | tuple) for one in more):
                    raise SecurityError("'sum' adds numbers only.")
                case _ if name in SIZED:
                    texts = (one for one in more if isinstance(one, str | list | tuple))
                    width = max(_check_widths(more, 4), *map(_size, texts), 0)
                    self._charge(width * _repetitions(name, value))
            return self.counted(work(*args[:first], value, *args[first + 1 :], **kwargs))

        return bounded

    def _bounded_clock(self, work: Callable[..., str]) -> Callable[..., str]:
        @wraps(work)
        def bounded(*args: Any, **kwargs: Any) -> str:
            for form in (*args, *kwargs.values()):
                if isinstance(form, str):
                    self._check_format(form, ())
            return work(*args, **kwargs)

        return bounded

    def _check_keys(self, keys: Any) -> Any:
        """Check the keys that a dict is made of in one step, which takes long if all have the same hash."""
        keys = keys if isinstance(keys, list | tuple | dict) else list(keys)
        if len(keys) > WIDTH:
            raise SecurityError(f"A chat template of an adapter may make a dict of up to {WIDTH} keys.")
        return keys

    def _check_join(self, separator: Any, parts: Any) -> Any:
        parts = parts if isinstance(parts, str | list | tuple | dict) else list(parts)
        self._charge(_size(parts) + _size(separator) * len(parts))
        return parts

    def _check_replace(self, text: Any, old: Any, new: Any) -> None:
        kind = bytes if isinstance(text, bytes) else str
        if isinstance(old, kind) and isinstance(new, kind):
            self._charge(len(text) + text.count(old) * len(new))

    def _check_format(self, text: Any, values: Any) -> None:
        words = text.decode("latin-1") if isinstance(text, bytes) else text
        if _WIDTHS.search(words):
            raise SecurityError("A chat template of an adapter may not format to such a width.")
        self._charge(len(text) + (words.count("%") + words.count("{")) * (_size(values) + WIDTH))


def _size(value: Any) -> int:
    """Return the characters and items of a value, each as often as a text of the value would contain it."""
    count, rest = 0, [value]
    while rest:
        one = rest.pop()
        count += 1
        if isinstance(one, str | bytes):
            count += len(one)
        elif isinstance(one, list | tuple | set | frozenset):
            rest += one
        elif isinstance(one, dict):
            rest += one.keys()
            rest += one.values()
        elif isinstance(one, _VIEWS):
            rest += cast(Iterable[Any], one)
        elif isinstance(one, MethodType):
            rest.append(one.__self__)
        elif isinstance(one, Namespace):
            rest.append(object.__getattribute__(one, "_Namespace__attrs"))
        if count + len(rest) > MOST:
            raise SecurityError(f"The chat template makes more than {MOST} characters.")
    return count


def _repetitions(name: str, value: object) -> int:
    """Return how often a filter may write what its arguments give the width of."""
    match name:
        case "indent":
            return 1 + str(value).count("\n")
        case "wordwrap":
            return _size(value)
        case "pprint" | "tojson":
            depth, level = 0, [value]
            while level:
                depth += 1
                level = [
                    inner
                    for one in level
                    if isinstance(one, list | tuple | dict)
                    for inner in (one.values() if isinstance(one, dict) else one)
                ]
            return _size(value) * depth
        case _:
            return 1


def _pieces(text: Any, values: Sequence[Any]) -> int:
    """Return the most pieces into which a text is split."""
    separator = next((one for one in values if isinstance(one, str | bytes) and one), None)
    count = len(text) // 2 if separator is None else text.count(separator)
    return 1 + min((count, *(one for one in values if type(one) is int and one >= 0)))


def _check_bits(bits: int) -> None:
    if bits > BITS:
        raise SecurityError("The chat template makes too large a number.")


def _check_search(length: int, values: Iterable[Any]) -> None:
    """Check the texts that are looked for in a text of a length, one character after the other."""
    if length * max((len(one) for one in values if isinstance(one, str | bytes)), default=0) > MOST:
        raise SecurityError(
            "A chat template of an adapter may not search for such a long text, nor strip so many letters."
        )


def _check_widths(values: Iterable[Any], usual: int) -> int:
    """Return the largest number, which may be up to WIDTH."""
    width = max((abs(one) for one in values if isinstance(one, int)), default=usual)
    if width > WIDTH:
        raise SecurityError(f"A chat template of an adapter may ask for a width or number of up to {WIDTH}.")
    return width
