"""Rewrite an enforced JSON schema in a few plain forms, or refuse it by path.

The grammar libraries silently ignore some keywords, alone or in combination. They get only the following forms, which
`tests/contract/chat/schemas/test_walks.py` proves to be enforced:

| form    | fields                                                                                                   |
|---------|----------------------------------------------------------------------------------------------------------|
| any     | none                                                                                                     |
| values  | `enum`                                                                                                   |
| choice  | `anyOf`                                                                                                  |
| target  | `$ref` to an entry of `$defs` at the top                                                                 |
| string  | `type`, and `pattern` of plain characters (see `patterns.py`) or `format`                                |
| number  | `type` (`integer` too), `minimum`, `maximum`, of few digits                                              |
| array   | `type`, `prefixItems`, `items`, `minItems`, `maxItems`                                                   |
| object  | `type`, `properties`, `required`, `additionalProperties`, one `patternProperties` for names that are not |
|         | in `properties`, `minProperties`, `maxProperties`                                                        |
| others  | `type`: `boolean`, `null`                                                                                |

Where the two differ, the new schema accepts less than the client's, so an answer always fits the client's schema:

- Without `type`, only values of the types that the keywords apply to are accepted.
- With `properties`, no others are accepted unless `additionalProperties` allows it; with `prefixItems`, no others
  unless `items` or `minItems` does.
- `oneOf` is accepted only if no value fits two of its schemas.
- Schemas that apply together (`allOf`, and keywords next to `$ref`, `anyOf` or `enum`) are merged.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any
from urllib.parse import unquote

import jsonschema
from referencing import Registry
from referencing.exceptions import Unresolvable

from models.chat.grammars import patterns, scalars
from models.chat.grammars.parts import Json, Part, Parts, Path, SchemaError, counts, listed

TYPES = ("string", "integer", "number", "boolean", "null", "array", "object")
KEYWORDS: Mapping[str, tuple[str, ...]] = {
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "array": ("items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems", "unevaluatedItems"),
    "object": (
        "properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties",
        "maxProperties", "unevaluatedProperties",
    ),
}  # fmt: skip
"""Keywords by the type of the values that they apply to."""
GENERAL = ("type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref", "$defs", "definitions", "$anchor")
REFUSED: Mapping[str, tuple[tuple[object, ...], str]] = {
    "not": ((), "say what is allowed instead"),
    "then": ((), "use 'anyOf' with a schema for each case"),
    "else": ((), "use 'anyOf' with a schema for each case"),
    "contains": ((), "put the entry into 'prefixItems'"),
    "dependentRequired": (({},), "use 'anyOf' with a schema for each case"),
    "dependentSchemas": (({},), "use 'anyOf' with a schema for each case"),
    "dependencies": (({},), "use 'anyOf' with a schema for each case"),
    "unevaluatedItems": ((True,), "use 'items'"),
    "unevaluatedProperties": ((True,), "use 'additionalProperties'"),
    "uniqueItems": ((False,), "check the answer yourself"),
    "$dynamicRef": ((), "use '$ref'"),
    "$recursiveRef": ((), "use '$ref'"),
}
"""Keywords that cannot be enforced, with values that have no effect, and what to do instead."""
RULES: Mapping[str, str] = {
    "type": "one or a list",
    "enum, const": "any values; what stands beside them removes those that do not fit it",
    "anyOf, allOf": "beside other keywords too; up to {options} combinations of schemas that apply together",
    "oneOf": "where no value fits two of its schemas: other types, other constants, or objects that require a property "
    "with other constants",
    "$ref, $defs, definitions, $anchor": "references inside the schema, recursive ones too",
    "minLength, maxLength": "such strings have no quotes, backslashes or control characters",
    "pattern": "groups, classes, quantifiers, and anchors at the ends; without any anchor it is the whole string. "
    "Beside a length only a repeated character, such as `^[a-z]+$`",
    "format": "{formats}; beside `pattern` only the pattern, which must go from `^` to `$`; not all of them beside a "
    "length",
    "minimum, maximum, exclusiveMinimum, exclusiveMaximum": "numbers between them have up to six decimals",
    "multipleOf": "whole numbers between two bounds with up to {multiples} multiples",
    "items, prefixItems, minItems, maxItems": "a list as `items`, with `additionalItems`, as in older drafts too",
    "properties, required": "in the order of `properties`; no others unless `additionalProperties` says so",
    "additionalProperties": "`true`, `false` or a schema",
    "patternProperties": "one pattern, not beside `properties`; other names are not written",
    "propertyNames": "`pattern`, `enum` or lengths; not beside `properties`",
    "minProperties, maxProperties": "more names than `required` and one more only where all names are in `properties`",
}
"""Enforced rules by keyword, for the reference page."""
MOST_OPTIONS = 256
_OUTSIDE = "only references inside the schema are followed: put the other one into '$defs'"


def rewrite(schema: Any) -> Any:
    """Return a schema in the forms above that accepts only what `schema` accepts; False if it accepts nothing.

    Raises SchemaError for what cannot be enforced. Takes unbounded time and memory, so call it in a bounded process.
    """
    return _Rewriter(schema).rewrite()


def rewrite_tag(tag: Any, path: Path = ()) -> Any:
    """Return a structural tag with rewritten JSON schemas; a schema that nothing fits becomes False.

    Raises SchemaError.
    """
    if isinstance(tag, list):
        return [rewrite_tag(one, (*path, index)) for index, one in enumerate(tag)]
    if not isinstance(tag, dict):
        return tag
    name = "json_schema" if tag.get("type") == "json_schema" else "schema" if "begin" in tag else ""
    result = {key: value if key == name else rewrite_tag(value, (*path, key)) for key, value in tag.items()}
    if isinstance(tag.get(name), dict):
        try:
            result[name] = rewrite(tag[name])
        except SchemaError as error:
            error.path = (*path, name, *error.path)
            raise
    return result


class _Rewriter:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._names: dict[tuple[Path, ...], str] = {}
        """Names of definitions, by the paths of the schemas that apply together."""
        self._open: set[tuple[Path, ...]] = set()
        """Definitions being written."""
        self._definitions: Json = {}

    def rewrite(self) -> Any:
        node = self._node((Part(self._root, ()),))
        definitions = {name: made for name, made in self._definitions.items() if made is not False}
        text = json.dumps([node, definitions])
        for key, name in self._names.items():
            if name not in definitions and f'"#/$defs/{name}"' in text:
                raise SchemaError(key[0], "no value fits it: leave it out")
        return node | {"$defs": definitions} if node and definitions else node

    def _node(self, parts: Parts) -> Any:
        """Return the schema of the values that all `parts` accept; False if there are none.

        Targets of references and recursive schemas become definitions.
        """
        targets = _distinct([self._target(part) for part in parts])
        key = tuple(sorted((part.path for part in targets), key=str))
        if key in self._names or key in self._open:
            return self._reference(key)
        if {*key} - {part.path for part in parts}:
            self._reference(key)
        self._open.add(key)
        node = self._build(targets)
        self._open.remove(key)
        if key not in self._names:
            return node
        self._definitions[self._names[key]] = node
        return self._reference(key)

    def _reference(self, key: tuple[Path, ...]) -> Any:
        name = self._names.setdefault(key, f"d{len(self._names)}")
        return False if self._definitions.get(name) is False else {"$ref": f"#/$defs/{name}"}

    def _build(self, parts: Parts) -> Any:
        branches = _joined([self._branches(part, frozenset()) for part in parts], parts[0].path)
        options: list[Any] = []
        for branch in branches:
            options += [option for option in self._options(branch) if option not in options]
        if not options or {} in options:
            return {} if options else False
        return options[0] if len(options) == 1 else {"anyOf": options}

    def _target(self, part: Part) -> Part:
        """Return the schema that a part refers to, if it has only `$ref`."""
        seen: set[Path] = set()
        while part.has("$ref") and not any(name in part.schema for name in _CONSTRAINTS - {"$ref"}):
            if part.path in seen:
                raise _circle(part)
            seen.add(part.path)
            part = self._follow(part)
        return part

    def _follow(self, part: Part) -> Part:
        """Return the schema that a part's `$ref` refers to."""
        reference = part.get("$ref", str, "a text")
        where = (*part.path, "$ref")
        if not reference.startswith("#"):
            raise SchemaError(where, _OUTSIDE)
        if reference[1:] and not reference.startswith("#/"):
            if reference[1:] not in self._anchors:
                raise SchemaError(where, "there is no such '$anchor'")
            return self._anchors[reference[1:]]
        target = Part(self._root, ())
        for key in unquote(reference[1:]).split("/")[1:]:
            name = key.replace("~1", "/").replace("~0", "~")
            try:
                target = target.inside(int(name) if isinstance(target.schema, list) else name)
            except (LookupError, TypeError, ValueError):
                raise SchemaError(where, "it leads nowhere") from None
        return target

    @cached_property
    def _anchors(self) -> dict[str, Part]:
        anchors: dict[str, Part] = {}
        pending = [Part(self._root, ())]
        while pending:
            part = pending.pop()
            if isinstance(part.schema, Mapping):
                if isinstance(name := part.schema.get("$anchor"), str):
                    anchors[name] = part
                pending += [part.inside(key) for key in part.schema]
            elif isinstance(part.schema, list):
                pending += [part.inside(index) for index in range(len(part.schema))]
        return anchors

    @cached_property
    def _validator(self) -> Any:
        # with its own default, it would fetch what a client's `$ref` names, from any host and from this machine's files
        return jsonschema.Draft202012Validator(self._root, registry=Registry())

    def _branches(self, part: Part, seen: frozenset[Path]) -> list[Parts]:
        """Return a part's alternatives: schemas without `$ref`, `allOf`, `anyOf` and `oneOf` that apply together."""
        if isinstance(part.schema, bool):
            return [()] if part.schema else []
        if not isinstance(part.schema, Mapping):
            raise SchemaError(part.path, "a schema must be an object, true or false")
        if part.path in seen:
            raise _circle(part)
        seen |= {part.path}
        if "enum" in part.schema or "const" in part.schema:
            return [(part,)]  # the other keywords are checked value by value
        _check_keywords(part)
        factors: list[list[Parts]] = [[(part,)] if any(name in part.schema for name in _FLAT) else [()]]
        if "$ref" in part.schema:
            factors.append(self._branches(self._follow(part), seen))
        factors += [self._branches(one, seen) for one in listed(part, "allOf")]
        for name in ("anyOf", "oneOf"):
            if name in part.schema:
                options = [self._branches(one, seen) for one in listed(part, name)]
                if name == "oneOf":
                    self._check_disjoint(part, options)
                factors.append([branch for option in options for branch in option])
        return _joined(factors, part.path)

    def _check_disjoint(self, part: Part, options: list[list[Parts]]) -> None:
        for second, later in enumerate(options):
            for first in options[:second]:
                if not all(self._disjoint(one, other) for one in first for other in later):
                    raise SchemaError(
                        (*part.path, "oneOf"),
                        "a value may fit two of its schemas: use 'anyOf', or let each require a property with a "
                        "constant of its own",
                    )

    def _disjoint(self, one: Parts, other: Parts, depth: int = 0) -> bool:
        """Return whether it is certain that no value fits both."""
        for these, those in ((one, other), (other, one)):
            if (values := self._values(these)) is not None:
                return not any(self._accept(those, value) for value in values)
        types, others = _types(one), _types(other)
        if types is not None and others is not None and not _common(types, others):
            return True
        for name in _required(one) & _required(other) if depth < 4 else ():
            children = [
                _joined([self._branches(p.inside("properties", name), frozenset()) for p in parts if _names(p, name)])
                for parts in (one, other)
            ]
            if all(self._disjoint(mine, theirs, depth + 1) for mine in children[0] for theirs in children[1]):
                return True
        return False

    def _values(self, branch: Parts) -> list[Any] | None:
        """Return all values that fit a branch; None if they are not listed."""
        listed = next((part for part in branch if part.has("enum") or part.has("const")), None)
        if listed is None:
            return None
        values = [listed.schema["const"]] if listed.has("const") else listed.get("enum", list, "a list")
        return [value for value in values if self._accept(branch, value)]

    def _accept(self, branch: Parts, value: Any) -> bool:
        """Return whether a value fits the client's own schemas."""
        for part in branch:
            try:
                if not self._validator.evolve(schema=part.schema).is_valid(value):
                    return False
            except Unresolvable:
                raise SchemaError(part.path, _OUTSIDE) from None
            except Exception as error:  # an invalid schema may raise anything
                raise SchemaError(part.path, f"no value can be checked by it: {error}"[:300]) from None
        return True

    def _options(self, branch: Parts) -> Iterator[Any]:
        """Iterate over a schema for each type of the values that fit a branch."""
        if (values := self._values(branch)) is not None:
            if values:
                yield {"enum": values}
            return
        types = _types(branch)
        if types is None:
            types = [kind for kind in KEYWORDS if any(part.has(name) for part in branch for name in KEYWORDS[kind])]
            if not types:
                yield {}
        for kind in types:
            match kind:
                case "string":
                    node = scalars.string(branch)
                case "integer" | "number":
                    node = scalars.number(branch, kind)
                case "array":
                    node = self._array(branch)
                case "object":
                    node = self._object(branch)
                case _:
                    node = {"type": kind}
            if node is not None:
                yield node

    def _array(self, branch: Parts) -> Json | None:
        least, most = counts(branch, "minItems", "maxItems")
        lists = [_items(part) for part in branch]
        prefix: list[Any] = []
        for index in range(max(len(first) for first, _ in lists)):
            entry = self._all([first[index] if index < len(first) else rest for first, rest in lists])
            if entry is False:
                most = index if most is None else min(most, index)
                break
            prefix.append(entry)
        rest = self._all([rest for _, rest in lists])
        if prefix and least <= len(prefix) and all(rest is None for _, rest in lists):
            rest = False
        if most is not None and most <= len(prefix):
            prefix, rest, most = prefix[:most], False, None
        if rest is False:
            most = None
        if (least > len(prefix) and rest is False) or (most is not None and least > most):
            return None
        node: Json = {"type": "array"} | ({"prefixItems": prefix} if prefix else {}) | {"items": rest}
        return node | ({"minItems": least} if least else {}) | ({} if most is None else {"maxItems": most})

    def _all(self, parts: Sequence[Part | None]) -> Any:
        """Return the schema of all parts together, ignoring None."""
        given = tuple(part for part in parts if part is not None)
        return self._node(given) if given else {}

    def _object(self, branch: Parts) -> Json | None:
        pattern, rest = self._other_names(branch)
        required = _required(branch)
        names = list(dict.fromkeys([name for part in branch for name in _properties(part)] + sorted(required)))
        properties: Json = {}
        for name in names:
            node = self._all([_of_name(part, name) for part in branch])
            if node is not False:
                properties[name] = node
            elif name in required:
                return None
        node = {"type": "object"} | ({"properties": properties} if names else {})
        if required:
            node["required"] = [name for name in properties if name in required]
        if names and rest is not False:
            pattern = patterns.others(names)
        if pattern is not None and rest is not False:
            node |= {"patternProperties": {f"^(?:{pattern})$": rest}, "additionalProperties": False}
        else:
            node["additionalProperties"] = rest
        return _with_counts(node, branch, rest is not False)

    def _other_names(self, branch: Parts) -> tuple[str | None, Any]:
        """Return the pattern of names that are not in `properties` (None for any), and the schema of their values."""
        named = any(part.has("properties") for part in branch)
        patterned = [part for part in branch if part.get("patternProperties", Mapping, "an object")]
        limited = [part for part in branch if part.schema.get("propertyNames") not in (None, True, {})]
        if limited and not (named or patterned or limited[1:]) and _lists(limited[0], _required(branch)):
            return None, False  # the required names are all
        if named or any(part.has("required") for part in branch) or len(patterned) + len(limited) > 1:
            for name, parts in (("patternProperties", patterned), ("propertyNames", limited)):
                for part in parts:
                    raise SchemaError((*part.path, name), "it is not known beside other properties: use 'properties'")
        extras = [part.inside("additionalProperties") for part in branch if part.has("additionalProperties")]
        if patterned:
            part = patterned[0]
            first, *more = part.schema["patternProperties"]
            if more:
                raise SchemaError((*part.path, "patternProperties", more[0]), "only one pattern is known here")
            where = (*part.path, "patternProperties", first)
            return scalars.written(where, first), self._all([part.inside("patternProperties", first)])
        rest: Any = self._all(extras) if extras else (False if named else {})
        if limited:
            return self._name_pattern(limited[0].inside("propertyNames")), rest
        return None, rest

    def _name_pattern(self, names: Part) -> str:
        """Return the pattern of names that fit a schema."""
        node = self._node((names, Part({"type": "string"}, (*names.path, "type"))))
        if isinstance(node, dict) and "$ref" in node:
            node = self._definitions.get(str(node["$ref"]).rpartition("/")[2])  # None while it is being written
        if node == {"type": "string"}:
            return patterns.write(patterns.Repeat(patterns.ANY, 0, None))
        if isinstance(node, dict) and "enum" in node:
            escaped = [re.sub(r"([!-/:-@\[-^`{-~])", r"\\\1", name) for name in node["enum"]]
            return "(?:" + "|".join(scalars.written(names.path, name) for name in escaped) + ")"
        if isinstance(node, dict) and "pattern" in node:
            return str(node["pattern"]).removeprefix("^(?:").removesuffix(")$")
        raise SchemaError(names.path, "only 'pattern', 'enum' and lengths are known here")


