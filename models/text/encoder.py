"""Call a model of sentence-transformers on token ids, below `encode` and `predict`."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Generic

import numpy as np
import numpy.typing as npt

from models.batching.worker import R
from models.text.bert import Bert, of_embedder, pools_rows
from models.text.tokens import Ids, Tokens
from models.text.unpadded.network import UnpaddedNetwork, without_padding
from models.text.unpadded.packing import OWNERS, Packing

_log = logging.getLogger("roundhouse.text")
Row = npt.NDArray[np.float32]


def tensors(inputs: Sequence[Ids], tokens: Tokens, device: str) -> dict[str, Any]:
    """Return padded features, len(inputs) x longest: ids, mask, and types if used."""
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


class Encoder(Generic[R]):
    """A model that turns token ids into one result for each input: a vector or a score.

    Args:
        model: a SentenceTransformer or CrossEncoder.
        bert: runs it without padding, if `models.text.bert` supports it and the recipe lets it.
    """

    def __init__(self, model: Any, tokens: Tokens, device: str, bert: Bert | None) -> None:
        self.model, self.tokens, self.device, self.bert = model, tokens, device, bert
        self.unpadded: UnpaddedNetwork | None = None
        """Runs other networks without padding, on a GPU and after a successful `leave_padding`."""

    @property
    def packed(self) -> bool:
        """Whether steps have no padding."""
        return self.bert is not None or self.unpadded is not None

    def leave_padding(self, inputs: Sequence[Ids], is_same: Callable[[list[R], list[R]], bool]) -> None:
        """Run without padding from now on, if each input then gets the same result as alone.

        is_same: whether results (first) equal expected ones.
        """
        if unknown := self._unknown():
            _log.warning("this model runs with padding despite `unpadded`: %s", unknown)
            return
        expected = [result for given in inputs for result in self.run([given])]

        def is_right(unpadded: UnpaddedNetwork) -> bool:
            return is_same(self._compute_unpadded(unpadded, unpadded.pack(inputs)), expected)

        self.unpadded = without_padding(self.model[0].model, self.device, self.tokens.wants_types, is_right)

    def run(self, inputs: Sequence[Ids]) -> list[R]:
        return self.prepare(inputs)()

    def prepare(self, inputs: Sequence[Ids]) -> Callable[[], list[R]]:
        """Prepare a step on the host, and return a function that does the rest.

        Any thread may prepare, but only one at a time may call the function.
        """
        raise NotImplementedError

    def _unknown(self) -> str:
        """Return why the model surely cannot run without padding; '' if it may."""
        raise NotImplementedError

    def _compute_unpadded(self, unpadded: UnpaddedNetwork, packing: Packing) -> list[R]:
        raise NotImplementedError


class Embedder(Encoder[Row]):
    """A SentenceTransformer that turns token ids into vectors. `skips_prompt`: pooling omits prompts.

    Prompts of different lengths then run separately.
    """

    def __init__(self, model: Any, tokens: Tokens, device: str, packs: bool = False) -> None:
        super().__init__(model, tokens, device, of_embedder(model, device) if packs else None)
        self.skips_prompt = any(getattr(module, "include_prompt", True) is False for module in model)

    def _unknown(self) -> str:
        return "" if pools_rows(self.model) else "its modules are unknown"

    def prepare(self, inputs: Sequence[Ids]) -> Callable[[], list[Row]]:
        if not self.skips_prompt:
            return self._prepare(inputs, 0)
        order = sorted(range(len(inputs)), key=lambda index: inputs[index].prompt)
        parts: list[tuple[list[int], Callable[[], list[Row]]]] = []
        for prompt, same in groupby(order, key=lambda index: inputs[index].prompt):
            indices = list(same)
            parts.append((indices, self._prepare([inputs[index] for index in indices], prompt)))

        def compute() -> list[Row]:
            rows: dict[int, Row] = {}
            for indices, part in parts:
                rows.update(zip(indices, part(), strict=True))
            return [rows[index] for index in range(len(inputs))]

        return compute

    def _prepare(self, inputs: Sequence[Ids], prompt: int) -> Callable[[], list[Row]]:
        if self.unpadded is None:
            return partial(self._compute, inputs, prompt)
        return partial(self._compute_unpadded, self.unpadded, self.unpadded.pack(inputs), prompt)

    def _compute(self, inputs: Sequence[Ids], prompt: int) -> list[Row]:
        import torch

        with torch.inference_mode():
            if self.bert is None:
                features = tensors(inputs, self.tokens, self.device)
            else:
                features = self.bert.features(inputs)
            if prompt:
                features["prompt_length"] = prompt
            if self.bert is None:
                return self._rows(self.model(features))
            return self._rows(self._pool(features))

    def _compute_unpadded(self, unpadded: UnpaddedNetwork, packing: Packing, prompt: int = 0) -> list[Row]:
        import torch

        with torch.inference_mode():
            states, moved = unpadded.states(packing)
            # the library's names, which its Pooling reads for inputs without padding
            features: dict[str, Any] = {
                "token_embeddings": states[None],
                "cu_seq_lens_q": moved.boundaries,
                "seq_idx": moved.rows[OWNERS, None],
            }
            if prompt:
                features["prompt_length"] = prompt
            return self._rows(self._pool(features))

    def _pool(self, features: dict[str, Any]) -> dict[str, Any]:
        for module in list(self.model)[1:]:
            features = module(features)
        return features

    def _rows(self, features: dict[str, Any]) -> list[Row]:
        return list(features["sentence_embedding"][:, : self.model.truncate_dim].float().cpu().numpy())


def finish(rows: Sequence[Row], dimensions: int | None, normalize: bool) -> npt.NDArray[np.float32]:
    """Return len(rows) x dimensions, little-endian, cut and (if requested) normalised."""
    matrix = np.stack(rows).astype("<f4", copy=False)
    if dimensions is not None and dimensions < matrix.shape[1]:
        matrix = matrix[:, :dimensions]
    if normalize:
        length = np.linalg.norm(matrix, axis=1, keepdims=True)
        matrix = matrix / np.maximum(length, 1e-12)
    return np.ascontiguousarray(matrix, dtype="<f4")
