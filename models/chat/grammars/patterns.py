r"""Rewrite a JSON schema's regular expressions so that they match whole strings only.

A schema's `pattern` is a search in the decoded text of a string. The grammar follows the bytes of the answer, in which
quotes, backslashes and control characters are escaped, so a pattern is rewritten for plain characters only, and matched
from end to end. Each step makes the set of texts smaller, never larger, so the grammar's output always matches the
client's pattern, whether it is read as Python or as ECMAScript.

| part                                   | becomes                                                             |
|----------------------------------------|---------------------------------------------------------------------|
| literals, classes, `.`, `\w`, `\d`     | a class of plain characters; `\D` and `\W` are ASCII only           |
| `(…)`, `(?:…)`, `(?P<name>…)`, `\|`     | a group                                                             |
| `*`, `+`, `?`, `{n}`, `{n,m}`, lazy    | the same, not lazy                                                  |
| `^` and `$` around an alternative      | nothing, because the whole string is matched; with `^` alone any    |
|                                        | text may follow, with `$` alone any may precede                     |
| all else: look-around, back-references | `PatternError`                                                      |
"""

import re
from dataclasses import dataclass
from itertools import pairwise

LAST = 0x10FFFF
Ranges = tuple[tuple[int, int], ...]
"""Characters as sorted ranges of code points, both ends included."""


class PatternError(ValueError):
    """A pattern that is not in the language, with the reason."""


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of a set."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Sequence:
    parts: tuple["Pattern", ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    options: tuple["Pattern", ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    part: "Pattern"
    least: int
    most: int | None


Pattern = Chars | Sequence | Choice | Repeat


def _sorted(ranges: list[tuple[int, int]]) -> Ranges:
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)


def _inverted(ranges: Ranges, most: int = LAST) -> Ranges:
    """Return all other characters up to `most`."""
    edges = [(-1, -1), *((first, last) for first, last in ranges if first <= most), (most + 1, most + 1)]
    return tuple((left + 1, right - 1) for (_, left), (right, _) in pairwise(edges) if left + 1 < right)


def _both(one: Ranges, other: Ranges) -> Ranges:
    pairs = ((max(a, c), min(b, d)) for a, b in one for c, d in other)
    return _sorted([(first, last) for first, last in pairs if first <= last])


def _of(text: str) -> Ranges:
    return _sorted([(ord(letter), ord(letter)) for letter in text])


PLAIN = _inverted(_sorted([(0, 0x1F), *_of('"\\'), (0xD800, 0xDFFF)]))
"""Characters that represent themselves in a JSON string."""
DIGITS: Ranges = ((0x30, 0x39),)
WORDS = _sorted([*DIGITS, (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)])
BLANKS = _of(" \t\n\r\f\v")
ALL_BLANKS = _sorted(
    [(9, 13), (0x1C, 0x20), (0x2000, 0x200A), (0x2028, 0x2029), *_of("\x85\xa0\u1680\u202f\u205f\u3000\ufeff")]
)
"""White space in any dialect."""
ASCII = 0x7F
CLASSES = {
    "d": DIGITS,
    "w": WORDS,
    "s": BLANKS,
    "D": _inverted(DIGITS, ASCII),
    "W": _inverted(WORDS, ASCII),
    "S": _inverted(ALL_BLANKS),
}
"""The characters that are in a class in both dialects."""
INVERTED = {"d": "D", "w": "W", "s": "S", "D": "d", "W": "w", "S": "s"}
ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v"}
DOT = _inverted(_of("\n\r\u2028\u2029"))
ANY = Chars(PLAIN)
MOST_REPEATS = 128
"""Most repetitions of ASCII. With more, the grammar library (xgrammar 0.2.8) fails where it caches grammars."""
LONGEST = 1_000
_COUNT = re.compile(r"\{(\d{1,9})(?:(,)(\d{1,9})?)?\}")
_CODE = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})")
_QUANTIFIERS = {"*": (0, None), "+": (1, None), "?": (0, 1)}