_FLAT = frozenset({"type", *(name for names in KEYWORDS.values() for name in names)})
_CONSTRAINTS = _FLAT | set(GENERAL) - {"$defs", "definitions", "$anchor"} | REFUSED.keys()


def _check_keywords(part: Part) -> None:
    """Refuse keywords that cannot be enforced. Names that are not keywords of JSON Schema are annotations."""
    for name in REFUSED.keys() & part.schema.keys():
        harmless, advice = REFUSED[name]
        if part.schema[name] not in harmless and not (name in ("then", "else") and "if" not in part.schema):
            raise SchemaError((*part.path, name), advice)
    if part.path and not str(part.schema.get("$id", "#")).startswith("#"):
        raise SchemaError((*part.path, "$id"), "a schema inside another has no '$id' here: leave it out")


def _circle(part: Part) -> SchemaError:
    return SchemaError(part.path, "it leads back to itself and describes no text: point it to a schema")


def _distinct(parts: Iterable[Part]) -> Parts:
    return tuple({part.path: part for part in parts}.values())


def _joined(factors: list[list[Parts]], path: Path = ()) -> list[Parts]:
    """Return all combinations of one alternative of each factor."""
    result: list[Parts] = [()]
    for factor in factors:
        result = [_distinct([*branch, *more]) for branch in result for more in factor]
        if len(result) > MOST_OPTIONS:
            raise SchemaError(path, f"it has over {MOST_OPTIONS} combinations of schemas: make it simpler")
    return result


