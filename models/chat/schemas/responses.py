"""Responses: vLLM writes every field that it knows as null where it has nothing, and knows fewer than OpenAI."""

from models.chat.schemas import shape
from models.chat.schemas.shape import NULL, Shape

_ALWAYS = ("access_programs", "error", "incomplete_details", "instructions", "metadata", "temperature", "top_p")
ITEM = Shape(
    nullable=frozenset({"call_id", "code", "environment", "max_output_length", "outputs", "result"}),
    inner={"content": Shape()},
)
RESPONSE = Shape(
    nullable=frozenset(_ALWAYS),
    always=dict.fromkeys(_ALWAYS, NULL),
    inner={
        "output": ITEM,
        "reasoning": Shape(),
        "text": Shape(inner={"format": Shape()}),
        "tools": Shape(frozenset({"parameters", "strict"})),
    },
)
EVENT = Shape(
    nullable=frozenset({"annotation", "code", "param"}),
    inner={"item": ITEM, "part": Shape(), "response": RESPONSE},
)


def fitted(data: bytes) -> bytes:
    return shape.fitted(data, RESPONSE, _of_event)


def _of_event(name: bytes) -> Shape | None:
    """A piece of text, which is most events, is a string and never null."""
    return None if name.endswith(b".delta") else EVENT
