"""Strict validation by the vendors' types: no undocumented nulls, missing or unknown fields, types or literals.

The types are those of the vendors' Python packages, which are generated from their OpenAPI documents. `Optional` means
there that a field may be left out or that it may be null; `nullable.py` says which.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from pydantic import TypeAdapter

from tests.system.vendor.nullable import MORE, NULLABLE

NULL = {"type": "null"}


def faults(kind: Any, value: object) -> list[str]:
    """Return the places where `value`, parsed from JSON, is not of this kind, and why."""
    return sorted(_describe(deepest) for error in _validator(kind).iter_errors(value) for deepest in _deepest(error))


@cache
def _validator(kind: Any) -> Draft202012Validator:
    schema = TypeAdapter(kind).json_schema()
    for part in (schema, *schema.get("$defs", {}).values()):
        if "properties" in part:
            _tighten(part)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def _tighten(schema: dict[str, Any]) -> None:
    name, fields = schema["title"], schema["properties"]
    allowed = NULLABLE.get(name, {})
    for field, part in fields.items():
        if field not in allowed and NULL in part.get("anyOf", ()):
            part["anyOf"].remove(NULL)
    always = {field for field, must in allowed.items() if must and field in fields}
    schema["required"] = sorted(always.union(schema.get("required", ())))
    for field in MORE.get(name, {}):
        fields.setdefault(field, True)
    schema["additionalProperties"] = False


def _deepest(error: ValidationError) -> Iterator[ValidationError]:
    """Yield the faults in the branch of a union that fits the value best."""
    branches: dict[int, list[ValidationError]] = {}
    for inner in error.context or ():
        branches.setdefault(int(inner.schema_path[0]), []).append(inner)
    if not branches:
        yield error
        return

    def distance(errors: list[ValidationError]) -> tuple[bool, int]:
        return any(one.validator in ("const", "enum", "type") and len(one.path) < 2 for one in errors), len(errors)

    for inner in min(branches.values(), key=distance):
        yield from _deepest(inner)


def _describe(error: ValidationError) -> str:
    schema: Mapping[str, Any] = error.schema if isinstance(error.schema, Mapping) else {}
    return f"{error.json_path} ({schema.get('title', '')}): {error.message[:200]}"
