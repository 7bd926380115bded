"""A SentenceTransformer called below `encode`, on token ids."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from models.text.bert import Bert, of_embedder
from models.text.loading import first_position
from models.text.tokens import Ids, Tokens

Row = npt.NDArray[np.float32]


def tensors(inputs: Sequence[Ids], tokens: Tokens, device: str) -> dict[str, Any]:
    """Padded features, len(inputs) x longest: ids, mask, types where wanted."""
    import torch

    longest = max(len(given.ids) for given in inputs)
    shape = (len(inputs), longest)
    ids = np.full(shape, tokens.pad_id, dtype=np.int64)
    mask = np.zeros(shape, dtype=np.int64)
    types = np.full(shape, tokens.pad_type_id, dtype=np.int64)
    for row, given in enumerate(inputs):
        size = len(given.ids)
        columns = slice(longest - size, longest) if tokens.pad_left else slice(0, size)
        ids[row, columns] = given.ids
        mask[row, columns] = 1
        types[row, columns] = given.types if given.types is not None else 0
    features = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}
    if tokens.wants_types:
        features["token_type_ids"] = torch.from_numpy(types)
    if device != "cpu":
        return {name: value.to(device, non_blocking=True) for name, value in features.items()}
    return features


def joined(inputs: Sequence[Ids], transformer: Any, first_position: int, device: str) -> dict[str, Any]:
    """Features of inputs one behind another, 1 x all tokens, as the library makes them for FlashAttention."""
    features = dict(transformer.data_collator([{"input_ids": given.ids} for given in inputs], return_tensors="pt"))
    features.pop("labels", None)
    features["position_ids"] = features["position_ids"] + first_position
    return {
        name: value.to(device, non_blocking=True) if hasattr(value, "to") else value for name, value in features.items()
    }


class Embedder:
    """`model`: a SentenceTransformer. `skips_prompt`: pooling leaves prompts out.

    `packs`: run without padding if the model is one that `models.text.bert` knows. `unpadded`: the same by the
    library's FlashAttention, if it is loaded with that. `packed` tells whether either does.
    """

    def __init__(self, model: Any, tokens: Tokens, device: str, packs: bool = False, *, unpadded: bool = False) -> None:
        self.model, self.tokens, self.device = model, tokens, device
        self.bert: Bert | None = of_embedder(model, device) if packs else None
        self.joins = unpadded and self.bert is None and bool(getattr(model[0], "can_flatten_inputs", False))
        self._first_position = first_position(model[0].model) if self.joins else 0
        self.skips_prompt = any(getattr(module, "include_prompt", True) is False for module in model)

    @property
    def packed(self) -> bool:
        return self.bert is not None or self.joins

    def run(self, inputs: Sequence[Ids]) -> list[Row]:
        """One vector per input. Prompts of different lengths run apart if pooled out."""
        if not self.skips_prompt:
            return self._run(inputs, 0)
        rows: dict[int, Row] = {}
        order = sorted(range(len(inputs)), key=lambda index: inputs[index].prompt)
        for prompt, same in groupby(order, key=lambda index: inputs[index].prompt):
            indices = list(same)
            rows.update(zip(indices, self._run([inputs[index] for index in indices], prompt), strict=True))
        return [rows[index] for index in range(len(inputs))]

    def _run(self, inputs: Sequence[Ids], prompt: int) -> list[Row]:
        import torch

        with torch.inference_mode():
            if self.bert is not None:
                features = self.bert.features(inputs)
            elif self.joins:
                features = joined(inputs, self.model[0], self._first_position, self.device)
            else:
                features = tensors(inputs, self.tokens, self.device)
            if prompt:
                features["prompt_length"] = prompt
            if self.bert is None:
                features = self.model(features)
            else:
                for module in list(self.model)[1:]:
                    features = module(features)
            return list(features["sentence_embedding"][:, : self.model.truncate_dim].float().cpu().numpy())


def finish(rows: Sequence[Row], dimensions: int | None, normalize: bool) -> npt.NDArray[np.float32]:
    """len(rows) x dimensions little-endian: cut, and of length 1 if wanted."""
    matrix = np.stack(rows).astype("<f4", copy=False)
    if dimensions is not None and dimensions < matrix.shape[1]:
        matrix = matrix[:, :dimensions]
    if normalize:
        length = np.linalg.norm(matrix, axis=1, keepdims=True)
        matrix = matrix / np.maximum(length, 1e-12)
    return np.ascontiguousarray(matrix, dtype="<f4")
