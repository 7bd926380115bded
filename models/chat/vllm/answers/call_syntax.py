"""The marks around tool calls in an answer, by the names of vLLM's tool parsers.

`CallScanner` splits an answer into text and blocks of calls, with the same result whatever the size of its pieces. The
content of a block is left to the parser, once the block is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice
from pkgutil import resolve_name
from typing import NamedTuple, Protocol

BRACKET = ""
"""End of a block that ends where its first bracket, the group `open`, is closed."""
SAME_TAG = "</"
"""End of a block that begins with an XML tag, which is the closing tag of the same name."""
MOST_WITHOUT_CALLS, MOST_READINGS = 64, 8
"""Maximum blocks of an answer without calls, and ends tried for a cut block, because a model that repeats a marker
forever would otherwise keep all streams waiting.
"""
Reading = tuple[str, int]
"""A text that may be complete calls, and how many characters of the answer it uses."""
_PAIRS = {"[": "]", "{": "}", "(": ")"}
_CLOSING = frozenset(_PAIRS.values())


class CallSyntax(NamedTuple):
    """The marks of a block of calls.

    Attributes:
        begin: regular expression of the block's beginning.
        end: the text that ends the block, or `BRACKET` or `SAME_TAG`.
        each: the text that ends each call in a block of several; '' if the block is one call or a list in brackets.
        is_json: whether the calls are JSON, so that a call is known to be complete without its end marker.
        tail: regular expression of text that may follow the end and belongs to the block.
    """

    begin: str
    end: str = SAME_TAG
    each: str = ""
    is_json: bool = False
    tail: str = ""


_TAG, _JSON_TAG = CallSyntax("<tool_call>"), CallSyntax("<tool_call>", is_json=True)
_LIST_TAG = CallSyntax("<tool_calls>", is_json=True)
_FUNCTION = (CallSyntax("<tool_call>", each="</function>"), CallSyntax("<function=", end="</function>"))
_PYTHON = r"(?P<open>\[)\s*[A-Za-z]\w*\("
_DSML = CallSyntax("<｜DSML｜(?:tool_calls|toolcalls|tool)>", end="</｜DSML｜tool_calls>", each="</｜DSML｜invoke>")
_HUNYUAN = CallSyntax(r"<tool_calls(?::[^\s>]+)?>", each="</tool_call")
_DEEPSEEK = CallSyntax("<｜tool▁calls▁begin｜>", end="<｜tool▁calls▁end｜>", each="<｜tool▁call▁end｜>")
_LLAMA = CallSyntax(
    r'(?:;\s*)?(?:<\|python_tag\|>\s*)?(?P<open>\{)\s*"(?:name|type|function|parameters|arguments)"',
    end=BRACKET,
    is_json=True,
)
SYNTAXES: dict[str, tuple[CallSyntax, ...]] = {
    "apertus": (CallSyntax(r"<\|tools_prefix\|>", end="<|tools_suffix|>"),),
    "deepseek_v3": (_DEEPSEEK,),
    "deepseek_v31": (_DEEPSEEK,),
    "deepseek_v32": (
        CallSyntax("<｜DSML｜function_calls>", end="</｜DSML｜function_calls>", each="</｜DSML｜invoke>"),
    ),
    "deepseek_v4": (_DSML,),
    "deepseek_v41": (
        CallSyntax("<｜DSML｜ calls>", end="</｜DSML｜ calls>", each="</｜DSML｜ invoke>"),
    ),
    "dots": (CallSyntax("<dots_function_call>", each="</invoke>"),),
    "ernie45": (_JSON_TAG,),
    "functiongemma": (CallSyntax("<start_function_call>", end="<end_function_call>"),),
    "gemma4": (CallSyntax(r"<\|tool_call>", end="<tool_call|>"),),
    "gigachat3": (
        CallSyntax(
            r"(?:<\|message_sep\|>\s*)?(?:function call<\|role_sep\|>\n|<\|function_call\|>)\s*(?P<open>\{)",
            end=BRACKET,
            is_json=True,
            tail=r"\s*</s>",
        ),
    ),
    "glm45": (_TAG,),
    "glm47": (_TAG,),
    "granite": (CallSyntax(r"(?:<\|tool_call\|>|<tool_call>)\s*(?P<open>\[)", end=BRACKET, is_json=True),),
    "granite-20b-fc": (CallSyntax(r"<function_call>\s*(?P<open>\{)", end=BRACKET, is_json=True),),
    "granite4": (_JSON_TAG,),
    "hermes": (_JSON_TAG,),
    "hunyuan_a13b": (_LIST_TAG,),
    "hy_v3": (_HUNYUAN,),
    "hy_v4": (_HUNYUAN,),
    "internlm": (CallSyntax(r"<\|action_start\|><\|plugin\|>", end="<|action_end|>", is_json=True),),
    "jamba": (_LIST_TAG,),
    "k2_horizon": (CallSyntax(r"<ifm\|tool_calls>", each="</ifm|tool_call>"),),
    "kimi_k2": (
        CallSyntax(
            r"<\|tool_calls_section_begin\|>", end="<|tool_calls_section_end|>", each="<|tool_call_end|>"
        ),
    ),
    "lfm2": (CallSyntax(r"<\|tool_call_start\|>", end="<|tool_call_end|>"),),
    "ling3": (_TAG,),
    "llama3_json": (_LLAMA,),
    "llama4_json": (_LLAMA,),
    "llama4_pythonic": (
        CallSyntax(rf"\A\s*(?:<\|python_start\|>\s*)?{_PYTHON}", end=BRACKET, tail=r"\s*<\|python_end\|>"),
    ),
    "longcat": (CallSyntax("<longcat_tool_call>", is_json=True),),
    "mimo": _FUNCTION,
    "minicpm5": (CallSyntax(r"<function\s", end="</function>"),),
    "minimax_m2": (CallSyntax("<minimax:tool_call>", each="</invoke>"),),
    "minimax_m3": (
        CallSyntax(
            r"\]<\]minimax\[>\[<tool_call>", end="]<]minimax[>[</tool_call>", each="]<]minimax[>[</invoke>"
        ),
    ),
    "mistral": (
        CallSyntax(
            r"\[TOOL_CALLS\][^\[{]*(?:\[CALL_ID\][^\[{]*)?(?:\[ARGS\])?\s*(?P<open>[\[{])", end=BRACKET, is_json=True
        ),
    ),
    "olmo3": (CallSyntax("<function_calls>", each="\n"),),
    "phi4_mini_json": (CallSyntax(r"functools(?P<open>\[)", end=BRACKET, is_json=True),),
    "plamo3": (
        CallSyntax(
            r"<\|plamo:begin_tool_requests:plamo\|>",
            end="<|plamo:end_tool_requests:plamo|>",
            each="<|plamo:end_tool_request:plamo|>",
        ),
    ),
    "poolside_v1": (_TAG,),
    "pythonic": (CallSyntax(rf"\A\s*{_PYTHON}", end=BRACKET),),
    "qwen3_coder": _FUNCTION,
    "qwen3_json": (_JSON_TAG,),
    "qwen3_xml": _FUNCTION,
    "seed_oss": (CallSyntax("<seed:tool_call>", each="</function>"),),
    "step3": (
        CallSyntax("<｜tool_calls_begin｜>", end="<｜tool_calls_end｜>", each="<｜tool_call_end｜>"),
    ),
    "step3p5": _FUNCTION,
    "xlam": (
        CallSyntax(
            r"(?:\A\s*|```(?:json)?\s*|\[TOOL_CALLS\]\s*|<tool_call>\s*)(?P<open>\[)\s*\{",
            end=BRACKET,
            is_json=True,
            tail=r"\s*(?:```|</tool_call>)",
        ),
    ),
}  # fmt: skip
"""Syntaxes by parser, without parsers that read calls and other text as one language, and those of a recipe's file."""
REQUIRED = (CallSyntax(r"\A\s*(?P<open>\[)\s*\{", end=BRACKET, is_json=True),)
"""vLLM's own language for `tool_choice: required`: a JSON list."""


