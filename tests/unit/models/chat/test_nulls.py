"""What may not be null is left out, and nothing else is touched."""

import json

from hypothesis import given
from hypothesis import strategies as st

from models.chat import nulls

CHAT = "/v1/chat/completions"


@given(st.text(), st.dictionaries(st.sampled_from([*nulls.NAMES, "audio", "refusal"]), st.none() | st.integers()))
def test_only_nulls_of_these_names_go(content: str, fields: dict[str, int | None]) -> None:
    tricky = content + ',"service_tier":null' + json.dumps({"a": 1, "annotations": None}, separators=(",", ":"))
    whole = {"content": tricky, **fields}
    data = json.dumps(whole, separators=(",", ":")).encode()
    kept = {k: v for k, v in whole.items() if v is not None or k not in nulls.NAMES}
    assert json.loads(nulls.without(CHAT, data)) == kept


def test_answers_that_give_a_clients_json_back_stay_as_they_are() -> None:
    data = b'{"id":"x","service_tier":null}'
    assert nulls.without("/v1/responses", data) is data