class _Parser:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def next(self) -> str:
        """Return the character at the position; '' at the end."""
        return self.text[self.at : self.at + 1]

    def taken(self, text: str) -> bool:
        """Return whether `text` is at the position, and skip it if so."""
        if not self.text.startswith(text, self.at):
            return False
        self.at += len(text)
        return True

    def choice(self, outermost: bool) -> Pattern:
        options = [self.sequence(outermost)]
        while self.taken("|"):
            options.append(self.sequence(outermost))
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def sequence(self, outermost: bool) -> Pattern:
        parts: list[Pattern] = []
        begins, ends = outermost and self.taken("^"), False
        while self.next() not in ("", "|", ")"):
            if outermost and self.next() == "$" and self.text[self.at + 1 : self.at + 2] in ("", "|"):
                self.at += 1
                ends = True
                break
            parts.append(self.quantified(self.atom()))
        if begins and not ends:
            parts.append(Repeat(ANY, 0, None))
        if ends and not begins:
            parts.insert(0, Repeat(ANY, 0, None))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def quantified(self, part: Pattern) -> Pattern:
        if (letter := self.next()) in _QUANTIFIERS:
            self.at += 1
            least, most = _QUANTIFIERS[letter]
        elif (match := _COUNT.match(self.text, self.at)) is not None:
            self.at = match.end()
            least = int(match[1])
            most = least if match[2] is None else int(match[3]) if match[3] else None
            if most is not None and most < least:
                raise PatternError(f"{match[0]} has its bounds the wrong way round")
        else:
            return part
        self.taken("?")
        if self.next() in ("*", "+", "?", "{"):
            raise PatternError(f"'{self.next()}' after a quantifier is not known here")
        return Repeat(part, least, most)

    def atom(self) -> Pattern:
        letter = self.next()
        self.at += 1
        match letter:
            case "(":
                return self.group()
            case "[":
                return Chars(self.char_class())
            case ".":
                return Chars(DOT)
            case "\\":
                return Chars(self.escaped()[0])
            case "^" | "$":
                raise PatternError(f"'{letter}' may only stand at an end of the pattern")
            case "*" | "+" | "?" | "{":
                raise PatternError(f"'{letter}' has nothing to repeat")
            case _:
                return Chars(_of(letter))

    def group(self) -> Pattern:
        named = re.compile(r"\?P<[A-Za-z_]\w*>").match(self.text, self.at)
        if named is not None:
            self.at = named.end()
        elif not self.taken("?:") and self.next() == "?":
            raise PatternError("look-around, flags and other groups that begin with '(?' are not known here")
        inside = self.choice(outermost=False)
        if not self.taken(")"):
            raise PatternError("a group is not closed")
        return inside

    def escaped(self) -> tuple[Ranges, str]:
        """Return the characters of an escape after its backslash, and the letter of a class ('' for one character)."""
        letter = self.next()
        self.at += 1
        if letter in CLASSES:
            return CLASSES[letter], letter
        if letter in ESCAPES:
            return _of(ESCAPES[letter]), ""
        if (code := _CODE.match(self.text, self.at - 1)) is not None:
            self.at = code.end()
            return _of(chr(int(code[1] or code[2], 16))), ""
        if not letter or letter.isalnum() or not letter.isascii():
            raise PatternError(f"'\\{letter}' is not known here")
        return _of(letter), ""

    def char_class(self) -> Ranges:
        inverted = self.taken("^")
        ranges: list[tuple[int, int]] = []
        outside: list[Ranges] = []
        """The characters outside each class in an inverted class."""
        while not self.taken("]"):
            if not self.next():
                raise PatternError("a class is not closed")
            first, name = self.class_item()
            if name:
                outside.append(CLASSES[INVERTED[name]])
            elif self.next() == "-" and self.text[self.at + 1 : self.at + 2] not in ("]", ""):
                self.at += 1
                last, name = self.class_item()
                if name or last[0][0] < first[0][0]:
                    raise PatternError("a range of a class has its ends the wrong way round")
                first = ((first[0][0], last[0][0]),)
            ranges += first
        if not inverted:
            return _sorted(ranges)
        result = _inverted(_sorted(ranges))
        for allowed in outside:
            result = _both(result, allowed)
        return result

    def class_item(self) -> tuple[Ranges, str]:
        letter = self.next()
        self.at += 1
        if letter == "[":
            raise PatternError("'[' in a class is to be written '\\['")
        return self.escaped() if letter == "\\" else (_of(letter), "")


def parse(text: str) -> Pattern:
    """Parse a pattern. Raises PatternError if it is not in the language."""
    parser = _Parser(text)
    pattern = parser.choice(outermost=True)
    if parser.next():
        raise PatternError("a ')' has no '('")
    return pattern


