"""Inputs one behind another, as FlashAttention reads them, give the vectors that the library gives with padding.

There is no FlashAttention on a CPU: PyTorch's attention over each input stands for it, by the boundaries that the
library's own features tell.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from models.text import loading
from models.text.embeddings import EmbeddingEngine
from models.text.encoder import Embedder
from models.text.tokens import Ids, Tokens
from tests.contract.text.fixtures import Reports, minilm, recipe, text

pytestmark = pytest.mark.real
TEXTS = ["steam", text(40), "Zug, 列車: naïve café!", text(120, 3), "a b", text(7)]
FLASH = "flash_attention_2"


def attend(
    _module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, _mask: Any, cu_seq_lens_q: torch.Tensor,
    scaling: float | None = None, **_more: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """As transformers' functions: 1 x heads x tokens x width each; the result has heads behind tokens."""
    parts = []
    for start, end in zip(cu_seq_lens_q[:-1].tolist(), cu_seq_lens_q[1:].tolist(), strict=True):
        q, k, v = (one[:, :, start:end] for one in (query, key, value))
        parts.append(torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scaling))
    return torch.cat(parts, 2).transpose(1, 2), None


@pytest.fixture
def with_flash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "transformers.modeling_flash_attention_utils.lazy_import_flash_attention",
        lambda *_, **__: ((None, attend, None, None), None),
    )
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, FLASH, attend)


@pytest.mark.usefixtures("with_flash")
def test_vectors_are_those_with_padding() -> None:
    from sentence_transformers import SentenceTransformer

    padded, model = (SentenceTransformer(str(minilm()), device="cpu", local_files_only=True) for _ in range(2))
    expected = padded.encode(TEXTS, show_progress_bar=False)
    tokens = Tokens(model.tokenizer, loading.vocabulary_of(model), 256)
    model[0].model.config._attn_implementation = FLASH
    model[0].unpad_inputs = True  # the library looks again
    embedder = Embedder(model, tokens, "cpu", unpadded=True)
    assert embedder.joins
    assert embedder.packed
    rows = embedder.run([Ids(ids, None) for ids in tokens.inputs(TEXTS, "", truncate=True)])
    np.testing.assert_allclose(np.stack(rows), expected, atol=1e-5)
    assert not Embedder(model, tokens, "cpu").joins, "without the flag"
    assert not Embedder(padded, tokens, "cpu", unpadded=True).joins, "without FlashAttention"


@pytest.mark.parametrize(("installed", "chosen"), [(True, FLASH), (False, None)])
def test_flash_attention_is_chosen_on_a_gpu_that_has_it(
    installed: bool, chosen: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.utils.is_flash_attn_2_available", lambda: installed)
    seen: dict[str, Any] = {}

    def make(_path: str, **options: Any) -> Any:
        seen.update(options["model_kwargs"])
        raise LookupError

    for device, flags, expected in (
        ("cuda:0", {"unpadded": True}, chosen),
        ("cpu", {"unpadded": True}, None),
        ("cuda:0", {}, None),
        ("cuda:0", {"unpadded": True, "attn_implementation": "eager"}, "eager"),
    ):
        seen.clear()
        with pytest.raises(LookupError):
            loading.open_model(recipe("embed", flags), minilm(), device, make, flags)
        assert seen.get("attn_implementation") == expected


async def test_on_a_cpu_the_flag_changes_nothing() -> None:
    engine = EmbeddingEngine()
    await engine.load(recipe("embed", {"unpadded": True, "packed": False}), minilm(), "cpu", Reports())
    assert engine._embedder is not None
    assert not engine._embedder.packed
    await engine.close()


def test_a_network_without_the_librarys_way_keeps_its_padding() -> None:
    network = SimpleNamespace(model=SimpleNamespace())
    assert not Embedder([network], SimpleNamespace(), "cuda:0", unpadded=True).joins
