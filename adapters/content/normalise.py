"""The stored form of adapters: scale folded into B, bfloat16, fixed names, order, metadata.

Exactness. The scale s is multiplied in float32, and the product is rounded once to bfloat16 (nearest, ties to even).
If the inputs are bfloat16 and s is a power of two (alpha = r, 2r, ...; rsLoRA with r = 4, 16, 64), nothing is lost.
Otherwise each element of B, and of A if it had more digits, changes by at most 2^-8 of itself: the error of storing it
in bfloat16, which an engine in bfloat16 makes anyway.

The digest is SHA-256 over the canonical config and tensors. The config names the base, so the same tensors on two
bases are two adapters, which neither caches nor places can mix up. It also contains the adapter's own chat template, if
any. The digest depends on nothing else: not on the file's order, dtype (if values are equal), spelling of names,
metadata or machine.
"""

import json
import os
import re
import struct
from collections.abc import Iterable, Iterator
from math import log2
from pathlib import Path

import numpy as np

from adapters.content.base_shapes import layer_of
from adapters.content.digest import digest_of
from adapters.content.forms import CONFIG, TENSORS
from adapters.content.names import canonical_order
from adapters.content.tensor_file import BadFile, TensorInfo, finite_bfloat16, read_bits, to_bfloat16, to_float32
from adapters.content.tokenizer import TEMPLATE
from adapters.content.validate import Examination, Pair
from adapters.types import Base, CheckedAdapter
from registry.storage.files import sync_folder


def normalise(examination: Examination, base: Base, out: Path | None) -> CheckedAdapter:
    """Write the canonical files into the empty folder `out`, or with None only compute the digest.

    `examination` must have no faults. Raises BadFile if the source changed since the check, OSError if `out` cannot be
    written.
    """
    pairs = sorted(examination.pairs, key=lambda pair: canonical_order(pair.module))
    rank = max(pair.rank for pair in pairs)
    config, header = _config(pairs, rank, base.id, examination), _header(pairs)
    size = len(header) + sum(2 * _count(t) for pair in pairs for t in (pair.a, pair.b))

    def parts() -> Iterator[bytes]:
        yield header
        for pair in pairs:
            yield _bits(examination.fd, pair.a, 1.0)
            yield _bits(examination.fd, pair.b, pair.scale)

    notes = [*examination.notes, *_rounding(pairs)]
    if out is None:
        return CheckedAdapter(digest_of(config, parts()), rank, size, tuple(notes))
    for _ in _write(out / CONFIG, iter([config])):
        pass
    digest = digest_of(config, _write(out / TENSORS, parts()))
    sync_folder(out)
    return CheckedAdapter(digest, rank, size, tuple(notes))


def _write(path: Path, parts: Iterator[bytes]) -> Iterator[bytes]:
    """Write a file durably, and yield what was written."""
    with open(path, "xb") as file:
        for part in parts:
            file.write(part)
            yield part
        file.flush()
        os.fsync(file.fileno())


def _config(pairs: list[Pair], rank: int, base: str, examination: Examination) -> bytes:
    lower = {name: own for own, name in _by_rank(pair for pair in pairs if pair.rank != rank)}
    config = {
        "alpha_pattern": lower, "base_model_name_or_path": base, "bias": "none", "lora_alpha": rank,
        "peft_type": "LORA", "r": rank, "rank_pattern": lower, "target_modules": _targets(pairs, examination.layers),
        "task_type": "CAUSAL_LM", "use_dora": False, "use_rslora": False,
    }  # fmt: skip
    own = {TEMPLATE: examination.template} if examination.template else {}
    return json.dumps(config | own, sort_keys=True, indent=1).encode() + b"\n"


def _by_rank(pairs: Iterable[Pair]) -> Iterator[tuple[int, str]]:
    """Yield one pattern per rank for all its modules.

    When vLLM loads an adapter it tries each pattern on each module. One pattern for each of the 224 modules of an 8B
    model would take 0.2 s, during which the GIL delays a step.
    """
    ranks: dict[int, list[str]] = {}
    for pair in pairs:
        ranks.setdefault(pair.rank, []).append(re.escape(pair.module))
    for rank, names in sorted(ranks.items()):
        yield rank, "|".join(names)


def _targets(pairs: list[Pair], layers: int) -> list[str]:
    """Return short names if all layers of the base are adapted in the same way, else full names."""
    by_layer: dict[int | None, set[str]] = {}
    for pair in pairs:
        by_layer.setdefault(layer_of(pair.module), set()).add(pair.module.rpartition(".")[2])
    alike = {frozenset(names) for names in by_layer.values()}
    return sorted(next(iter(alike))) if len(alike) == 1 and len(by_layer) == layers else [p.module for p in pairs]


def _header(pairs: list[Pair]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    position = 0
    for pair in pairs:
        for half, tensor in (("A", pair.a), ("B", pair.b)):
            end = position + 2 * _count(tensor)
            entries[f"base_model.model.{pair.module}.lora_{half}.weight"] = {
                "dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [position, end],
            }  # fmt: skip
            position = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _bits(fd: int, tensor: TensorInfo, scale: float) -> bytes:
    bits = read_bits(fd, tensor)
    if scale != 1.0 or tensor.dtype != "BF16":
        bits = to_bfloat16(to_float32(bits) * np.float32(scale))
    if not finite_bfloat16(bits):  # a float32 above bfloat16's range, or a file that changed meanwhile
        raise BadFile(f"tensor {tensor.name} has values that bfloat16 cannot hold")
    return bits.tobytes()


def _count(tensor: TensorInfo) -> int:
    return tensor.shape[0] * tensor.shape[1]


def _rounding(pairs: list[Pair]) -> list[str]:
    wide = sorted({t.dtype for pair in pairs for t in (pair.a, pair.b)} - {"BF16"})
    notes = [f"Tensors stored as {' and '.join(wide)} were rounded to bfloat16."] if wide else []
    if any(pair.scale != 2.0 ** round(log2(pair.scale)) for pair in pairs):
        notes.append("The scale is not a power of two: folding it in rounds B by up to 0.4 %.")
    return notes