def lengths(pattern: Pattern) -> tuple[int, int | None]:
    """Return the minimum and maximum number of characters that a pattern matches; None for no maximum."""
    match pattern:
        case Chars():
            return 1, 1
        case Sequence(parts):
            bounds = [lengths(part) for part in parts]
            return sum(least for least, _ in bounds), _sum([most for _, most in bounds])
        case Choice(options):
            bounds = [lengths(option) for option in options]
            highs = [most for _, most in bounds]
            return min(least for least, _ in bounds), None if None in highs else max(h for h in highs if h is not None)
        case Repeat(part, least, most):
            low, high = lengths(part)
            return low * least, 0 if high == 0 else None if high is None or most is None else high * most


def _sum(values: list[int | None]) -> int | None:
    return None if None in values else sum(value for value in values if value is not None)


def bounded(pattern: Pattern, least: int, most: int | None) -> Pattern:
    """Return a pattern for the texts of `least` to `most` characters. Raises PatternError if there is none.

    Supports patterns that always have such a length, and repetitions of one character.
    """
    low, high = lengths(pattern)
    if low >= least and (most is None or (high is not None and high <= most)):
        return pattern
    part, low, high = (pattern.part, pattern.least, pattern.most) if isinstance(pattern, Repeat) else (pattern, 1, 1)
    if not isinstance(part, Chars):
        raise PatternError("a length can only be combined with one repeated character, as in '^[a-z]+$'")
    low = max(low, least)
    high = most if high is None else high if most is None else min(high, most)
    if high is not None and high < low:
        raise PatternError("no text of this pattern has such a length")
    return Repeat(part, low, high)


def write(pattern: Pattern) -> str:
    """Write a pattern as a regular expression without anchors, for plain characters only. Raises PatternError."""
    match pattern:
        case Chars(ranges):
            plain = _both(ranges, PLAIN)
            if not plain:
                raise PatternError("quotes, backslashes and control characters cannot be matched")
            return "[" + "".join(map(_range, plain)) + "]"
        case Sequence(parts):
            return "".join(map(write, parts))
        case Choice(options):
            return "(?:" + "|".join(map(write, options)) + ")"
        case Repeat(part, least, most) if max(least, most or 0) > MOST_REPEATS and not _is_beyond_ascii(part):
            return write(_in_pieces(part, least, most))
        case Repeat(part, least, most):
            inside = write(part) if isinstance(part, Chars | Choice) else f"(?:{write(part)})"
            if (least, most) == (0, None):
                return inside + "*"
            if (least, most) == (1, None):
                return inside + "+"
            return inside + (f"{{{least}}}" if least == most else f"{{{least},{'' if most is None else most}}}")


def _is_beyond_ascii(part: Pattern) -> bool:
    return isinstance(part, Chars) and any(last > ASCII for _, last in _both(part.ranges, PLAIN))


def _in_pieces(part: Pattern, least: int, most: int | None) -> Pattern:
    """Return a repetition as repetitions of at most MOST_REPEATS, with one way to match each text.

    The grammar library takes seconds for thousands of them, so at most LONGEST are written where fewer are enough.
    """
    piece = Repeat(part, MOST_REPEATS, MOST_REPEATS)
    pieces, left = divmod(least, MOST_REPEATS)
    begin = (Repeat(piece, pieces, pieces), Repeat(part, left, left))
    if most is None:
        return Sequence((*begin, Repeat(part, 0, None)))
    pieces, left = divmod(min(most, max(least, LONGEST)) - least, MOST_REPEATS)
    full = Sequence((Repeat(piece, pieces, pieces), Repeat(part, 0, left)))
    if not pieces:
        return Sequence((*begin, full))
    return Sequence(
        (*begin, Choice((Sequence((Repeat(piece, 0, pieces - 1), Repeat(part, 0, MOST_REPEATS - 1))), full)))
    )


def _range(ends: tuple[int, int]) -> str:
    first, last = map(_letter, ends)
    return first if first == last else f"{first}-{last}"


def _letter(code: int) -> str:
    letter = chr(code)
    return f"\\{letter}" if letter in "\\]^-[" else letter


def others(names: list[str]) -> str:
    """Return an expression for all texts of plain characters except these."""
    return write(_beyond({name for name in names if all(_both(_of(letter), PLAIN) for letter in name)}))


def _beyond(names: set[str]) -> Pattern:
    firsts = sorted({name[0] for name in names if name})
    options: list[Pattern] = [] if "" in names else [Sequence()]
    away = _both(PLAIN, _inverted(_of("".join(firsts))))
    options.append(Sequence((Chars(away), Repeat(ANY, 0, None))))
    for first in firsts:
        following = {name[1:] for name in names if name and name[0] == first}
        options.append(Sequence((Chars(_of(first)), _beyond(following))))
    return Choice(tuple(options))
