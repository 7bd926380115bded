"""A request to Responses, and the stored turns that it continues from."""

import secrets
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any, Self

import msgspec

from registry.base.json import NOT_JSON
from registry.base.wording import quoted
from registry.errors import BadRequest
from routing.providers.translation.reading import objects
from routing.providers.translation.response_answers import echoed
from runtime.http.bodies import parse_object
from tenants.responses.rows import StoredResponse

Json = dict[str, Any]
_ANSWER = msgspec.json.Decoder(Json)
CODES = {429: "rate_limit_exceeded"}
"""OpenAI's code of a failed response, by the status that the request would have had."""


class StoreRequest(msgspec.Struct):
    """The fields of a request that concern storing. They are not sent to the engine, except `store: false`."""

    fields: dict[str, Any]
    store: bool
    previous: str | None
    background: bool

    @classmethod
    def of(cls, body: bytes) -> Self:
        """Parse a body. Raises BadRequest for fields of wrong types or in invalid combinations."""
        fields = parse_object(body)
        store, background = _flag(fields, "store", True), _flag(fields, "background", False)
        previous = fields.pop("previous_response_id", None)
        if not isinstance(previous, str | None):
            raise BadRequest("'previous_response_id' must be a string.", param="previous_response_id")
        if background and not store:
            raise BadRequest(
                "A background response is stored: leave 'store' out, or set it to true.",
                param="store",
                code="unsupported_value",
            )
        if background and fields.get("stream") is True:
            raise BadRequest(
                "A background response cannot be streamed here: leave 'stream' out, and fetch the response by its id.",
                param="stream",
                code="unsupported_value",
            )
        if background and fields.get("tools") is not None:
            objects(fields["tools"], "tools")  # its first answer repeats them, before the engine checks them
        if not store:
            fields["store"] = False  # a provider may store what does not say so
        return cls(fields, store, previous, background)

    def references(self) -> list[str]:
        """The ids of earlier items that the input names in their place. Raises BadRequest."""
        given = self.fields.get("input")
        ids = [item.get("id") for item in given if _is_reference(item)] if isinstance(given, list) else []
        for id_, count in Counter(id_ if isinstance(id_, str) else None for id_ in ids).items():
            if id_ is None:
                raise BadRequest("An 'item_reference' needs the 'id' of an item: a string.", param="input")
            if count > 1:
                raise _twice(id_)
        return ids

    def with_history(self, row: StoredResponse | None, stored: Mapping[str, bytes]) -> bytes:
        """Prepend the earlier turns to the input, and put stored items in place of their ids.

        Returns all items as JSON. Raises BadRequest.
        """
        given = self.fields.get("input", [])
        items = [_message(given)] if isinstance(given, str) else given
        if not isinstance(items, list):
            return b"[]"  # the engine will refuse it
        if not all(isinstance(item, dict) for item in items):  # the engine checks this only after it is stored
            raise BadRequest("Each item of 'input' must be an object.", param="input")
        before: list[Any] = []
        if row is not None:
            answer = _ANSWER.decode(row.answer)
            status, output = answer.get("status"), answer.get("output")
            if status not in ("completed", "incomplete"):
                raise BadRequest(
                    f"The response {row.id} is {status}: continue from a completed one.", param="previous_response_id"
                )
            if not isinstance(output, list):  # a provider's answer is stored as it is
                raise BadRequest(
                    f"The response {row.id} cannot be continued: its provider sent no list of items as 'output'.",
                    param="previous_response_id",
                )
            before = [*msgspec.json.decode(row.input), *output]
            earlier = {str(item.get("id")) for item in before if isinstance(item, dict)}
            for id_ in earlier & stored.keys():
                raise _twice(id_)
        if stored:
            items = [msgspec.Raw(stored[item["id"]]) if _is_reference(item) else item for item in items]
        if before or stored:
            self.fields["input"] = [*before, *items]
        return msgspec.json.encode([*before, *items])

    @property
    def body(self) -> bytes:
        """The body for the engine."""
        return msgspec.json.encode(self.fields)


def _flag(fields: Json, name: str, otherwise: bool) -> bool:
    value = fields.pop(name, None)
    if not isinstance(value, bool | None):
        raise BadRequest(f"'{name}' must be true or false.", param=name)
    return otherwise if value is None else value


def _is_reference(item: Any) -> bool:
    """Whether an item only names another one; OpenAI's schema lets the type of such an item be left out."""
    return isinstance(item, dict) and (
        item.get("type") == "item_reference" or (item.get("type") is None and item.keys() - {"type"} == {"id"})
    )


def _twice(id_: str) -> BadRequest:
    return BadRequest(
        f"The item {quoted(id_)} is in the conversation twice: name it once, and none that 'previous_response_id' "
        "brings along.",
        param="input",
        code="duplicate_item",
    )


def _message(text: str) -> Json:
    return {"type": "message", "role": "user", "content": text}


def new_id() -> str:
    return f"resp_{secrets.token_hex(24)}"


def begun(id_: str, request: StoreRequest) -> Json:
    """A background response before the engine has answered."""
    return {
        "id": id_,
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": None,
        "status": "in_progress",
        "error": None,
        "access_programs": None,
        "incomplete_details": None,
        "model": request.fields.get("model"),
        "output": [],
        **echoed(request.fields),
        "background": True,
        "store": True,
        "previous_response_id": request.previous,
    }


def error_of(status: int, body: bytes) -> tuple[str, str]:
    """OpenAI's error code, and the message in an error's body."""
    try:
        message = msgspec.json.decode(body)["error"]["message"]
    except (*NOT_JSON, KeyError, TypeError):
        message = "The answer broke off."
    return CODES.get(status, "server_error" if status >= 500 else "invalid_prompt"), str(message)


def listed(row: StoredResponse) -> list[Json]:
    """The input's items in OpenAI's list format: each has an id of its own, and a message's content is a list.

    Some servers give items of several answers one id, by which a page could not be continued.
    """
    items: list[Json] = []
    ids = set[str]()
    for index, item in enumerate(msgspec.json.decode(row.input)):
        if not isinstance(item.get("id"), str) or item["id"] in ids:
            item = {**item, "id": None}
        items.append(_listed(item, f"{row.id.removeprefix('resp_')}{index:04x}"))
        ids.add(items[-1]["id"])
    return items


def _listed(item: Mapping[str, Any], number: str) -> Json:
    kind = item.get("type") or "message"
    result = {**item, "type": kind, "id": item.get("id") or f"{'msg' if kind == 'message' else 'item'}_{number}"}
    if kind == "message":
        result["status"] = item.get("status") or "completed"
    if kind == "message" and isinstance(content := item.get("content"), str):
        is_answer = item.get("role") == "assistant"
        part = {"type": "output_text", "text": content, "annotations": []} if is_answer else None
        result["content"] = [part or {"type": "input_text", "text": content}]
    return result