class Brackets:
    """Follows the nesting of JSON or of a Python literal, in pieces of any size."""

    def __init__(self, at: int) -> None:
        """at: position of the first bracket."""
        self.at = at
        self.end: int | None = None
        """Position after the bracket that closes the first one."""
        self.items: list[int] = []
        """Positions after each bracketed item of the list that the first bracket opens."""
        self._nesting: list[str] = []
        self._quote, self._escaped = "", False

    def follow(self, text: str) -> None:
        """Continue to the end of a text that has grown."""
        while self.at < len(text) and self.end is None:
            self._take(text[self.at])
            self.at += 1
            if not self._nesting and not self._quote:
                self.end = self.at

    def _take(self, letter: str) -> None:
        if self._quote:
            if self._escaped:
                self._escaped = False
            elif letter == "\\":
                self._escaped = True
            elif letter == self._quote:
                self._quote = ""
        elif letter in "\"'":
            self._quote = letter
        elif letter in _PAIRS:
            self._nesting.append(_PAIRS[letter])
        elif letter in _CLOSING:
            if self._nesting.pop() != letter:  # no call
                self._nesting.clear()
            elif len(self._nesting) == 1:
                self.items.append(self.at + 1)


class Match(Protocol):
    """A match of `regex`. partial: it reaches the end of the text and depends on what follows."""

    partial: bool

    def start(self, group: str = ...) -> int: ...

    def end(self) -> int: ...

    def group(self) -> str: ...


class Pattern(Protocol):
    """A pattern of `regex`, which supports partial matches."""

    def search(self, text: str, at: int, *, partial: bool) -> Match | None: ...

    def match(self, text: str, at: int, *, partial: bool) -> Match | None: ...


@cache
def pattern(expression: str) -> Pattern:
    compiled: Pattern = resolve_name("regex:compile")(expression)
    return compiled


