"""Rewrite the schemas of strings and numbers. See `models.chat.grammars.language`."""

import math
from collections.abc import Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

from models.chat.grammars import patterns
from models.chat.grammars.parts import Json, Parts, Path, SchemaError, counts
from models.chat.grammars.patterns import PatternError

DATE = (
    r"(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|"
    r"02-(?:0[1-9]|1[0-9]|2[0-8]))|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|[2468][048]00|[13579][26]00)-02-29)"
)
_CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_BYTE = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_HEX = "[0-9a-fA-F]"
FORMATS: Mapping[str, str] = {
    "date": DATE,
    "time": _CLOCK,
    "date-time": f"{DATE}T{_CLOCK}",
    "uuid": f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}",
    "ipv4": rf"{_BYTE}\.{_BYTE}\.{_BYTE}\.{_BYTE}",
    "ipv6": "",
    "email": "",
    "hostname": "",
    "uri": "",
    "uri-reference": "",
    "duration": "",
}
"""Formats of strings and their patterns; '' for the grammar library's own."""
NOT_ENFORCED = frozenset(
    {
        "idn-email", "idn-hostname", "iri", "iri-reference", "json-pointer", "regex", "relative-json-pointer",
        "uri-template",
    }
)  # fmt: skip
"""The other formats that JSON Schema defines. Those that it does not define, such as `password`, constrain nothing."""
BLANK = ("uri-reference",)
"""Formats of which the empty string is one."""
SHORTER: Mapping[str, str] = {
    "uri": r"[A-Za-z][A-Za-z0-9+.-]{0,15}://[A-Za-z0-9.-]{1,120}(?:/[A-Za-z0-9._~!$&'()*+,;=:@/?-]{0,500})?"
}
"""Patterns of some strings of a format, for a length beside it: pydantic's URLs have up to 2,083 characters."""
_LOCAL = r"[A-Za-z0-9_'+\-"
SAME: Mapping[str, str] = {
    rf"^(?!\.)(?!.*\.\.)({_LOCAL}\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{{2,}}$": (
        rf"^({_LOCAL}]+\.)*{_LOCAL}]*[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{{2,}}$"
    )
}
"""Patterns with look-arounds, and what matches the same without: an e-mail address of zod 4.0 to 4.5."""
MOST_MULTIPLES = 1_000
LONGEST = 10_000
"""Maximum characters of a string with a length; a larger `maxLength` is lowered to this."""
DECIMALS = Decimal("0.000001")
"""The finest bound of a number that the grammar library supports."""
LARGEST = {"integer": 10**18, "number": 10**12}


def string(branch: Parts) -> Json | None:
    """Return the schema of the strings that fit all parts; None if there are none."""
    least, most = counts(branch, "minLength", "maxLength")
    if most is not None and most < least:
        return None
    texts: dict[str, Path] = {}
    for part in branch:
        kind, pattern = part.get("format", str, "a text"), part.get("pattern", str, "a text")
        if kind is not None and _is_enforced(kind, beside=pattern or ""):
            texts.setdefault(f"format {kind}", (*part.path, "format"))
        if pattern is not None:
            texts.setdefault(f"pattern {pattern}", (*part.path, "pattern"))
    if not texts:
        if not least and most is None:
            return {"type": "string"}
        most = most if most is None else min(most, max(LONGEST, least))
        return _matching(patterns.Repeat(patterns.ANY, least, most))
    (text, where), *more = texts.items()
    if more:
        raise SchemaError(more[0][1], "only one 'pattern' or 'format' can be enforced for a string: leave it out")
    name, _, text = text.partition(" ")
    if name == "format":
        if text not in FORMATS:
            raise SchemaError(where, f"only these can be enforced: {', '.join(FORMATS)}. Leave it out")
        if not FORMATS[text] and most is None and least <= (text not in BLANK):
            return {"type": "string", "format": text}
        if not FORMATS[text] and text not in SHORTER:
            raise SchemaError(where, "a length stands beside it: leave one of them out")
        text = f"^{FORMATS[text] or SHORTER[text]}$"
    try:
        return _matching(patterns.bounded(patterns.parse(SAME.get(text, text)), least, most))
    except PatternError as error:
        raise SchemaError(where, str(error)) from None


