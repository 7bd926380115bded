"""A Whisper in the size of large-v3-turbo, with random weights that transcribe every window as the same words.

The size determines the cost of a step, and the words the number of steps. Fully random weights would never end a window
and be decoded again at other temperatures. Therefore the position determines the next token: its encoding contains that
token's embedding, scaled far above everything that the layers add. The tokenizer is the starter's, filled up with
additional tokens.
"""

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.report.environment import ROOT

STARTER = ROOT / "models" / "starter" / "pack" / "starter-speech"
WORDS = 60
"""Tokens of a window: about as many as in thirty seconds of unhurried speech."""
LOUD = 8.0
"""Weight of the next token's embedding in a position, relative to the last token's."""
POOL = 4_194_301
"""A prime, so that no two rows of a matrix use the same part of the pool."""

Array = npt.NDArray[np.float16]


@dataclass(frozen=True, slots=True)
class WhisperShape:
    """Sizes of an English-only Whisper, which saves both sides the step that detects the language."""

    hidden: int
    heads: int
    ffn: int
    encoder_layers: int
    decoder_layers: int
    vocabulary: int
    bins: int


TURBO = WhisperShape(1280, 20, 5120, encoder_layers=32, decoder_layers=4, vocabulary=51_864, bins=128)
TINY = WhisperShape(64, 2, 128, encoder_layers=2, decoder_layers=2, vocabulary=2_400, bins=80)
FRAMES, POSITIONS = 1500, 448


class _Pool:
    """Random values, handed out as matrices of any size."""

    def __init__(self) -> None:
        values = np.random.default_rng(0).standard_normal(POOL, np.float32)
        self._values, self._begin = (values * np.float32(0.02)).astype(np.float16), 0

    def take(self, *sides: int) -> Array:
        matrix = np.resize(np.roll(self._values, -self._begin), sides)
        self._begin = (self._begin + matrix.size) % POOL
        return matrix


def write_whisper(folder: Path, shape: WhisperShape) -> Path:
    """Write a model folder for CTranslate2 and faster-whisper, once."""
    if (folder / "config.json").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    tokens = _write_tokenizer(folder, shape.vocabulary)
    processor: dict[str, Any] = json.loads((STARTER / "preprocessor_config.json").read_text())
    (folder / "preprocessor_config.json").write_text(json.dumps(processor | {"feature_size": shape.bins}))
    spec = _spec(shape, tokens)
    spec.register_vocabulary(tokens)
    spec.config.suppress_ids_begin = [tokens.index("<|endoftext|>")]
    spec.validate()
    spec.save(str(folder))
    return folder


def spoken(tokens: list[str]) -> list[int]:
    """Return the tokens of every window: different words that begin with a space."""
    end = tokens.index("<|endoftext|>")
    return [i for i, token in enumerate(tokens[:end]) if re.fullmatch("Ġ[a-z]+", token)][:WORDS]


def _write_tokenizer(folder: Path, count: int) -> list[str]:
    """Write `tokenizer.json`; returns the network's tokens in their order."""
    shutil.copy(STARTER / "tokenizer.json", folder)
    tokenizer: dict[str, Any] = json.loads((STARTER / "tokenizer.json").read_text())
    tokens: list[str] = json.loads((STARTER / "vocabulary.json").read_text())
    added = [{**tokenizer["added_tokens"][0], "id": i, "content": f"<|more{i}|>"} for i in range(len(tokens), count)]
    tokenizer["added_tokens"] += added
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return [*tokens, *(str(token["content"]) for token in added)]


def _spec(shape: WhisperShape, tokens: list[str]) -> Any:
    from ctranslate2.specs.whisper_spec import WhisperSpec

    pool, hidden = _Pool(), shape.hidden
    spec = WhisperSpec(shape.encoder_layers, shape.heads, shape.decoder_layers, shape.heads)
    encoder, decoder = spec.encoder, spec.decoder
    for conv, channels in ((encoder.conv1, shape.bins), (encoder.conv2, hidden)):
        conv.weight, conv.bias = pool.take(hidden, channels, 3), np.zeros(hidden, np.float16)
    encoder.position_encodings.encodings = pool.take(FRAMES, hidden)
    for layer in encoder.layer:
        _fill_attention(layer.self_attention, pool, hidden)
        _fill_network(layer.ffn, pool, shape)
    for layer in decoder.layer:
        _fill_attention(layer.self_attention, pool, hidden)
        _fill_attention(layer.attention, pool, hidden)
        _fill_network(layer.ffn, pool, shape)
    for norm in (encoder.layer_norm, decoder.layer_norm):
        _fill_norm(norm, hidden)
    # independent of the size, a token's score in its own position is about 25
    embeddings = pool.take(shape.vocabulary, hidden) * np.float16(TURBO.hidden / hidden)
    decoder.embeddings.weight = decoder.projection.weight = embeddings
    following = [tokens.index("<|0.00|>"), *spoken(tokens)]
    following += [tokens.index("<|endoftext|>")] * (POSITIONS - len(following))
    decoder.position_encodings.encodings = (embeddings[following] * np.float16(LOUD)).astype(np.float16)
    return spec


def _fill_norm(norm: Any, hidden: int) -> None:
    norm.gamma, norm.beta = np.ones(hidden, np.float16), np.zeros(hidden, np.float16)


def _fill_linear(linear: Any, weight: Array) -> None:
    linear.weight, linear.bias = weight, np.zeros(len(weight), np.float16)


def _fill_attention(attention: Any, pool: _Pool, hidden: int) -> None:
    """Fill queries, keys and values, in one matrix or two, and the output."""
    _fill_norm(attention.layer_norm, hidden)
    *inputs, output = attention.linear
    parts = (3,) if len(inputs) == 1 else (1, 2)
    for linear, part in zip(inputs, parts, strict=True):
        _fill_linear(linear, pool.take(part * hidden, hidden))
    _fill_linear(output, pool.take(hidden, hidden) * np.float16(0.05))


def _fill_network(network: Any, pool: _Pool, shape: WhisperShape) -> None:
    _fill_norm(network.layer_norm, shape.hidden)
    _fill_linear(network.linear_0, pool.take(shape.ffn, shape.hidden))
    _fill_linear(network.linear_1, pool.take(shape.hidden, shape.ffn) * np.float16(0.05))
