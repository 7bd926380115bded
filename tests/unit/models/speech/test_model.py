"""A speech model without its network: tokens before a window, windows of one pass, and the compute type."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from models.speech.model import SpeechModel, WindowRequest, WindowResult, compute_type, times_words
from registry.errors import BadRequest

PREVIOUS = 1000
ROOM = 448 // 2 - 1


def before(prompt: int, hotwords: int) -> tuple[int, int]:
    """Return the counts of the prompt's tokens and the hotwords' before a window. They are encoded as 1 and 2."""
    model: Any = SimpleNamespace(
        whisper=SimpleNamespace(max_length=448),
        _tokenizer=SimpleNamespace(sot_prev=PREVIOUS),
        _text_tokens=lambda text: [int(word) for word in text.split()],
    )
    first, *found = SpeechModel.previous(model, "1 " * prompt, "2 " * hotwords) or (PREVIOUS,)
    assert first == PREVIOUS
    assert found == sorted(found, reverse=True), "hotwords come first"
    return found.count(1), found.count(2)


@pytest.mark.parametrize(
    ("prompt", "hotwords", "expected_tokens"),
    [
        (0, 0, (0, 0)),
        (3, 2, (3, 2)),
        (ROOM, 5, (ROOM - 5, 5)),
        (1000, 5, (ROOM - 5, 5)),
        (1000, 1000, (ROOM - ROOM // 2, ROOM // 2)),
        (0, 1000, (0, ROOM)),
        (20, 1000, (20, ROOM - 20)),
        (1000, 0, (ROOM, 0)),
    ],
)
def test_a_long_prompt_leaves_room_for_hotwords(prompt: int, hotwords: int, expected_tokens: tuple[int, int]) -> None:
    assert before(prompt, hotwords) == expected_tokens


def test_a_long_prompt_is_cut_to_its_end() -> None:
    model: Any = SimpleNamespace(
        whisper=SimpleNamespace(max_length=8),
        _tokenizer=SimpleNamespace(sot_prev=PREVIOUS),
        _text_tokens=lambda text: [int(word) for word in text.split()],
    )
    assert SpeechModel.previous(model, "1 2 3 4 5", None) == (PREVIOUS, 3, 4, 5)


def test_special_tokens_in_a_clients_text_are_left_out() -> None:
    """A second <|startoftranscript|> in a prompt failed the step of every recording in it."""
    model: Any = SimpleNamespace(_end=900, _tokenizer=SimpleNamespace(encode=lambda _: [1, 900, 2, 901, 5000]))
    assert SpeechModel._text_tokens(model, "a <|endoftext|> b <|startoftranscript|> zanzibar") == [1, 2]


@pytest.mark.parametrize(
    ("heads", "fit"), [([[1, 0], [1, 5]], True), ([[1, 0], [7, 0]], False), ([], False), (None, False)]
)
def test_words_have_times_only_if_the_heads_fit_the_decoder(heads: Any, fit: bool) -> None:
    """A distilled model with the heads of its larger teacher crashed the process."""
    assert times_words(heads, 2) is fit


@pytest.mark.parametrize(
    ("requested", "param"),
    [
        ({"language": "de", "words": True}, "timestamp_granularities"),
        ({"language": None, "words": False}, "language"),
    ],
)
def test_options_that_a_model_lacks_are_refused(requested: dict[str, Any], param: str) -> None:
    model: Any = SimpleNamespace(_times_words=False, _tells_language=False, multilingual=True, _id=lambda _: 1)
    with pytest.raises(BadRequest) as refused:
        SpeechModel.check(model, task="transcribe", **requested)
    assert refused.value.param == param


@pytest.mark.parametrize(("words", "passes"), [(False, 1), (True, 2)])
def test_words_of_one_task_are_not_aligned_by_another(words: bool, passes: int) -> None:
    received: list[set[str]] = []

    def hear(_whisper: Any, windows: list[WindowRequest]) -> list[WindowResult]:
        received.append({window.task for window in windows})
        return [WindowResult([], "de", 1.0, 0.0, 0.0, 0.0, 0.0) for _ in windows]

    model: Any = SimpleNamespace(_parallel=None, whisper=None, _hear=hear)
    features = np.zeros((1, 1), dtype=np.float32)
    tasks = ["translate", "transcribe", "translate", "transcribe"]
    found = SpeechModel.run(model, [WindowRequest(features, 1.0, task=task, words=words) for task in tasks])
    assert len(found) == len(tasks)
    assert len(received) == passes
    assert all(len(together) == 1 for together in received) or not words


@pytest.mark.parametrize(
    ("dtype", "kind", "stored", "word"),
    [
        ("auto", "cuda", {"F32"}, "float16"),
        ("auto", "cuda", {"F16"}, "float16"),
        ("auto", "cuda", {"I8", "F32"}, "int8_float16"),
        ("auto", "cuda", {"BF16"}, "default"),
        ("auto", "cpu", {"I8", "F32"}, "default"),
        ("float32", "cuda", {"F16"}, "float32"),
        ("int8", "cpu", {"F32"}, "int8"),
    ],
)
def test_a_gpu_computes_in_16_bits_unless_the_recipe_says_otherwise(
    dtype: str, kind: str, stored: set[str], word: str
) -> None:
    assert compute_type(dtype, kind, stored, {"float16", "int8_float16", "float32", "int8"}) == word
    if dtype == "auto":
        assert compute_type(dtype, kind, stored, {"float32"}) == "default", "old GPUs have no float16"


@pytest.mark.parametrize("temperature", [1e-300, 1e-40, 0.01, 0.5])
def test_no_temperature_overflows(temperature: float) -> None:
    """CTranslate2 divides by it in single precision: the model repeated '!' up to the longest text."""
    sent = dict[str, Any]()
    model: Any = SimpleNamespace(_beam=5, _best_of=5, _suppress=[], _extra={})
    network = SimpleNamespace(generate=lambda *_, **more: sent.update(more))
    SpeechModel._generate(model, SimpleNamespace(model=network, max_length=448), None, [[1]], temperature)
    assert sent["sampling_temperature"] == max(temperature, 0.01)
    assert np.isfinite(np.float32(1e4) / np.float32(sent["sampling_temperature"]))
