"""What one request may ask for, by the names that `--bounds` takes, with each reason."""

from pydantic import ByteSize

from docs.tables.markdown import code, table
from registry.bounds import USUAL, Bounds


def bounds() -> str:
    """Name, default, meaning, what becomes of more, reason."""
    rows = []
    for name, field in Bounds.model_fields.items():
        told = field.json_schema_extra
        assert isinstance(told, dict)
        value = getattr(USUAL, name)
        shown = ByteSize(value).human_readable().replace(".0", "") if field.annotation is ByteSize else f"{value:,}"
        rows.append((code(name), shown, field.description or "", str(told["over"]), str(told["why"])))
    return table(("name", "default", "what", "over it", "why so much"), rows)
