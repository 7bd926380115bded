"""Patterns that names must match. A name is no path: no slash, no leading dot."""

import re
from typing import Annotated

from pydantic import StringConstraints

# \Z and not $: Python's $ also matches before a newline at the end. (Pydantic's own engine knows only $, and strictly.)
ADAPTER = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
MODEL = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._/:-]{0,127}\Z")
"""A model id may hold ':' (`gpt-oss:120b`): resolution tries the exact id before it splits `base:adapter`."""
ALIAS = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
DIGEST = re.compile(r"^sha256:[0-9a-f]{64}\Z")
DIGEST_PREFIX = re.compile(r"^sha256:[0-9a-f]{12,64}\Z")
"""A digest as a client may write it behind '@': the first 12 hex digits or more."""
VERSION = re.compile(r"^v[1-9][0-9]{0,8}\Z")
DEFAULT_TEAM = "default"
"""The team of everything without an owner: servers without keys, and adapters of recipes."""
NAME_RULE = "write 1 to 64 letters, digits, '.', '_' or '-', and begin with a letter or digit"
MODEL_RULE = "write 1 to 128 letters, digits, '.', '_', '-', '/' or ':', and begin with a letter or digit"
"""The words for ADAPTER and ALIAS, and for MODEL, in messages."""

RecipeId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:-]{0,127}(@[1-9][0-9]{0,8})?$")]
"""A model's id in files. A former version that is still served is called `id@version`."""
AdapterName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
ModelId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:-]{0,127}$")]
