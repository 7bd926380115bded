"""What one request may ask for, by the names that `--bounds` takes, with each reason."""

from pydantic import ByteSize

from docs.tables.markdown import code, table
from registry.bounds import USUAL, Bounds


def bounds() -> str:
    """Name, default, meaning, what becomes of more, reason."""
    rows = []
    for name, field in Bounds.model_fields.items():
        reported = field.json_schema_extra
        assert isinstance(reported, dict)
        value = getattr(USUAL, name)
        displayed = ByteSize(value).human_readable().replace(".0", "") if field.annotation is ByteSize else f"{value:,}"
        rows.append((code(name), displayed, field.description or "", str(reported["over"]), str(reported["why"])))
    return table(("name", "default", "what", "over it", "why so much"), rows)
