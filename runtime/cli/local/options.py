"""Read settings and values from options and files."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime.cli.failures import RefusedError, UsageError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    from runtime.config.settings import Settings


def settings_of(**given: object) -> "Settings":
    """Build settings from given values, variables and defaults. Raises UsageError naming a wrong option."""
    from pydantic import ValidationError

    from runtime.config.settings import Settings

    values = {name: value for name, value in given.items() if value is not None}
    try:
        return Settings.model_validate({**values, "run_dir": Path("/unused")})
    except ValidationError as error:
        wrong = dict.fromkeys(_fault(e) for e in error.errors(include_url=False))
        raise UsageError(f"Wrong option: {'; '.join(wrong)}.") from None


PATTERNS = {
    "public_url": "an address such as https://models.example/ai",
    "device": "auto, cpu, cpu:2, cuda, or cuda: with the UUIDs that nvidia-smi -L lists",
    "currency": "three capital letters, such as EUR",
    "fleet": "a lower-case letter, then at most 30 lower-case letters, digits or '_'",
    "fleet_listen": "HOST:PORT, such as 0.0.0.0:8443",
    "fleet_address": "an address such as https://10.0.0.5:8443",
}
"""Setting to what its pattern means."""
SECRET = ("database", "pepper")


def _fault(error: "ErrorDetails") -> str:
    """Describe what is wrong with an option, and what to write instead."""
    from registry.recipes.validation import quote_value, words

    name = str(error["loc"][0]) if error["loc"] else ""
    inner = [part for part in error["loc"][1:] if isinstance(part, str)]  # a bound; positions in a list say nothing
    option = " ".join([f"--{name.replace('_', '-')}", *inner])
    if error["type"] == "value_error":
        return f"{option}: {error['msg'].removeprefix('Value error, ')}"
    if name in SECRET:
        return f"{option}: {error['msg']}"
    if error["type"] == "string_pattern_mismatch" and name in PATTERNS:
        return f"{option} cannot be {quote_value(error['input'])}; write {PATTERNS[name]}"
    return words({**error, "loc": (option,)}).replace(f"'{option}'", option, 1)


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
