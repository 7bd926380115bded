"""Random walks through compiled JSON schemas: any text that a grammar accepts is valid by the client's own schema.

There is no engine and no model, but a vocabulary of bytes and random choices among those that the grammar allows.
ROUNDHOUSE_SCHEMA_EXAMPLES sets the number of schemas (default 200).
"""

import json
import os
import random
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from models.chat.grammars.language import rewrite
from models.chat.grammars.parts import SchemaError
from models.chat.grammars.scalars import FORMATS
from tests.contract.chat.schemas.drawn import SCHEMAS, faults

pytestmark = [pytest.mark.real, pytest.mark.timeout(24 * 3600)]
EXAMPLES = int(os.environ.get("ROUNDHOUSE_SCHEMA_EXAMPLES", "200"))
END = 256
WALKS, STEPS = 4, 300
CLOSING = frozenset(b'"}],\\')


@cache
def _compiler(*, remembers: bool = False) -> Any:
    import xgrammar

    words = [bytes([byte]) for byte in range(256)] + [b"<end>"]
    vocabulary = xgrammar.TokenizerInfo(
        words, vocab_type=xgrammar.VocabType.RAW, vocab_size=len(words), stop_token_ids=[END]
    )
    return xgrammar.GrammarCompiler(vocabulary, max_threads=1, cache_enabled=remembers)


def _compile(schema: Any, blanks: bool) -> Any:
    """Compile as vLLM does, with or without blanks between tokens of JSON."""
    separators = None if blanks else (",", ":")
    return _compiler().compile_json_schema(json.dumps(schema), any_whitespace=blanks, separators=separators)


def _walk(grammar: Any, choose: random.Random) -> bytes | None:
    """Return a text that the grammar accepts, or None if it did not end within STEPS."""
    import xgrammar

    matcher, mask = xgrammar.GrammarMatcher(grammar), xgrammar.allocate_token_bitmask(1, END + 1)
    text = bytearray()
    for step in range(STEPS):
        matcher.fill_next_token_bitmask(mask, 0)
        bits = np.unpackbits(mask[0].numpy().view(np.uint8), bitorder="little")[: END + 1]
        allowed = [int(token) for token in np.flatnonzero(bits)]
        if END in allowed and (len(allowed) == 1 or choose.random() < 0.5):
            return bytes(text)
        allowed = [token for token in allowed if token != END]
        if not allowed:
            return None
        closing = [token for token in allowed if token in CLOSING]
        token = choose.choice(closing if closing and choose.random() < 0.3 + step / STEPS else allowed)
        assert matcher.accept_token(token)
        text.append(token)
    return None


def _check(schema: Any, seed: int, *, blanks: bool) -> int:
    """Check some walks, and return how many of them ended."""
    try:
        rewritten = rewrite(schema)
    except SchemaError:
        return 0
    if rewritten is False:
        return 0
    grammar = _compile(rewritten, blanks)
    choose, ended = random.Random(seed), 0
    for _ in range(WALKS):
        if (text := _walk(grammar, choose)) is not None:
            wrong = faults(schema, text.decode(errors="replace"))
            assert not wrong, f"{schema} became {rewritten}, which accepts {text!r}: {wrong[0]}"
            ended += 1
    return ended


def test_texts_that_a_compiled_schema_accepts_are_valid_by_the_schema() -> None:
    ended = 0

    @settings(
        max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )  # fmt: skip
    @given(schema=SCHEMAS, seed=st.integers(0, 1 << 30), blanks=st.booleans())
    def run(schema: Any, seed: int, blanks: bool) -> None:
        nonlocal ended
        ended += _check(schema, seed, blanks=blanks)

    run()
    assert ended >= EXAMPLES, "walks through most schemas end"


@pytest.mark.parametrize("name", FORMATS)
def test_strings_that_a_format_accepts_have_that_format(name: str) -> None:
    assert sum(_check({"type": "string", "format": name}, seed, blanks=False) for seed in range(5)) > 5


@pytest.mark.parametrize(
    "schema",
    [
        {"pattern": "^[a-z]{0,200}$"},
        {"pattern": "^[a-z]+$", "maxLength": 10_000},
        {"pattern": "^(?:[a-z][0-9]){130,}$"},
        {"format": "uri", "minLength": 1, "maxLength": 2083},
        {"maxLength": 10_000},
    ],
    ids=str,
)
def test_many_repetitions_compile_where_grammars_are_remembered_as_in_vllm(schema: Any) -> None:
    _compiler(remembers=True).compile_json_schema(json.dumps(rewrite({"type": "string", **schema})))