def _types(branch: Parts) -> list[str] | None:
    """Return the types that all parts allow; None if no part names any."""
    types: list[str] | None = None
    for part in branch:
        if not part.has("type"):
            continue
        stated = part.schema["type"]
        listed = [stated] if isinstance(stated, str) else stated
        if not isinstance(listed, list) or any(one not in TYPES for one in listed):
            raise SchemaError((*part.path, "type"), f"it must be one of {', '.join(TYPES)}, or a list of them")
        types = _common(types or list(TYPES), listed) if types != [] else []
    return types


def _common(types: list[str], others: list[str]) -> list[str]:
    """Return the types that are in both lists; `number` includes `integer`."""
    wide = [set(kinds) | ({"integer"} if "number" in kinds else set()) for kinds in (types, others)]
    common = [kind for kind in dict.fromkeys([*others, *types, "integer"]) if kind in wide[0] and kind in wide[1]]
    return [kind for kind in common if kind != "integer" or "number" not in common]


def _items(part: Part) -> tuple[list[Part], Part | None]:
    """Return the schemas of the first items, and that of the rest; None if the rest may be anything."""
    if isinstance(part.schema.get("items"), list):
        return listed(part, "items"), part.inside("additionalItems") if part.has("additionalItems") else None
    return listed(part, "prefixItems"), part.inside("items") if part.has("items") else None


