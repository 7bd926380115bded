"""Call a model of sentence-transformers on token ids, below `encode` and `predict`."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Generic

import numpy as np

from models.batching.worker import R
from models.text.bert import Bert
from models.text.heads import EncoderHead
from models.text.tokens import Ids, Tokens
from models.text.unpadded.network import UnpaddedNetwork, without_padding
from models.text.unpadded.packing import Packing

_log = logging.getLogger("roundhouse.text")


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
    """A model that turns token ids into one result for each input.

    Args:
        model: a SentenceTransformer or CrossEncoder.
        head: what it computes after its network.
        bert: runs it without padding, if `models.text.bert` supports it and the recipe lets it.
    """

    def __init__(self, model: Any, tokens: Tokens, device: str, head: EncoderHead[R], bert: Bert | None) -> None:
        self.model, self.tokens, self.device, self.bert = model, tokens, device, bert
        self._head = head
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
        if unknown := self._head.unknown():
            _log.warning("this model runs with padding despite `unpadded`: %s", unknown)
            return
        expected = [result for given in inputs for result in self.run([given])]

        def is_right(unpadded: UnpaddedNetwork) -> bool:
            return is_same(self._compute_unpadded(unpadded, unpadded.pack(inputs), {}), expected)

        self.unpadded = without_padding(self.model[0].model, self.device, self.tokens.wants_types, is_right)

    def run(self, inputs: Sequence[Ids]) -> list[R]:
        return self.prepare(inputs)()

    def prepare(self, inputs: Sequence[Ids]) -> Callable[[], list[R]]:
        """Prepare a step on the host, and return a function that does the rest.

        Any thread may prepare, but only one at a time may call the function. Inputs whose prompts the pooling omits
        run separately for each length of a prompt.
        """
        order = sorted(range(len(inputs)), key=lambda index: inputs[index].prompt)
        parts: list[tuple[list[int], Callable[[], list[R]]]] = []
        for prompt, same in groupby(order, key=lambda index: inputs[index].prompt):
            indices = list(same)
            parts.append((indices, self._prepare([inputs[index] for index in indices], prompt)))

        def compute() -> list[R]:
            results: dict[int, R] = {}
            for indices, part in parts:
                results.update(zip(indices, part(), strict=True))
            return [results[index] for index in range(len(inputs))]

        return compute

    def _prepare(self, inputs: Sequence[Ids], prompt: int) -> Callable[[], list[R]]:
        more = {"prompt_length": prompt} if prompt else {}
        if self.unpadded is None:
            return partial(self._compute, inputs, more)
        return partial(self._compute_unpadded, self.unpadded, self.unpadded.pack(inputs), more)

    def _compute(self, inputs: Sequence[Ids], more: dict[str, int]) -> list[R]:
        import torch

        with torch.inference_mode():
            if self.bert is not None:
                return self._head.of_states(self.bert.features(inputs) | more)
            return self._head.of_tokens(tensors(inputs, self.tokens, self.device) | more)

    def _compute_unpadded(self, unpadded: UnpaddedNetwork, packing: Packing, more: dict[str, int]) -> list[R]:
        import torch

        with torch.inference_mode():
            return self._head.of_states(unpadded.features(packing) | more)
