"""A small binding to espeak-ng (the espeakng-loader wheel, or the system's libespeak-ng.so.1).

The library keeps global state, so there is one instance per process and it is not thread-safe.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SAMPLE_RATE = 16_000
"""Sample rate in Hz of ``synthesize``."""

_WORD, _PHONEME = 1, 7
_RETRIEVAL, _PHONEME_EVENTS = 1, 1
_RATE, _PITCH, _RANGE = 1, 3, 4


class EspeakError(RuntimeError):
    """espeak-ng is missing, or refused a voice or a text."""


class _Event(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", ctypes.c_char * 8),
    ]


_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event))


@dataclass(frozen=True)
class Speech:
    """Synthesised speech.

    Attributes:
        wave: float32 samples at 16 kHz.
        words: (character position in the text, start in seconds) of each word event. espeak-ng merges some short words,
            so a word may have none.
        phonemes: (mnemonic, start in seconds). Names that begin with '_' are pauses.
    """

    wave: NDArray[np.float32]
    words: list[tuple[int, float]]
    phonemes: list[tuple[str, float]]


def _locate() -> tuple[str, bytes | None]:
    """Return the paths of the library and of its data (None for the library's own default)."""
    spec = importlib.util.find_spec("espeakng_loader")
    if spec is not None and spec.origin is not None:
        root = Path(spec.origin).parent
        return str(root / "libespeak-ng.so"), str(root / "espeak-ng-data").encode()
    return "libespeak-ng.so.1", None


class _Engine:
    def __init__(self) -> None:
        path, data = _locate()
        try:
            self._lib = ctypes.CDLL(path)
        except OSError as error:
            raise EspeakError(
                "espeak-ng is not installed: install the package espeakng-loader (PyPI) or libespeak-ng1 (Debian)"
            ) from error
        self._rate: int = self._lib.espeak_Initialize(_RETRIEVAL, 500, data, _PHONEME_EVENTS)
        if self._rate <= 0:
            raise EspeakError(f"espeak-ng did not start with the data at {data!r}")
        self._chunks: list[NDArray[np.int16]] = []
        self._words: list[tuple[int, float]] = []
        self._phonemes: list[tuple[str, float]] = []
        self._voice = ""
        # The library keeps only the pointer, so the callback object must live as long as the engine.
        self._callback = _CALLBACK(self._receive)
        self._lib.espeak_SetSynthCallback(self._callback)

    def _receive(self, wave: ctypes._Pointer[ctypes.c_short], count: int, events: ctypes._Pointer[_Event]) -> int:
        if count > 0 and wave:
            self._chunks.append(np.ctypeslib.as_array(wave, (count,)).copy())
        index = 0
        while events[index].type != 0:
            event = events[index]
            if event.type == _WORD:
                self._words.append((event.text_position - 1, event.audio_position / 1000))
            elif event.type == _PHONEME:
                self._phonemes.append((event.id.decode("utf-8", "replace"), event.audio_position / 1000))
            index += 1
        return 0

    def say(self, text: str, voice: str, speed: int, pitch: int, pitch_range: int) -> Speech:
        if voice != self._voice:
            if self._lib.espeak_SetVoiceByName(voice.encode()) != 0:
                raise EspeakError(f"espeak-ng has no voice {voice!r}")
            self._voice = voice
        for parameter, value in ((_RATE, speed), (_PITCH, pitch), (_RANGE, pitch_range)):
            self._lib.espeak_SetParameter(parameter, value, 0)
        self._chunks, self._words, self._phonemes = [], [], []
        data = text.encode() + b"\0"
        status = self._lib.espeak_Synth(data, ctypes.c_size_t(len(data)), 0, 1, 0, 1, None, None)
        self._lib.espeak_Synchronize()
        if status != 0 or not self._chunks:
            raise EspeakError(f"espeak-ng said nothing for {text!r} (status {status})")
        return Speech(_to_16k(np.concatenate(self._chunks), self._rate), self._words, self._phonemes)


def _to_16k(wave: NDArray[np.int16], rate: int) -> NDArray[np.float32]:
    from scipy.signal import resample_poly

    divisor = int(np.gcd(SAMPLE_RATE, rate))
    resampled = resample_poly(wave.astype(np.float32) / 32768, SAMPLE_RATE // divisor, rate // divisor)
    return np.asarray(resampled, dtype=np.float32)


@functools.cache
def _engine() -> _Engine:
    return _Engine()


def synthesize(text: str, voice: str, speed: int = 160, pitch: int = 50, pitch_range: int = 50) -> Speech:
    """Synthesise ``text``.

    voice: ``language+variant``, for example ``en-us+f2``. speed in words a minute (80 to 450); pitch and
    pitch_range 0 to 99. Raises EspeakError if the library is missing or refuses.
    """
    return _engine().say(text, voice, speed, pitch, pitch_range)