def _properties(part: Part) -> Mapping[str, Any]:
    return part.get("properties", Mapping, "an object of schemas") or {}


def _names(part: Part, name: str) -> bool:
    return part.has("properties") and name in _properties(part)


def _of_name(part: Part, name: str) -> Part | None:
    """Return a part's schema for the value of a property."""
    if _names(part, name):
        return part.inside("properties", name)
    return part.inside("additionalProperties") if part.has("additionalProperties") else None


def _required(branch: Parts) -> set[str]:
    names: set[str] = set()
    for part in branch:
        listed = part.get("required", list, "a list of names") if isinstance(part.schema, Mapping) else None
        if any(not isinstance(name, str) for name in listed or ()):
            raise SchemaError((*part.path, "required"), "it must be a list of names")
        names |= set(listed or ())
    return names


def _lists(part: Part, required: set[str]) -> bool:
    """Return whether `propertyNames` lists exactly the required names, as zod writes a record of an enum."""
    names = part.schema["propertyNames"]
    if not isinstance(names, Mapping) or names.keys() - {"enum", "type"} or names.get("type", "string") != "string":
        return False
    listed = names.get("enum")
    return isinstance(listed, list) and all(isinstance(name, str) for name in listed) and set(listed) == required


def _with_counts(node: Json, branch: Parts, is_open: bool) -> Json | None:
    """Add bounds on the number of properties. Returns None if no object fits them."""
    required, known = len(node.get("required", ())), len(node.get("properties", ()))
    least, most = counts(branch, "minProperties", "maxProperties")
    if (most is not None and most < max(least, required)) or (not is_open and least > known):
        return None
    if least > required:
        if is_open and least > required + 1:
            where = next((*part.path, "minProperties") for part in branch if part.has("minProperties"))
            raise SchemaError(where, "the same name may come twice: name the properties in 'required'")
        node["minProperties"] = least
    if most is not None and (is_open or most < known):
        node["maxProperties"] = most
    return node
