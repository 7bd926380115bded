"""Mixes a plan's audio on the accelerator and computes the same features as faster-whisper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from starter_training.speech.synthesis.corpus import HOP

if TYPE_CHECKING:
    from starter_training.speech.plans import Plan

BINS, MELS, FFT, STEP = 201, 80, 400, 160


def mel_filters() -> NDArray[np.float32]:
    """Return Whisper's Slaney mel filters [80, 201] for 16 kHz and a 400-point transform."""
    break_mel, step_log = 15.0, np.log(6.4) / 27.0
    mels = np.linspace(0.0, 45.245640471924965, MELS + 2)
    hertz = np.where(mels < break_mel, mels * 200 / 3, 1000.0 * np.exp(step_log * (mels - break_mel)))
    bins = np.fft.rfftfreq(FFT, 1 / 16000)
    rise = (bins[None] - hertz[:-2, None]) / (hertz[1:-1] - hertz[:-2])[:, None]
    fall = (hertz[2:, None] - bins[None]) / (hertz[2:] - hertz[1:-1])[:, None]
    area = (2.0 / (hertz[2:] - hertz[:-2]))[:, None]
    return np.asarray(np.maximum(0, np.minimum(rise, fall)) * area, dtype=np.float32)


class Features:
    """Log-mel features equal to those of faster-whisper's FeatureExtractor."""

    def __init__(self, device: torch.device) -> None:
        self._filters = torch.from_numpy(mel_filters()).to(device)
        self._window = torch.hann_window(FFT, device=device)

    def spectrum(self, wave: Tensor) -> Tensor:
        """Return the complex spectrum [B, 201, frames] of float32 samples [B, frames * 160]."""
        padded = functional.pad(wave, (0, STEP))
        full = torch.stft(padded, FFT, STEP, window=self._window, center=True, pad_mode="reflect", return_complex=True)
        return full[..., : wave.shape[1] // STEP]

    def log_mel(self, spectrum: Tensor, end: Tensor, lift: Tensor | float = 0.0) -> Tensor:
        """Return features [B, 80, frames], zero from frame ``end`` [B] on. ``lift`` raises the floor (in log10)."""
        power = spectrum.real.square() + spectrum.imag.square()
        log = torch.log10(torch.clamp(self._filters @ power, min=1e-10))
        inside = torch.arange(log.shape[2], device=log.device) < end[:, None]
        peak = log.masked_fill(~inside[:, None], -10.0).amax((1, 2), keepdim=True)
        return ((torch.maximum(log, peak - 8.0 + lift) + 4.0) / 4.0) * inside[:, None]


@dataclass(frozen=True)
class Batch:
    """Input of the training: features [B, 80, frames], phonemes [B, frames / 2] and the plan's tensors."""

    features: Tensor
    phonemes: Tensor
    ids: Tensor
    labels: Tensor
    first: Tensor
    last: Tensor
    offset: Tensor


class Mixer:
    """Holds the flat audio on the device and mixes windows with noise, tones and random filters."""

    def __init__(self, device: torch.device, hours: float, seed: int) -> None:
        size = int(hours * 3600 * 16000) // HOP * HOP
        self._audio = torch.zeros(size, dtype=torch.int16, device=device)
        self._phonemes = torch.zeros(size // HOP, dtype=torch.uint8, device=device)
        self._device, self._features = device, Features(device)
        self._random = torch.Generator(device=device)
        self._random.manual_seed(seed)
        self.used = 0

    def add(self, wave: NDArray[np.int16], phonemes: NDArray[np.uint8]) -> int | None:
        """Append a shard; returns the sample at which it begins, or None if there is no room."""
        begin = self.used
        if begin + len(wave) > len(self._audio):
            return None
        self._audio[begin : begin + len(wave)] = torch.from_numpy(wave).to(self._device)
        self._phonemes[begin // HOP : (begin + len(wave)) // HOP] = torch.from_numpy(phonemes).to(self._device)
        self.used = begin + len(wave)
        return begin

    def _rand(self, *shape: int) -> Tensor:
        return torch.rand(shape, device=self._device, generator=self._random)

    def _randn(self, *shape: int) -> Tensor:
        return torch.randn(shape, device=self._device, generator=self._random)

    def _curve(self, rows: int, knots: int, size: int, spread: float) -> Tensor:
        """Return smooth random curves [rows, size] with the given spread at the knots."""
        knot = self._randn(rows, 1, knots) * spread
        return functional.interpolate(knot, size=size, mode="linear", align_corners=True)[:, 0]

    def _tensor(self, array: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(array).to(self._device, non_blocking=True)

    def _gather(self, plan: Plan, places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return source position (float64), amplitude and presence at window samples ``places`` [N] for all rows."""
        start, source = self._tensor(plan.start), self._tensor(plan.source)
        length, rate, gain = self._tensor(plan.length), self._tensor(plan.rate), self._tensor(plan.gain)
        grid = places.expand(start.shape[0], -1).contiguous()
        slot = (torch.searchsorted(start, grid, right=True) - 1).clamp_min_(0)
        local = (grid - start.gather(1, slot)) * rate.gather(1, slot).double()
        present = (local >= 0) & (local < length.gather(1, slot) - 1)
        position = (source.gather(1, slot) + local).clamp_(0, max(0, self.used - 2))
        return position, gain.gather(1, slot) * present, present

    def waves(self, plan: Plan) -> Tensor:
        """Return the clean speech of a plan, float32 [B, frames * 160]."""
        position, amplitude, _ = self._gather(plan, torch.arange(plan.frames * STEP, device=self._device))
        whole = position.long()
        part = (position - whole).float()
        return torch.lerp(self._audio[whole].float(), self._audio[whole + 1].float(), part) * amplitude / 32768

    def _tones(self, rows: int, samples: int) -> Tensor:
        """Return beeps, hums and sweeps [rows, samples] with amplitudes up to one."""
        seconds = torch.arange(samples, device=self._device) / 16000
        total = torch.zeros(rows, samples, device=self._device)
        for _ in range(2):
            pitch = 40 * 100 ** self._rand(rows, 1)
            sweep = self._randn(rows, 1) * 30 * (self._rand(rows, 1) < 0.4)
            wave = torch.sin(2 * torch.pi * (pitch + sweep * seconds) * seconds)
            beep = torch.sin(2 * torch.pi * (0.3 + 4 * self._rand(rows, 1)) * seconds) > self._randn(rows, 1)
            total += wave * torch.where(self._rand(rows, 1) < 0.5, beep.float(), 1.0) * self._rand(rows, 1) * 0.5
        return total

    @torch.no_grad()
    def batch(self, plan: Plan, *, clean: bool = False) -> Batch:
        """Mix a plan. ``clean`` leaves out noise, filters and masks."""
        wave = self.waves(plan)
        rows, samples, frames = wave.shape[0], wave.shape[1], plan.frames
        end, speech = self._tensor(plan.end), self._tensor(plan.speech)
        lift: Tensor | float = 0.0
        if not clean:
            chosen = (self._rand(rows) < torch.where(speech, 0.04, 0.45)).float()[:, None]
            loud = 10 ** (-0.3 - 2.5 * self._rand(rows, 1)) * torch.where(speech, 0.1, 1.0)[:, None]
            wave = wave + chosen * loud * self._tones(rows, samples)
        spectrum = self._features.spectrum(wave)
        if not clean:
            colour = self._curve(rows, 6, BINS, 0.25) * (self._rand(rows, 1) < 0.6)
            level = wave.square().mean(1, keepdim=True).sqrt().clamp_min(1e-3)
            quiet = torch.where(speech, -0.1 - 2.2 * self._rand(rows), 1.7 - 3.5 * self._rand(rows))[:, None]
            noisy = (self._rand(rows, 1) < 0.65).float() * level * 10**quiet
            tint = 10 ** (
                self._curve(rows, 5, BINS, 0.45)
                - 0.9 * self._rand(rows, 1) * torch.linspace(0, 1, BINS, device=self._device)
            )
            swell = 10 ** (self._curve(rows, 24, frames, 0.4) * (self._rand(rows, 1) < 0.4))
            noise = self._features.spectrum(self._randn(rows, samples))
            spectrum = spectrum * (10**colour)[:, :, None] + noise * (noisy * tint)[:, :, None] * swell[:, None]
            lift = (self._rand(rows, 1, 1) - 0.5).clamp_min(0) * 2
        features = self._features.log_mel(spectrum, end, lift)
        if not clean:
            features = self._mask(features, end)
        centres = torch.arange(frames // 2, device=self._device) * HOP + HOP // 2
        position, _, present = self._gather(plan, centres)
        phonemes = self._phonemes[(position / HOP).long()].long() * present
        names = (plan.ids, plan.labels, plan.first, plan.last, plan.offset)
        return Batch(features, phonemes, *(self._tensor(array) for array in names))

    def _mask(self, features: Tensor, end: Tensor) -> Tensor:
        """Hide a few bands and one short stretch in 40 % of the rows (SpecAugment)."""
        rows = features.shape[0]
        band = torch.arange(MELS, device=self._device)
        time = torch.arange(features.shape[2], device=self._device)
        low, wide = self._rand(rows, 2, 1) * MELS, self._rand(rows, 2, 1) * 9
        hidden = ((band >= low) & (band < low + wide)).any(1)[:, :, None]
        begin, long = self._rand(rows, 1) * end[:, None], self._rand(rows, 1) * 9
        hidden = hidden | ((time >= begin) & (time < begin + long))[:, None]
        hidden = hidden & (self._rand(rows, 1, 1) < 0.4)
        return features.masked_fill(hidden, 0.0)
