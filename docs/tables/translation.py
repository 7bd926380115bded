"""The fields of requests that are translated into a provider's dialect."""

import json
from collections.abc import Iterable, Mapping

from docs.tables.markdown import code, table
from routing.providers.translation import from_chat as chat_fields
from routing.providers.translation import from_messages as message_fields
from routing.providers.translation import from_responses as response_fields
from routing.providers.translation.reading import Fields

HEAD = ("in", "carried", "left out", "only with", "400")


def chat() -> str:
    return _table(chat_fields.FIELDS, chat_fields.REFUSED)


def messages() -> str:
    return _table(message_fields.FIELDS, message_fields.REFUSED)


def responses() -> str:
    return _table(response_fields.FIELDS, response_fields.REFUSED)


def _table(fields: Mapping[str, Fields], refused: Mapping[str, str]) -> str:
    rows = [
        (code(where), _listed(row.carried), _listed(row.left_out), _values(row), _listed(row.refused))
        for where, row in fields.items()
    ]
    kinds = [
        (f"{code(where)}: other kinds", "", "", "", _listed(words.split()) if words else "all")
        for where, words in refused.items()
    ]
    return table(HEAD, rows + kinds)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(code(name) for name in sorted(names))


def _values(row: Fields) -> str:
    return ", ".join(
        f"{code(name)}: {' or '.join(code(json.dumps(value)) for value in values)}" for name, values in row.only.items()
    )
