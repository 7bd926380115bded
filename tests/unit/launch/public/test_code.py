"""Chat models with code in their repository: vLLM has their networks, but not always their configs and tokenizers.

Without trust a load fails only after the download, with an error that some code has to be trusted.
"""

from typing import Any

import pytest

from launch.proposal.propose import propose
from launch.request import ModelRequest
from models.sources.repository import is_included
from registry.errors import Unfit
from registry.recipes.fields import HubSource
from tests.unit.launch.listings import listing_of
from tests.unit.launch.public.test_known_models import MACHINE

SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_hidden_layers": 2,
         "num_key_value_heads": 4, "vocab_size": 1000, "max_position_embeddings": 4096,
         "torch_dtype": "bfloat16"}  # fmt: skip


def config(architecture: str, kind: str, **code: Any) -> dict[str, Any]:
    return {**SIZES, "architectures": [architecture], "model_type": kind, "auto_map": code}


INTERN = config("InternLM2ForCausalLM", "internlm2", AutoConfig="configuration_internlm2.InternLM2Config",
                AutoModelForCausalLM="modeling_internlm2.InternLM2ForCausalLM")  # fmt: skip
EXAONE = config("ExaoneForCausalLM", "exaone", AutoConfig="LGAI/code--configuration_exaone.ExaoneConfig")
GLM = config("ChatGLMModel", "chatglm", AutoConfig="configuration_chatglm.ChatGLMConfig")
KIMI = config("DeepseekV3ForCausalLM", "kimi_k2", AutoConfig="configuration_deepseek.DeepseekV3Config")
PHI = config("Phi3ForCausalLM", "phi3", AutoConfig="configuration_phi3.Phi3Config")


def tokenizer(name: str) -> dict[str, Any]:
    return {"tokenizer_class": name, "auto_map": {"AutoTokenizer": [f"tokenization_x.{name}", None]}}


def proposed(config: dict[str, Any], tokenizer: dict[str, Any], **requested: object) -> dict[str, Any]:
    listing = listing_of(
        {"config.json": config, "tokenizer_config.json": tokenizer, "chat_template.jinja": "{{ messages }}"},
        {"model.safetensors": 100_000_000},
    )
    found = propose(listing, HubSource(hub="a/b", revision="0" * 40), ModelRequest("x", overrides=requested), MACHINE)
    return dict(found.recipe.engine.flags)


@pytest.mark.parametrize(
    ("config", "tokenizer", "words"),
    [
        (INTERN, tokenizer("InternLM2Tokenizer"), "its config as code (internlm2)"),
        (EXAONE, {}, "its config as code (exaone, of LGAI/code)"),
        (GLM, tokenizer("ChatGLM4Tokenizer"), "its tokenizer as code (ChatGLM4Tokenizer)"),
        (KIMI, tokenizer("TikTokenTokenizer"), "its tokenizer as code (TikTokenTokenizer)"),
    ],
)
def test_code_that_vllm_would_run_needs_trust_first(
    config: dict[str, Any], tokenizer: dict[str, Any], words: str
) -> None:
    with pytest.raises(Unfit) as refused:
        proposed(config, tokenizer)
    assert refused.value.code == "needs_code"
    assert words in refused.value.message
    requested = {"engine.flags.trust_remote_code": True}
    assert proposed(config, tokenizer, **requested)["trust_remote_code"] is True


@pytest.mark.parametrize(
    ("config", "tokenizer"),
    [
        (PHI, tokenizer("LlamaTokenizerFast")),  # its code is in transformers by now
        (GLM, {"tokenizer_class": "PreTrainedTokenizerFast"}),
        (KIMI, {**tokenizer("LlamaTokenizerFast")}),
        ({**INTERN, "architectures": ["LongcatFlashForCausalLM"], "model_type": ""}, {}),  # vLLM knows it by its class
    ],
)
def test_code_that_is_in_the_libraries_by_now_needs_no_trust(config: dict[str, Any], tokenizer: dict[str, Any]) -> None:
    assert "trust_remote_code" not in proposed(config, tokenizer)


def test_code_is_fetched_beside_the_weights() -> None:
    """A load runs it only with trust. Without the code, a recipe with trust would only work for a folder."""
    assert is_included("modeling_x.py")
    assert not is_included("original/model.py")
