"""Tiny Whispers with random weights, converted like real ones, and generated recordings."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

RATE = 16_000
SPECIAL = ("<|endoftext|>", "<|startoftranscript|>")
MARKS = ("<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>")
FIRST_SPECIAL = 50257
"""The first special token of multilingual Whispers. CTranslate2 recognizes them by the empty token before it."""
Samples = npt.NDArray[np.float32]


def build(folder: Path, *, multilingual: bool, width: int = 32) -> Path:
    """Write a converted Whisper of two layers that says random bytes. `width` 2048: 800 MB of weights."""
    import torch
    from ctranslate2.converters import TransformersConverter
    from faster_whisper.tokenizer import _LANGUAGE_CODES
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, WhisperConfig, WhisperFeatureExtractor
    from transformers import WhisperForConditionalGeneration as Whisper

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    languages = [f"<|{code}|>" for code in _LANGUAGE_CODES if code != "yue"] if multilingual else []
    specials = [*SPECIAL, *languages, *MARKS]
    fillers = []
    if multilingual:
        fillers = [f"w{number}" for number in range(FIRST_SPECIAL - len(alphabet))]
    inner = Tokenizer(models.BPE(vocab={token: place for place, token in enumerate([*alphabet, *fillers])}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(token, special=True) for token in specials])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=SPECIAL[0], bos_token=SPECIAL[0])
    size = inner.get_vocab_size() + 1501
    identity = {token: inner.token_to_id(token) for token in specials}
    torch.manual_seed(1)
    config = WhisperConfig(
        vocab_size=size, d_model=width, encoder_layers=1, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64, num_mel_bins=80, max_target_positions=448,
        pad_token_id=identity["<|startoflm|>"], bos_token_id=identity[SPECIAL[0]], eos_token_id=identity[SPECIAL[0]],
        decoder_start_token_id=identity[SPECIAL[1]], suppress_tokens=[], begin_suppress_tokens=[], init_std=0.4,
    )  # fmt: skip
    model: Any = Whisper(config)
    with torch.no_grad():  # prefer the end of the text, so that it comes after some tokens
        model.model.decoder.layer_norm.bias += 1.3 * model.model.decoder.embed_tokens.weight[identity[SPECIAL[0]]]
    generation = model.generation_config
    generation.no_timestamps_token_id = identity["<|notimestamps|>"]
    generation.alignment_heads = [[1, 0], [1, 1]]
    generation.suppress_tokens, generation.begin_suppress_tokens = [], []
    source = folder.with_name(folder.name + "-source")
    model.save_pretrained(source)
    tokenizer.save_pretrained(source)
    WhisperFeatureExtractor(feature_size=80).save_pretrained(source)
    TransformersConverter(str(source), copy_files=["tokenizer.json", "preprocessor_config.json"]).convert(str(folder))
    settings = json.loads((folder / "config.json").read_text())
    settings["lang_ids"] = [identity[token] for token in languages]  # the converter only finds them for known models
    (folder / "config.json").write_text(json.dumps(settings))
    if multilingual:
        tokens = json.loads((folder / "vocabulary.json").read_text())
        tokens[FIRST_SPECIAL - 1] = ""
        (folder / "vocabulary.json").write_text(json.dumps(tokens))
    return folder


def silence(seconds: float) -> Samples:
    return np.zeros(int(seconds * RATE), dtype=np.float32)


def tone(seconds: float) -> Samples:
    time = np.arange(int(seconds * RATE)) / RATE
    return (0.3 * np.sin(2 * np.pi * 440.0 * time)).astype(np.float32)


def noise(seconds: float) -> Samples:
    return (0.1 * np.random.default_rng(0).standard_normal(int(seconds * RATE))).astype(np.float32)


def voice(seconds: float) -> Samples:
    """Return a buzz through moving formants, in syllables, which voice detection takes for speech."""
    from scipy.signal import lfilter

    count = int(seconds * RATE)
    time = np.arange(count) / RATE
    pitch = 120 + 25 * np.sin(2 * np.pi * 0.7 * time)
    phase = np.cumsum(pitch) / RATE
    buzz = np.where(np.diff(np.floor(phase), prepend=0) > 0, 1.0, 0.0)
    rng = np.random.default_rng(3)
    step = RATE // 6
    sound = np.zeros(count)
    state: dict[int, Any] = {}
    for start in range(0, count, step):
        part = buzz[start : start + step] + 0.005 * rng.standard_normal(len(buzz[start : start + step]))
        vowel = ((730, 1090, 2440), (270, 2290, 3010), (300, 870, 2240), (530, 1840, 2480))[rng.integers(4)]
        for place, hertz in enumerate(vowel):
            radius = np.exp(-np.pi * 90 / RATE)
            poles = [1, -2 * radius * np.cos(2 * np.pi * hertz / RATE), radius**2]
            part, state[place] = lfilter([1 - radius], poles, part, zi=state.get(place, np.zeros(2)))
        fade = np.sin(np.linspace(0, np.pi, len(part))) ** 0.5
        sound[start : start + step] = part * fade
    return (0.3 * sound / np.abs(sound).max()).astype(np.float32)


FORMATS: dict[str, tuple[str, str | None, int]] = {
    "wav": ("pcm_s16le", None, RATE),
    "mp3": ("libmp3lame", None, RATE),
    "flac": ("flac", None, RATE),
    "ogg": ("libopus", "ogg", 48_000),
    "m4a": ("aac", "ipod", RATE),
    "webm": ("libopus", None, 48_000),
}
"""File extension to codec, container and sample rate."""


def write(path: Path, samples: Samples) -> Path:
    """Encode samples by the extension of `path`."""
    import av

    codec, container, rate = FORMATS[path.suffix[1:]]
    with av.open(str(path), "w", format=container) as file:
        stream: Any = file.add_stream(codec, rate=rate)
        stream.layout = "mono"
        size = stream.codec_context.frame_size or None
        to_stream: Callable[..., Any] = av.AudioResampler(
            format=stream.codec_context.format or "fltp", layout="mono", rate=rate, frame_size=size
        ).resample
        frame = av.AudioFrame.from_ndarray((samples * 32767).astype(np.int16)[None, :], format="s16", layout="mono")
        frame.sample_rate = RATE
        for part in [*to_stream(frame), *to_stream(None)]:
            for packet in stream.encode(part):
                file.mux(packet)
        for packet in stream.encode(None):
            file.mux(packet)
    return path
