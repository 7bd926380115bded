"""Read settings and values from options and files."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime.cli.failures import RefusedError, UsageError

if TYPE_CHECKING:
    from runtime.config.settings import Settings


def settings_of(**given: object) -> "Settings":
    """Build settings from given values, variables and defaults. Raises UsageError naming a wrong option."""
    from pydantic import ValidationError

    from runtime.config.settings import REMOVED, Settings

    for name, now in REMOVED.items():
        if os.environ.get(variable := f"ROUNDHOUSE_{name.upper()}"):
            raise UsageError(f"The variable {variable} is no longer a setting: {now}. Unset it.")
    values = {name: value for name, value in given.items() if value is not None}
    try:
        return Settings.model_validate({**values, "run_dir": Path("/unused")})
    except ValidationError as error:
        wrong = [f"{_option(e['loc'])}: {e['msg']}" for e in error.errors()]
        raise UsageError(f"Wrong option: {'; '.join(wrong)}.") from None


def _option(place: tuple[int | str, ...]) -> str:
    """Return the option as written on the command line."""
    option, *inner = map(str, place)
    return " ".join([f"--{option.replace('_', '-')}", *inner])


def read_yaml(text: str) -> Any:
    """Read a YAML document; dates stay text, because JSON has none. Raises RefusedError."""
    import json

    import yaml

    class YamlLoader(yaml.SafeLoader):
        yaml_constructors = {  # noqa: RUF012 - as PyYAML has it
            **yaml.SafeLoader.yaml_constructors,
            "tag:yaml.org,2002:timestamp": yaml.SafeLoader.construct_yaml_str,
        }

    try:
        result = yaml.load(text, YamlLoader)
        json.dumps(result, allow_nan=False)
    except (yaml.YAMLError, ValueError, TypeError, LookupError, ArithmeticError, RecursionError) as error:
        raise RefusedError(f"this is not YAML that can be written as JSON: {error}") from None
    return result