def _is_enforced(kind: str, beside: str) -> bool:
    """Return whether a format constrains a string. None does beside a pattern of the whole string, as zod writes it."""
    return kind in FORMATS.keys() | NOT_ENFORCED and not (beside.startswith("^") and beside.endswith("$"))


def _matching(pattern: patterns.Pattern) -> Json:
    return {"type": "string", "pattern": f"^(?:{patterns.write(pattern)})$"}


def written(where: Path, text: str) -> str:
    """Return a client's pattern as the grammar library reads it."""
    try:
        return patterns.write(patterns.parse(text))
    except PatternError as error:
        raise SchemaError(where, str(error)) from None


def _bound(branch: Parts, inclusive: str, exclusive: str, step: Decimal, sign: int) -> tuple[Decimal, Path] | None:
    """Return the strictest lower (`sign` 1) or upper bound (-1) on a grid of `step`, and its keyword."""
    bounds = []
    for part in branch:
        for name in (inclusive, exclusive):
            value = part.get(name, (int, float), "a number")
            if value is None:
                continue
            if not math.isfinite(value):
                raise SchemaError((*part.path, name), "it must be a number")
            exact = Decimal(repr(value))
            rounded = (exact / step).to_integral_value(ROUND_CEILING if sign > 0 else ROUND_FLOOR) * step
            if name == exclusive and rounded == exact:
                rounded += sign * step
            bounds.append((rounded, (*part.path, name)))
    return max(bounds, key=lambda bound: sign * bound[0], default=None)


def number(branch: Parts, kind: str) -> Json | None:
    """Return the schema of the numbers that fit all parts; None if there are none. kind: `integer` or `number`."""
    factor, where = _factor(branch, kind)
    if factor:
        kind = "integer"
    step = Decimal(1) if kind == "integer" else DECIMALS
    most = LARGEST[kind]
    low = _bound(branch, "minimum", "exclusiveMinimum", step, 1)
    high = _bound(branch, "maximum", "exclusiveMaximum", step, -1)
    for bound, sign in ((low, 1), (high, -1)):
        if bound is not None and sign * bound[0] > most:
            raise SchemaError(bound[1], f"numbers beyond {most} cannot be bounded here")
    ends = [(name, bound[0]) for name, bound in (("minimum", low), ("maximum", high)) if bound is not None]
    limits = {name: min(max(value, Decimal(-most)), Decimal(most)) for name, value in ends}
    if len(limits) == 2 and limits["minimum"] > limits["maximum"]:
        return None
    if factor > 1:
        if len(limits) < 2 or (limits["maximum"] - limits["minimum"]) // factor > MOST_MULTIPLES:
            raise SchemaError(where, "it needs a 'minimum' and a 'maximum', with few multiples between them")
        first = -(-int(limits["minimum"]) // factor) * factor
        values = list(range(first, int(limits["maximum"]) + 1, factor))
        return {"enum": values} if values else None
    return {"type": kind} | {name: int(value) if kind == "integer" else float(value) for name, value in limits.items()}


def _factor(branch: Parts, kind: str) -> tuple[int, Path]:
    """Return the number that whole numbers must be a multiple of, with its keyword; 0 for none."""
    factor = 0
    where: Path = ()
    for part in branch:
        value = part.get("multipleOf", (int, float), "a number above 0")
        if value is None or (kind == "integer" and value > 0 and (1 / value).is_integer()):
            continue
        where = (*part.path, "multipleOf")
        if value <= 0:
            raise SchemaError(where, "it must be a number above 0")
        if not float(value).is_integer():
            raise SchemaError(where, "only whole numbers can be enforced: round the answer yourself")
        factor = math.lcm(factor or 1, int(value))
    return factor, where
