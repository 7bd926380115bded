"""BERT without padding has the states of the library's own network, whatever shares a step, or is not used."""

import random
from typing import Any

import numpy as np
import pytest

from models.messages import EmbedRequest
from models.text import embeddings
from models.text.bert import Bert, of_embedder
from models.text.tokens import Ids
from tests.contract.text.fixtures import Reports, minilm, recipe, text

pytestmark = pytest.mark.real


def network(seed: int, **more: Any) -> Any:
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(seed)
    config = {
        "vocab_size": 100, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 80,
        "max_position_embeddings": 64, "initializer_range": 0.3,
    }  # fmt: skip
    return BertModel(BertConfig(**{**config, **more})).eval().requires_grad_(False)


def states(model: Any, given: Ids) -> Any:
    """Return the library's states of one input by itself."""
    import torch

    types = torch.tensor([given.types or [0] * len(given.ids)])
    return model(input_ids=torch.tensor([given.ids]), token_type_ids=types).last_hidden_state[0]


@pytest.mark.parametrize("seed", range(3))
def test_states_are_the_librarys_whatever_shares_the_step(seed: int) -> None:
    import torch

    model, rng = network(seed), random.Random(seed)
    lengths = [rng.choice([1, 2, 3, 5, 5, 5, 17, 64]) for _ in range(12)]
    inputs = [
        Ids([rng.randrange(100) for _ in range(n)], [rng.randrange(2) for _ in range(n)] if n % 2 else None)
        for n in lengths
    ]  # in random order, so that neighbours rarely have the same length
    with torch.inference_mode():
        expected = [states(model, given) for given in inputs]
        found = Bert(model, first_only=False).states(inputs)
        torch.testing.assert_close(found, torch.cat(expected), atol=2e-5, rtol=1e-4)
        firsts = Bert(model, first_only=True).states(inputs)
        torch.testing.assert_close(firsts, torch.stack([one[0] for one in expected]), atol=2e-5, rtol=1e-4)
        # the library's network still works with the same weights
        torch.testing.assert_close(states(model, inputs[0]), expected[0], atol=2e-5, rtol=1e-4)


class Pooling:
    def _forward_flattened(self) -> None: ...


class Own:
    """An unknown module."""


class FirstStep:
    def __init__(self, model: Any) -> None:
        self.model = model


def test_only_known_architectures_are_packed() -> None:
    import torch

    assert of_embedder([FirstStep(network(0)), Pooling()], "cpu") is not None
    assert of_embedder([FirstStep(network(0)), Pooling()], "cuda:0") is None
    assert of_embedder([FirstStep(network(0)), Pooling(), Own()], "cpu") is None
    assert of_embedder([FirstStep(network(0))], "cpu") is None
    assert of_embedder([FirstStep(network(0, hidden_act="relu")), Pooling()], "cpu") is None
    assert of_embedder([FirstStep(network(0, is_decoder=True)), Pooling()], "cpu") is None
    assert of_embedder([FirstStep(network(0).to(torch.bfloat16)), Pooling()], "cpu") is None


async def test_a_recipe_can_keep_the_librarys_network() -> None:
    vectors = []
    for flags, packed in (({}, True), ({"packed": False}, False), ({"attn_implementation": "eager"}, False)):
        engine = embeddings.engine()
        loaded = await engine.load(recipe("embed", flags), minilm(), "cpu", Reports())
        assert engine.model.encoder.packed is packed
        assert loaded.weights_bytes == pytest.approx(90.9e6, rel=0.01)
        result, _ = await engine.model.embed(EmbedRequest(inputs=["steam", text(40), text(200)], truncate=True))
        vectors.append(np.frombuffer(result.vectors, "<f4"))
        await engine.close()
    np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-5)
    np.testing.assert_allclose(vectors[0], vectors[2], atol=1e-5)
