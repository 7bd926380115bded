"""Flags of vLLM in recipes, and files of other servers in place of recipes."""

from pathlib import Path

import pytest

from models.flags import flag_fault
from registry import vllm_source
from registry.recipes.loading import load_recipes
from tests.unit.registry.recipes.files import GOOD, Write, faults


def with_flags(flags: str) -> str:
    return GOOD.format("a").replace("engine: {name: vllm}", f"engine: {{name: vllm, flags: {flags}}}")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("{max-model-len: 4096}", "max-model-len: write it as context_length of the recipe"),
        ("{no-enable-lora: true}", "no-enable-lora: write it as memory.adapters.device of the recipe"),
        ("{enable_log_requests: true}", "enable_log_requests: the slot sets it"),
        ("{enable_mm_embeds: true}", "enable_mm_embeds: it would let clients send tensors as pickles"),
        ("{enable-prompt-embeds: true}", "enable-prompt-embeds: it would let clients send tensors as pickles"),
        ("{allowed_origins: x}", "allowed_origins: use roundhouse serve --cors-origins"),
        ("{enforce_eagre: true}", "enforce_eagre: this vLLM has no such flag; write enforce_eager"),
        ("{guided_decoding_backend: x}", "guided_decoding_backend: this vLLM has no such flag; write structured_out"),
        ("{disable_log_requests: true}", "disable_log_requests: this vLLM has no such flag; leave it out"),
        ("{seed: 1, swap_space: 4, port: 1}", "swap_space: this vLLM has no such flag; leave it out; port: use round"),
    ],
)
def test_a_flag_that_no_recipe_can_have_is_reported_without_a_load(write: Write, flags: str, words: str) -> None:
    [recipe] = load_recipes(write(with_flags(flags)))
    fault = flag_fault(recipe)
    assert fault is not None
    assert fault.startswith(f"its engine.flags do not fit vLLM: {words}")


def test_flags_that_vllm_has(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = "{chat_template: x, no-enable-prefix-caching: true, quantization: awq, kv_cache_dtype: fp8}"
    [recipe] = load_recipes(write(with_flags(flags)))
    assert flag_fault(recipe) is None
    [recipe] = load_recipes(write(with_flags("{new_flag: 1}")))
    monkeypatch.setattr(vllm_source, "serve_flags", lambda: frozenset())
    assert flag_fault(recipe) is None, "a vLLM whose flags are elsewhere checks them at the load"


def test_a_flags_keys_and_values_become_the_json_that_vllm_reads(write: Write) -> None:
    flags = "{override_generation_config: {temperature: 0.2}, limit_mm_per_prompt: '{\"image\": 2}', seed: 1}"
    [recipe] = load_recipes(write(with_flags(flags)))
    assert recipe.engine.flags == {
        "override_generation_config": '{"temperature": 0.2}',
        "limit_mm_per_prompt": '{"image": 2}',
        "seed": 1,
    }
    [fault] = faults(write(with_flags("{hf_overrides: {since: 2026-01-01}}")))
    assert "'engine.flags.hf_overrides' cannot be a mapping of keys" in fault


def test_a_file_in_a_flag_is_looked_for_beside_the_recipe(write: Write) -> None:
    path = write(with_flags("{chat_template: mine.jinja, tool-parser-plugin: none.py, tool_call_parser: mine}"))
    (path.parent / "mine.jinja").write_text("{{ messages }}")
    [recipe] = load_recipes(path)
    assert recipe.engine.flags["chat_template"] == str(path.parent / "mine.jinja")
    assert recipe.engine.flags["tool-parser-plugin"] == "none.py", "it is not there: vLLM reports it"
    for text in ("'{{ messages }}'", "'" + "x" * 5000 + "'", '"a\\0b"', "/srv/mine.jinja"):
        [recipe] = load_recipes(write(with_flags(f"{{chat_template: {text}}}")))
        assert not Path(str(recipe.engine.flags["chat_template"])).is_relative_to(path.parent)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("max-model-len: 5", "unknown key 'max-model-len'; vLLM's 'max_model_len' is 'context_length' here"),
        ("tool-call-parser: x", "unknown key 'tool-call-parser'; vLLM's 'tool_call_parser' goes below 'engine.flags'"),
        ("enforce_eager: true", "unknown key 'enforce_eager'; vLLM's 'enforce_eager' goes below 'engine.flags'"),
        ("revision: main", "unknown key 'revision'; vLLM's 'revision' is 'source.revision' here"),
        (
            "parameters: {temperature: 0.2}",
            "unknown key 'parameters'; defaults of sampling go below 'engine.flags': {override_generation_config: "
            "{temperature: 0.2}}",
        ),
    ],
)
def test_vllms_flags_as_keys_of_a_recipe(write: Write, key: str, words: str) -> None:
    assert faults(write(f"{GOOD.format('a')}{key}\n")) == [f"r.yaml:6: {words}"]


@pytest.mark.parametrize(
    ("text", "server", "section"),
    [
        ("model_list:\n  - {model_name: a, litellm_params: {}}\n", "LiteLLM's proxy", "from-litellms-proxy"),
        ("name: phi\nbackend: llama-cpp\nf16: true\n", "LocalAI", "from-localai"),
        ("name: phi\nparameters: {model: phi.gguf}\n", "LocalAI", "from-localai"),
        ("- {name: phi, parameters: {model: phi.gguf}}\n- {name: b, backend: x}\n", "LocalAI", "from-localai"),
        ("model: org/name\nport: 6379\nuvicorn-log-level: info\n", "vllm serve", "from-vllm-serve"),
        ('{"version": 1, "model_name": "x", "model_specs": []}', "Xinference", "from-xinference"),
        ("FROM llama3.2\nSYSTEM You are Mario\n", "Ollama", "from-ollama"),
    ],
)
def test_a_configuration_of_another_server_is_one_fault(write: Write, text: str, server: str, section: str) -> None:
    words = f"this is a configuration of {server}; docs/migrate.md#{section} says what to write instead"
    assert faults(write(text)) == [f"r.yaml:1: {words}"]
    headings = (Path(__file__).parents[4] / "docs" / "migrate.md").read_text()
    assert f"## {section.replace('-', ' ')}" in headings.lower().replace("'", "")
