"""Bounds on one request: the setting behind each, and its reason."""

from docs.tables.markdown import code, table
from registry.bounds import TUNABLE, UNSCALED, USUAL, Bounds
from registry.byte_size import ByteSize


def bounds() -> str:
    """Return name, default, option, meaning, response beyond the bound, and reason."""
    rows = []
    for name, field in Bounds.model_fields.items():
        reported = field.json_schema_extra
        assert isinstance(reported, dict)
        value = getattr(USUAL, name)
        displayed = ByteSize(value).human_readable().replace(".0", "") if field.annotation is ByteSize else f"{value:,}"
        by = "`--bounds`" if name in TUNABLE else "-" if name in UNSCALED else "factor"
        rows.append((code(name), displayed, by, field.description or "", str(reported["over"]), str(reported["why"])))
    return table(("name", "default", "set by", "what", "over it", "why so much"), rows)
