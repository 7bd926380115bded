"""The tokenizer of starter-speech: byte-level BPE in which every word of the language is one token.

Text ids come first, then the special tokens, then 1,501 timestamps, because faster-whisper treats every id below
<|endoftext|> as text. A vocabulary this small loads as an English-only Whisper, so a prompt is only
<|startoftranscript|>.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from starter_training.speech import language

NAMED = (
    "<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|translate|>", "<|transcribe|>", "<|startoflm|>",
    "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>",
)  # fmt: skip
TIMESTAMPS = tuple(f"<|{index * 0.02:.2f}|>" for index in range(1501))


@cache
def build() -> Tokenizer:
    """Train the tokenizer on the word list (deterministic, well under a second)."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    # faster-whisper suppresses the first id of " -", " '" and of the music signs. Without a merge for each of them that
    # would be the bare space token.
    extra = [" -", " '", *(f" {sign}" for sign in "♩♪♫♬♭♮♯")]
    trainer = trainers.BpeTrainer(
        vocab_size=4000,
        min_frequency=1,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[],
        show_progress=False,
    )
    tokenizer.train_from_iterator([f" {word}" for word in language.WORDS] * 5 + extra * 2, trainer)
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in NAMED + TIMESTAMPS])
    return tokenizer


@dataclass(frozen=True)
class Ids:
    """Ids for training. ``words`` maps each word of the language to its token (with its space)."""

    end: int
    start: int
    previous: int
    no_speech: int
    no_timestamps: int
    time_zero: int
    space: int
    size: int
    words: dict[str, int]


@cache
def ids() -> Ids:
    """Return the ids of the tokenizer. Raises ValueError if a word is not a single token."""
    tokenizer = build()
    words: dict[str, int] = {}
    for word in language.WORDS:
        encoded = tokenizer.encode(f" {word}", add_special_tokens=False).ids
        if len(encoded) != 1:
            raise ValueError(f"{word!r} takes {len(encoded)} tokens, expected one")
        words[word] = encoded[0]
    named: dict[str, int] = {name: tokenizer.token_to_id(name) for name in NAMED}  # type: ignore[misc]
    return Ids(
        end=named["<|endoftext|>"],
        start=named["<|startoftranscript|>"],
        previous=named["<|startofprev|>"],
        no_speech=named["<|nospeech|>"],
        no_timestamps=named["<|notimestamps|>"],
        time_zero=named["<|notimestamps|>"] + 1,
        space=tokenizer.encode(" ", add_special_tokens=False).ids[0],
        size=tokenizer.get_vocab_size(),
        words=words,
    )


@cache
def _texts() -> dict[int, str]:
    return {token: word for word, token in ids().words.items()}


def to_text(tokens: list[int]) -> str:
    """Return the words of a token list, without timestamps and special tokens."""
    return " ".join(_texts()[token] for token in tokens if token in _texts())
