"""Turn queries and documents into a cross-encoder's inputs, with long documents in chunks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from models.messages import RerankRequest
from models.text.tokens import DENSE, Going, Ids, Tokens, always, check_characters
from registry.errors import ContextLengthExceeded, EngineFailed

LEAST_ROOM = 16
"""Tokens that a query must leave for the document."""
OVERLAP = 8
"""Neighbouring chunks share 1 / OVERLAP of the document's room, so that no sentence is cut in both."""
CHUNKS = 8
"""Longest document, in contexts of `tokens.SPARSE` characters per token, if no smaller limit cuts it: 100,000 English
words for a context of 512."""


@dataclass(frozen=True, slots=True)
class PairTemplate:
    """The special tokens around query and document, and all type ids."""

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    types: tuple[int, int, int, int, int]
    """Type ids of before, query, between, document and after."""

    @property
    def tokens(self) -> int:
        return len(self.before) + len(self.between) + len(self.after)

    def ids(self, query: Sequence[int], document: Sequence[int]) -> Ids:
        parts = (self.before, query, self.between, document, self.after)
        types = [kind for kind, part in zip(self.types, parts, strict=True) for _ in part]
        return Ids([token for part in parts for token in part], types)


class Pairs:
    """Makes the network's inputs from a query and its documents."""

    def __init__(self, tokenizer: Any, tokens: Tokens) -> None:
        self._tokens = tokens
        self.pair = _pair(tokenizer)

    def inputs(self, request: RerankRequest, going: Going = always) -> list[list[Ids]]:
        """Return the inputs of each document: one, or one per chunk if it exceeds the context.

        The request's token limits are applied first. With `truncate` there is always one input, cut by the tokenizer's
        rule 'longest_first'; with `max_chunks` anything after that many chunks is omitted.
        Raises ContextLengthExceeded if the query leaves no room for a document and `truncate` is False, or if a
        document has more characters than CHUNKS contexts and no limit cuts it to fewer.
        """
        context = self._tokens.context
        room = context - self.pair.tokens
        question = self._question(request, room, going)
        if request.truncate:
            most = max(room, len(question)) + 1  # enough to know which of the two is longer
            texts = self._tokens.plain(request.documents, _least(most, request.max_document_tokens), going)
            return [[self.pair.ids(*longest_first(question, text, room))] for text in texts]
        if len(question) > room - LEAST_ROOM:
            raise ContextLengthExceeded(
                f"The query has {len(question)} tokens, but this model takes {context} of query and "
                f"document together: at most {max(room - LEAST_ROOM, 0)} of them may be the query's. Shorten it, or "
                "ask for truncation.",
                param="query",
            )
        room_left, chunked = room - len(question), request.max_chunks
        most_read = _least(reach(room_left, chunked) if chunked else None, request.max_document_tokens)
        if most_read is None or most_read > context * CHUNKS:
            for number, text in zip(
                request.document_numbers or range(len(request.documents)), request.documents, strict=True
            ):
                check_characters(text, context * CHUNKS, f"document {number}", "documents")
        texts = self._tokens.plain(request.documents, most_read, going)
        return [[self.pair.ids(question, part) for part in chunks(text, room_left, chunked)] for text in texts]

    def _question(self, request: RerankRequest, room: int, going: Going) -> list[int]:
        """Tokenise the query, or only its start if it is much longer than the context."""
        most = _least(request.max_query_tokens, DENSE * room if request.truncate else None)
        if not request.truncate and (most is None or most > self._tokens.context):
            check_characters(request.query, self._tokens.context, "the query", "query")
        return self._tokens.plain([request.query], most, going)[0]


def _least(*limits: int | None) -> int | None:
    """Return the smallest limit; 0 and None mean no limit."""
    return min((limit for limit in limits if limit), default=None)


def reach(room: int, most: int) -> int:
    """Return the tokens of a document that fit into `most` full chunks of `room`."""
    shared = room // OVERLAP
    return shared + most * (room - shared)


def chunks(document: Sequence[int], room: int, most: int = 0) -> list[Sequence[int]]:
    """Split into the fewest even parts of at most `room` tokens.

    Neighbours share room // OVERLAP tokens. With `most`, use only the start of the document that fits into that many
    parts.
    """
    shared = room // OVERLAP
    if most:
        document = document[: reach(room, most)]
    if len(document) <= room:
        return [document]
    count = -(-(len(document) - shared) // (room - shared))
    last = len(document) - room
    starts = [last * number // (count - 1) for number in range(count)]
    return [document[start : start + room] for start in starts]


def longest_first(first: Sequence[int], second: Sequence[int], room: int) -> tuple[Sequence[int], Sequence[int]]:
    """Cut the longer sequence until both are equal, then both, as in `longest_first`."""
    if len(first) + len(second) <= room:
        return first, second
    short = min(len(first), len(second))
    if 2 * short > room:
        small, large = room // 2, room - room // 2
    else:
        small, large = short, room - short
    if len(first) <= len(second):
        return first[:small], second[:large]
    return first[:large], second[:small]


def _pair(tokenizer: Any) -> PairTemplate:
    """Read the special tokens from an encoded pair."""
    encoded = tokenizer.backend_tokenizer.encode("a", "b")
    sides = encoded.sequence_ids
    if 0 not in sides or 1 not in sides or sides.index(0) > sides.index(1):
        raise EngineFailed("this tokenizer does not put a query before a document: it cannot be served")
    query, document = sides.index(0), sides.index(1)
    end_query, end_document = len(sides) - sides[::-1].index(0), len(sides) - sides[::-1].index(1)
    ids = encoded.ids
    types = encoded.type_ids if "token_type_ids" in tokenizer.model_input_names else [0] * len(ids)

    def kind(start: int, end: int) -> int:
        return int(types[start]) if start < end else 0

    return PairTemplate(
        tuple(ids[:query]),
        tuple(ids[end_query:document]),
        tuple(ids[end_document:]),
        (
            kind(0, query),
            int(types[query]),
            kind(end_query, document),
            int(types[document]),
            kind(end_document, len(ids)),
        ),
    )
