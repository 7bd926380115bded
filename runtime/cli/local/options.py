"""Settings of a server as a command is given them."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from runtime.cli.failures import UsageError

if TYPE_CHECKING:
    from runtime.config.settings import Settings


def settings_of(**given: object) -> "Settings":
    """What is given and not None; for the rest, variables and defaults. Raises UsageError that names the option."""
    from pydantic import ValidationError

    from runtime.config.settings import REMOVED, Settings

    for name, now in REMOVED.items():
        if os.environ.get(variable := f"ROUNDHOUSE_{name.upper()}"):
            raise UsageError(f"The variable {variable} is no setting any more: {now}. Unset it.")
    values = {name: value for name, value in given.items() if value is not None}
    try:
        return Settings.model_validate({**values, "run_dir": Path("/unused")})
    except ValidationError as error:
        wrong = [f"{_option(e['loc'])}: {e['msg']}" for e in error.errors()]
        raise UsageError(f"Wrong option: {'; '.join(wrong)}.") from None


def _option(place: tuple[int | str, ...]) -> str:
    """The option as written on the command line."""
    option, *inner = map(str, place)
    return " ".join([f"--{option.replace('_', '-')}", *inner])