class CallScanner:
    """Splits an answer into text and blocks of calls."""

    def __init__(self, syntaxes: tuple[CallSyntax, ...], accept: Callable[[tuple[Reading, ...]], int]) -> None:
        """accept: takes a block's calls from its first reading that has some, and returns the characters that it uses;
        0 if there are no calls, so that the block is text.
        """
        self._syntaxes = [
            (syntax, pattern(syntax.begin), pattern(syntax.tail) if syntax.tail else None) for syntax in syntaxes
        ]
        self._accept = accept
        self._text = ""
        self._at = 0
        """Number of characters returned as text or taken as calls."""
        self._open: tuple[CallSyntax, Match, Pattern | None] | None = None
        """The open block: its syntax, the match of its beginning, its tail's pattern."""
        self._brackets: Brackets | None = None
        self._without_calls = 0
        self._sought = 0
        """Number of characters searched without finding the open block's end."""

    def feed(self, text: str, *, finished: bool) -> Iterator[str]:
        """Iterate over the texts between blocks, as far as they are known not to be part of one."""
        self._text += text
        while self._at < len(self._text):
            if self._open is None:
                yield from self._seek(finished=finished)
                if self._open is None:
                    return
            end = self._end(finished=finished)
            if end is None and not finished:
                return
            yield from self._close(end)

    def _seek(self, *, finished: bool) -> Iterator[str]:
        """Search for the beginning of the next block."""
        if self._without_calls > MOST_WITHOUT_CALLS:
            text, self._at = self._text[self._at :], len(self._text)
            yield text
            return
        whole: tuple[CallSyntax, Match, Pattern | None] | None = None
        held = len(self._text)
        for syntax, begins, tail in self._syntaxes:
            match = begins.search(self._text, self._at, partial=not finished)
            if match is None:
                continue
            if match.partial:
                held = min(held, match.start())
            elif whole is None or match.start() < whole[1].start():
                whole = (syntax, match, tail)
        if whole is not None and whole[1].start() <= held:
            self._open, held = whole, whole[1].start()
            begin = whole[1]
            self._brackets = Brackets(begin.start("open")) if whole[0].end == BRACKET else None
            self._sought = begin.end()
        if held > self._at:
            text, self._at = self._text[self._at : held], held
            yield text

    def _end(self, *, finished: bool) -> int | None:
        """Return the end of the open block; None if it has not arrived yet."""
        assert self._open is not None
        syntax, begin, tail = self._open
        if self._brackets is not None:
            self._brackets.follow(self._text)
            end = self._brackets.end
        else:
            mark = self._closing(syntax, begin)
            at = self._text.find(mark, self._sought)
            self._sought = max(self._sought, len(self._text) - len(mark) + 1)
            end = at + len(mark) if at >= 0 else None
        if end is None or tail is None:
            return end
        match = tail.match(self._text, end, partial=not finished)
        if match is None:
            return end
        return None if match.partial else match.end()

    @staticmethod
    def _closing(syntax: CallSyntax, begin: Match) -> str:
        return f"</{begin.group()[1:]}" if syntax.end == SAME_TAG else syntax.end

    def _close(self, end: int | None) -> Iterator[str]:
        """Take the open block's calls; if there are none, its beginning is text."""
        assert self._open is not None
        syntax, begin, _ = self._open
        start = begin.start()
        readings = ((self._text[start:end], end - start),) if end is not None else self._cut(syntax, begin)
        self._open = None
        if used := self._accept(readings):
            self._at = start + used
        else:
            self._without_calls += 1
            self._at = begin.end()
            yield begin.group()

    def _cut(self, syntax: CallSyntax, begin: Match) -> tuple[Reading, ...]:
        """Return the readings of a block cut by the end of the answer: all of it, or its calls without the last."""
        rest = self._text[begin.start() :]
        closing = "" if syntax.end == BRACKET else self._closing(syntax, begin)
        readings = []
        if syntax.is_json and closing:
            readings.append((rest[: len(rest) - overlap(rest, closing)] + closing, len(rest)))
        for end in islice(self._ends(syntax, begin, rest), MOST_READINGS):
            whole = rest[:end] + closing if syntax.each else f"{rest[:end]}]{closing}"
            is_all = bool(closing) and closing.startswith(rest[end:].strip())
            readings.append((whole, len(rest) if is_all else end))
        return tuple(readings)

    def _ends(self, syntax: CallSyntax, begin: Match, rest: str) -> Iterator[int]:
        """Iterate over the ends of calls in a cut block, last first."""
        if syntax.each:
            at = len(rest)
            while (at := rest.rfind(syntax.each, len(begin.group()), at)) >= 0:
                end = at + len(syntax.each)
                # some tags have a variable name
                yield end if syntax.each.endswith((">", "\n")) else rest.find(">", at) + 1 or len(rest)
            return
        brackets = self._brackets
        if brackets is None and (opening := self._text.find("[", begin.end())) >= 0:
            brackets = Brackets(opening)
            brackets.follow(self._text)
        for end in reversed(brackets.items if brackets is not None else ()):
            yield end - begin.start()


def overlap(text: str, mark: str) -> int:
    """Return the number of characters at the end of a text that may begin a marker."""
    return next((size for size in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:size])), 0)
