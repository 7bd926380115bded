"""Networks on inputs one behind another beside the library's own, one by one: on a CPU, where no kernel can differ.

There is no FlashAttention there: PyTorch's attention over each input takes its place, by the same boundaries.
"""

import random
from typing import Any

import pytest
import torch

from benchmarks.gpu import encoders
from models.text.tokens import Ids
from models.text.unpadded import attention
from models.text.unpadded.heads import head_of
from models.text.unpadded.network import UnpaddedNetwork, without_padding
from tests.contract.text.unpadded.networks import CONFIGS, PADDING, made, network

pytestmark = pytest.mark.real


def inputs(seed: int, *, types: bool) -> list[Ids]:
    """In no order, one of a single token, some longer than any window, RoBERTa's padding in the middle of one."""
    rng = random.Random(seed)
    made = [[rng.randrange(4, 100) for _ in range(length)] for length in (5, 64, 1, 17, 17, 2, 40)]
    made[3][8] = PADDING
    return [Ids(ids, [rng.randrange(2) for _ in ids] if types else None) for ids in made]


def alone(model: Any, given: Ids) -> Any:
    """The library's output for one input."""
    ids = {"input_ids": torch.tensor([given.ids])}
    return model(**ids, **({"token_type_ids": torch.tensor([given.types])} if given.types is not None else {}))


@pytest.mark.parametrize("name", CONFIGS)
def test_states_are_the_librarys(name: str) -> None:
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
def test_scores_are_the_librarys(name: str) -> None:
    model = made("AutoModelForSequenceClassification", CONFIGS[name](num_labels=1))
    types, head = name == "bert", head_of(model)
    given = inputs(2, types=types)
    assert head is not None
    with torch.inference_mode():
        expected = torch.cat([alone(model, one).logits[0] for one in given])
        unpadded = without_padding(model, "cpu", types, lambda _: True)
        assert unpadded is not None
        states, moved = unpadded.states(unpadded.pack(given))
        torch.testing.assert_close(head(states[moved.boundaries[:-1]])[:, 0], expected, atol=2e-5, rtol=1e-4)


def test_a_head_that_reads_more_than_first_states_is_not_known() -> None:
    mean = CONFIGS["modernbert"](num_labels=1, classifier_pooling="mean")
    assert head_of(made("AutoModelForSequenceClassification", mean)) is None
    assert head_of(made("AutoModelForSequenceClassification", CONFIGS["qwen3"](num_labels=1))) is None


def t5() -> Any:
    """Adds a bias by distance to what attention computes."""
    from transformers import T5Config, T5EncoderModel

    return T5EncoderModel(T5Config(vocab_size=100, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)).eval()


def mpnet() -> Any:
    """Has an attention of its own."""
    from transformers import MPNetConfig, MPNetModel

    sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 80}
    return MPNetModel(MPNetConfig(vocab_size=100, **sizes)).eval()


@pytest.mark.parametrize("make", [t5, mpnet])
def test_a_network_that_attends_otherwise_keeps_its_padding(make: Any, caplog: pytest.LogCaptureFixture) -> None:
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
    assert encoders.fallbacks(caplog.text), "a run on a card tells it"


def test_a_network_that_answers_otherwise_keeps_its_padding(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("WARNING", "roundhouse.text")
    model = network("bert")
    assert without_padding(model, "cpu", True, lambda _: False) is None
    assert model.config._attn_implementation != attention.NAME
    assert "its answers differ" in caplog.text


@pytest.mark.parametrize(
    "more", [{}, {"cu_seq_lens_q": torch.tensor([0, 3]), "softcap": 30.0}, {"cu_seq_lens_q": torch.tensor([0, 3])}]
)
def test_attention_refuses_what_it_would_compute_wrongly(more: dict[str, Any]) -> None:
    """No boundaries, a bound on scores, a mask."""
    rows = torch.zeros(1, 2, 3, 8)
    mask = torch.zeros(1, 1, 3, 3) if set(more) == {"cu_seq_lens_q"} else None
    with pytest.raises(NotImplementedError):
        attention.attend(torch.nn.Linear(1, 1), rows, rows, rows, mask, **more)


@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (5, 5), (5, 0)])
def test_the_kernel_of_cards_takes_these_arguments(window: tuple[int, int]) -> None:
    """On tensors without memory: the shapes that it gives, here with half as many heads of keys and values."""
    query, key = torch.zeros(9, 4, 16, device="meta"), torch.zeros(9, 2, 16, device="meta")
    ends = torch.zeros(3, dtype=torch.int32, device="meta")
    attended = attention._flash(query, key, key, ends, 6, 0.5, window)
    assert attended.shape == (9, 4, 16)
