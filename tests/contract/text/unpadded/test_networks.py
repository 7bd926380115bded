"""Networks on concatenated inputs have the states of the library's networks on single inputs.

On a CPU, where PyTorch's attention over each input, with the same boundaries, takes the place of FlashAttention.
"""

import random
from typing import Any

import pytest
import torch

from benchmarks.gpu import encoders
from models.text.heads import classifier_of
from models.text.tokens import Ids
from models.text.unpadded import attention
from models.text.unpadded.network import UnpaddedNetwork, without_padding
from tests.contract.text.unpadded.networks import CONFIGS, PADDING, network, network_of

pytestmark = pytest.mark.real


def inputs(seed: int, *, types: bool) -> list[Ids]:
    """Return inputs of mixed lengths: one token, more than any window, and one with RoBERTa's padding in the middle."""
    rng = random.Random(seed)
    ids_of = [[rng.randrange(4, 100) for _ in range(length)] for length in (5, 64, 1, 17, 17, 2, 40)]
    ids_of[3][8] = PADDING
    return [Ids(ids, [rng.randrange(2) for _ in ids] if types else None) for ids in ids_of]


def alone(model: Any, given: Ids) -> Any:
    """Return the library's output for one input."""
    ids = {"input_ids": torch.tensor([given.ids])}
    return model(**ids, **({"token_type_ids": torch.tensor([given.types])} if given.types is not None else {}))


@pytest.mark.parametrize("name", CONFIGS)
def test_states_equal_the_librarys(name: str) -> None:
    model, types = network(name), name == "bert"
    given = inputs(1, types=types)
    with torch.inference_mode():
        expected = torch.cat([alone(model, one).last_hidden_state[0] for one in given])
        found: list[torch.Tensor] = []

        def is_right(unpadded: UnpaddedNetwork) -> bool:
            found.append(unpadded.states(unpadded.pack(given))[0])
            return True

        assert without_padding(model, "cpu", types, is_right) is not None
        torch.testing.assert_close(found[0], expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["bert", "roberta", "xlm-roberta", "modernbert"])
def test_scores_equal_the_librarys(name: str) -> None:
    model = network_of("AutoModelForSequenceClassification", CONFIGS[name](num_labels=1))
    types, classifier = name == "bert", classifier_of(model)
    given = inputs(2, types=types)
    assert classifier is not None
    with torch.inference_mode():
        expected = torch.cat([alone(model, one).logits[0] for one in given])
        unpadded = without_padding(model, "cpu", types, lambda _: True)
        assert unpadded is not None
        states, moved = unpadded.states(unpadded.pack(given))
        torch.testing.assert_close(classifier(states[moved.boundaries[:-1]])[:, 0], expected, atol=2e-5, rtol=1e-4)


def test_a_head_that_reads_more_than_first_states_is_refused() -> None:
    mean = CONFIGS["modernbert"](num_labels=1, classifier_pooling="mean")
    assert classifier_of(network_of("AutoModelForSequenceClassification", mean)) is None
    assert classifier_of(network_of("AutoModelForSequenceClassification", CONFIGS["qwen3"](num_labels=1))) is None


def t5() -> Any:
    """Return a network whose attention adds a bias by distance."""
    from transformers import T5Config, T5EncoderModel

    return T5EncoderModel(T5Config(vocab_size=100, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)).eval()


def mpnet() -> Any:
    """Return a network with its own attention."""
    from transformers import MPNetConfig, MPNetModel

    sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 80}
    return MPNetModel(MPNetConfig(vocab_size=100, **sizes)).eval()


@pytest.mark.parametrize("make", [t5, mpnet])
def test_a_network_with_another_attention_keeps_its_padding(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("WARNING", "roundhouse.text")
    model = make()
    before = model.config._attn_implementation
    given = inputs(3, types=False)

    def is_right(unpadded: UnpaddedNetwork) -> bool:
        unpadded.states(unpadded.pack(given))
        return True

    with torch.inference_mode():
        expected = alone(model, given[0]).last_hidden_state
        assert without_padding(model, "cpu", False, is_right) is None
        assert model.config._attn_implementation == before
        torch.testing.assert_close(alone(model, given[0]).last_hidden_state, expected)
    assert "runs with padding" in caplog.text
    assert encoders.fallbacks(caplog.text), "the check on a GPU finds it in the log"


def test_a_network_with_other_results_keeps_its_padding(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("WARNING", "roundhouse.text")
    model = network("bert")
    assert without_padding(model, "cpu", True, lambda _: False) is None
    assert model.config._attn_implementation != attention.NAME
    assert "its answers differ" in caplog.text


@pytest.mark.parametrize(
    "more", [{}, {"cu_seq_lens_q": torch.tensor([0, 3]), "softcap": 30.0}, {"cu_seq_lens_q": torch.tensor([0, 3])}]
)
def test_attention_refuses_arguments_that_it_does_not_support(more: dict[str, Any]) -> None:
    """They are missing boundaries, a cap on scores, and a mask."""
    rows = torch.zeros(1, 2, 3, 8)
    mask = torch.zeros(1, 1, 3, 3) if set(more) == {"cu_seq_lens_q"} else None
    with pytest.raises(NotImplementedError):
        attention.attend(torch.nn.Linear(1, 1), rows, rows, rows, mask, **more)


@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (5, 5), (5, 0)])
def test_the_kernel_of_gpus_accepts_the_arguments(window: tuple[int, int]) -> None:
    """Checks the shapes of results, on tensors without memory and with half as many heads of keys and values."""
    query, key = torch.zeros(9, 4, 16, device="meta"), torch.zeros(9, 2, 16, device="meta")
    ends = torch.zeros(3, dtype=torch.int32, device="meta")
    attended = attention._flash(query, key, key, ends, 6, 0.5, window)
    assert attended.shape == (9, 4, 16)
