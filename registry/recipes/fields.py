"""What fields of recipes are written as: durations, sizes, money, names. Unknown keys are refused."""

from datetime import timedelta
from pathlib import PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ByteSize, ConfigDict, Field
from pydantic_core import PydanticCustomError

Flag = bool | int | float | str | list[str | int]
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def _seconds(value: object) -> object:
    """'10m', '1.5 h', 30 or a timedelta, as seconds."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str):
        text = value.strip().lower()
        number = text.rstrip("abcdefghijklmnopqrstuvwxyz ")
        unit = text[len(number) :].strip() or "s"
        try:
            return float(number) * _UNITS[unit]
        except (KeyError, ValueError):
            raise PydanticCustomError("duration", "write a duration such as 30s, 10m or 2h") from None
    return value


def _inside(value: str) -> str:
    if PurePosixPath(value).is_absolute() or ".." in PurePosixPath(value).parts:
        raise PydanticCustomError("path_inside", "write a path inside the package, without '..' or a leading '/'")
    return value


Seconds = Annotated[float, BeforeValidator(_seconds), Field(ge=0, allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=1)]
InsidePath = Annotated[str, AfterValidator(_inside)]
PoolName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,31}$")]
Size = Annotated[ByteSize, Field(ge=0, le=2**60)]
"""Bytes, as a number or as text: 512MiB, 4GB."""
Money = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]


class Strict(BaseModel):
    """Frozen, and unknown keys are refused: a typing error in a recipe must not go unnoticed."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)
