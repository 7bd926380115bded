"""What files and options hold, as JSON can carry it on."""

from typing import Any

from runtime.cli.failures import RefusedError


def read_yaml(text: str) -> Any:
    """One YAML document. A date stays the text that was written: JSON has none. Raises Refused."""
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
        raise RefusedError(f"this is no YAML that JSON can carry: {error}") from None
    return result
