"""Recognising files of models, and errors for those that cannot be served."""

import struct
from dataclasses import replace
from pathlib import Path

import pytest

from launch.files.detect import detect, misfit
from launch.files.gguf import read_header
from launch.files.listing import SMALL, list_folder, weight_files
from registry.errors import Unfit
from registry.recipes.definition import Task
from tests.unit.launch.listings import listing_of

WEIGHTS = {"model.safetensors": 1000}
WHISPER = {"architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper"}
POOLED = [{"type": "sentence_transformers.models.Transformer"}, {"type": "sentence_transformers.models.Pooling"}]

DENSE = {"type": "sentence_transformers.models.Dense", "path": "2_Dense"}
ROUTER = {"type": "sentence_transformers.models.Router", "path": "2_Router"}
COLBERT = "pylate.models.Dense.Dense"


def test_files_that_no_model_has_are_reported_a_recipes_folder(tmp_path: Path) -> None:
    """`validate` and the start of the server failed with them."""
    (tmp_path / "model.safetensors").write_bytes(bytes(9))
    for config, words in (
        ('{"architectures": ["BertForSequenceClassification"], "id2label": 5}', "hold impossible values"),
        ('{"architectures": ["BertModel"', "is broken"),
    ):
        (tmp_path / "config.json").write_text(config)
        assert words in str(misfit(tmp_path, Task.RERANK))
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "modules.json").write_text("[{")
    assert "modules.json" in str(misfit(tmp_path, Task.EMBED))


def test_half_a_character_from_a_file_is_in_no_answer() -> None:
    """JSON files can contain one, but it cannot be written into an answer."""
    small = {"config.json": '{"architectures": ["BertModel"]}',
             "config_sentence_transformers.json": '{"prompts": {"a\\ud800": "x"}}', "modules.json": POOLED}  # fmt: skip
    with pytest.raises(Unfit, match=r"config_sentence_transformers.json of a/model is broken"):
        detect(listing_of(small, WEIGHTS))


@pytest.mark.parametrize(
    ("small", "large", "task", "engine"),
    [
        ({"config.json": {"architectures": ["Qwen3ForCausalLM"]}}, WEIGHTS, Task.CHAT, "vllm"),
        ({"config.json": {"architectures": ["Gemma3ForConditionalGeneration"]}}, WEIGHTS, Task.CHAT, "vllm"),
        ({"config.json": {"architectures": ["BertModel"]}, "modules.json": POOLED}, WEIGHTS, Task.EMBED,
         "sentence-transformers"),
        ({"config.json": {"architectures": ["XLMRobertaModel"]}}, WEIGHTS, Task.EMBED, "sentence-transformers"),
        ({"config.json": {"architectures": ["BertModel"]}, "modules.json": [*POOLED, DENSE]},
         {**WEIGHTS, "2_Dense/pytorch_model.bin": 9, "2_Dense/model.safetensors": 9}, Task.EMBED,
         "sentence-transformers"),
        ({"config.json": {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}}}, WEIGHTS,
         Task.RERANK, "sentence-transformers"),
        ({"config.json": {"architectures": ["BertForSequenceClassification"], "num_labels": 1}}, WEIGHTS, Task.RERANK,
         "sentence-transformers"),
        ({"config.json": {"architectures": ["Qwen3ForCausalLM"]},
          "config_sentence_transformers.json": {"model_type": "CrossEncoder"}}, WEIGHTS, Task.RERANK,
         "sentence-transformers"),
        ({"config.json": {"alignment_heads": []}, "vocabulary.json": [], "tokenizer.json": {}}, {"model.bin": 9},
         Task.TRANSCRIBE, "faster-whisper"),
        ({"config.json": WHISPER}, {**WEIGHTS, "tokenizer.json": 9}, Task.TRANSCRIBE, "faster-whisper"),
        ({"config.json": WHISPER}, {**WEIGHTS, "vocab.json": 9, "merges.txt": 9}, Task.TRANSCRIBE, "faster-whisper"),
        # a merged model may still have its adapter's config beside it
        ({"config.json": {"architectures": ["LlamaForCausalLM"]}, "adapter_config.json": {}}, WEIGHTS, Task.CHAT,
         "vllm"),
    ],
)  # fmt: skip
def test_the_task_is_found(small: dict[str, object], large: dict[str, int], task: Task, engine: str) -> None:
    found = detect(listing_of(small, large))
    assert (found.task, found.engine) == (task, engine)
    assert found.why


@pytest.mark.parametrize(
    ("small", "large", "code", "words"),
    [
        ({"adapter_config.json": {"base_model_name_or_path": "team/base"}}, {"adapter_model.safetensors": 9},
         "is_adapter", "is an adapter for team/base: roundhouse adapters add"),
        ({"trainer_state.json": {}}, {"checkpoint-24/adapter_config.json": 1, "checkpoint-48/adapter_config.json": 1},
         "is_trainer_output", "the adapter is in checkpoint-48"),
        ({}, {"checkpoint-9/model.safetensors": 1, "checkpoint-10/model.safetensors": 1}, "is_trainer_output",
         "the model is in checkpoint-10: roundhouse models add"),
        ({"config.json": {}}, {"pytorch_model.bin": 9}, "bad_weights", "can run code"),
        ({"config.json": {}}, {"colbert_linear.pt": 1, "pytorch_model.bin": 9, "onnx/model.onnx": 1}, "bad_weights",
         "only as pytorch_model.bin"),  # BAAI/bge-m3
        ({"config.json": {}}, {"pytorch_model.bin": 9}, "bad_weights", "in a pull request: a/model@refs/pr/N"),
        ({"config.json": {}, "README.md": "---\nbase_model: BAAI/bge-m3\nlibrary_name: transformers.js\n---"},
         {"onnx/model.onnx": 9}, "bad_weights", "only as ONNX, which no engine here reads: add BAAI/bge-m3, from"),
        ({"config.json": {}, "README.md": "---\nbase_model:\n- openai/whisper-base\n---"},
         {"onnx/encoder_model.onnx": 9}, "bad_weights", "add openai/whisper-base, from"),
        ({"config.json": {}}, {"onnx/model.onnx": 9}, "bad_weights", "add the original, as safetensors"),
        ({}, {"ggml-base.bin": 9}, "gguf_not_served", "whisper.cpp's ggml-base.bin"),
        ({"adapter_config.json": {"base_model_name_or_path": "openai/whisper-large-v2", "task_type": None}},
         {"adapter_model.safetensors": 9}, "is_adapter", "only chat models take adapters: merge it"),
        ({"adapter_config.json": {"base_model_name_or_path": "BAAI/bge-m3", "task_type": "FEATURE_EXTRACTION"}},
         {"adapter_model.safetensors": 9}, "is_adapter", "only chat models take adapters: merge it"),
        ({"config.json": {"architectures": ["Wav2Vec2ForCTC"]}}, WEIGHTS, "not_whisper", "only Whisper is served"),
        ({"config.json": {"architectures": ["WhisperForAudioClassification"], "model_type": "whisper"}}, WEIGHTS,
         "not_whisper", "half a Whisper"),
        ({"readme.txt": "x"}, {}, "not_a_model", "readme.txt"),
        ({"config.json": {"alignment_heads": []}, "vocabulary.json": []}, {"model.bin": 9}, "bad_config",
         "has no tokenizer.json"),
        ({"config.json": {"alignment_heads": []}, "tokenizer.json": {}}, {"model.bin": 9}, "bad_config",
         "has no vocabulary.json"),
        ({"config.json": WHISPER, "preprocessor_config.json": {}}, WEIGHTS, "bad_config", "has no tokenizer"),
        ({"vocabulary.txt": "x", "config.json": {}}, {"model.bin": 9}, "not_whisper", "only Whisper"),
        ({"config.json": {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "a", "1": "b"}}},
         WEIGHTS, "is_classifier", "2 labels"),
        ({"config.json": {"architectures": ["BertForSequenceClassification"]}}, WEIGHTS, "is_classifier", "2 labels"),
        ({"config.json": {"architectures": "BertModel"}}, WEIGHTS, "bad_config", "without 'architectures'"),
        ({"config.json": WHISPER}, {**WEIGHTS, "merges.txt": 9}, "bad_config", "has no tokenizer"),
        ({"config.json": {"architectures": ["BertModel"], "quantization_config": {}}, "modules.json": POOLED}, WEIGHTS,
         "quantized", "add the original"),
        ({"config.json": {**WHISPER, "quantization_config": {"quant_method": "compressed-tensors"}}},
         {**WEIGHTS, "tokenizer.json": 9}, "quantized", "add the original"),  # was converted without its scales
        ({"config.json": {"architectures": ["Qwen3ForSequenceClassification"], "num_labels": 1,
                          "quantization_config": {"quant_method": "awq"}}}, WEIGHTS, "quantized", "add the original"),
        ({"config.json": {"architectures": ["BertModel"], "quantization_config": {}}}, WEIGHTS, "quantized", "add"),
        ({"config.json": {"architectures": ["BertForMaskedLM"]}}, WEIGHTS, "is_masked_lm", "masked"),
        ({"config.json": {"architectures": ["BertForTokenClassification"]}}, WEIGHTS, "unknown_architecture",
         "models that are served write text"),
        ({"config.json": {"architectures": ["JinaForRanking"]}}, WEIGHTS, "unknown_architecture", "rank by one score"),
        ({"config.json": {"architectures": ["LlamaForCausalLM2"]}}, WEIGHTS, "unknown_architecture",
         "LlamaForCausalLM"),
        ({"config.json": {"architectures": ["MllamaForConditionalGeneration"]}}, WEIGHTS, "unknown_architecture",
         "vLLM served it until 0.10.2"),
        ({"config.json": {"architectures": ["BartForConditionalGeneration"]}}, WEIGHTS, "unknown_architecture",
         "a plug-in for vLLM does"),
        ({"config.json": {"architectures": ["MistralModel"]}}, WEIGHTS, "unknown_architecture", "modules.json"),
        ({"config.json": {"architectures": ["CLIPModel"]}}, WEIGHTS, "unknown_architecture", "modules.json"),
        ({}, WEIGHTS, "bad_config", "no config.json"),
        ({"config.json": "{broken"}, WEIGHTS, "bad_config", "is broken"),
        ({"config.json": {"model_type": "x"}}, WEIGHTS, "bad_config", "architectures"),
        ({"modules.json": POOLED, "config_sentence_transformers.json": {"model_type": "SparseEncoder"}}, WEIGHTS,
          "sparse_encoder", "dense"),
        # they were taken for embedding models or rerankers, fetched, and could not be loaded
        ({"modules.json": [{"type": "sentence_transformers.models.StaticEmbedding"}]},
         {"0_StaticEmbedding/model.safetensors": 9}, "unknown_architecture", "begins with StaticEmbedding"),
        ({"modules.json": [{"type": "sentence_transformers.models.CLIPModel", "path": "0_CLIPModel"}]},
         {"0_CLIPModel/model.safetensors": 9}, "unknown_architecture", "begins with CLIPModel"),
        ({"modules.json": [{"type": "sentence_transformers.base.modules.router.Router"}]},
         {"query_0_Transformer/model.safetensors": 9}, "unknown_architecture", "a Router"),
        ({"config.json": {"architectures": ["BertModel"]}, "modules.json": [*POOLED, ROUTER]}, WEIGHTS,
         "unknown_architecture", "separate steps for queries"),
        ({"config.json": {"architectures": ["BertModel"]}, "modules.json": [*POOLED, DENSE]},
         {**WEIGHTS, "2_Dense/pytorch_model.bin": 9}, "bad_weights", "of a step only as 2_Dense/pytorch_model.bin"),
        ({"config.json": {"architectures": ["ModernBertModel"]}, "modules.json": [POOLED[0], {"type": COLBERT}]},
         WEIGHTS, "unknown_architecture", "a vector for each token"),
        ({"config.json": {"architectures": ["BertModel"]}, "modules.json": POOLED,
          "config_sentence_transformers.json": {"model_type": "MultiVectorEncoder"}}, WEIGHTS,
         "unknown_architecture", "a vector for each token"),
        ({"config.json": {"architectures": ["Qwen3Model"]}, "modules.json": POOLED,
          "sentence_bert_config.json": {"modality_config": {"text": {}, "message": {}}}}, WEIGHTS,
         "unknown_architecture", "into its chat template"),
        ({"modules.json": [{"type": "sentence_transformers.models.Transformer", "path": "0_Transformer"}]},
         {"0_Transformer/model.safetensors": 9}, "bad_config", "Save it again"),
        ({"config.json": {"architectures": ["DebertaV2ForSequenceClassification"],
                          "id2label": {"0": "contradiction", "1": "entailment", "2": "neutral"}},
          "config_sentence_transformers.json": {"model_type": "CrossEncoder"}}, WEIGHTS, "is_classifier", "3 labels"),
    ],
)  # fmt: skip
def test_a_refusal_says_what_would_work(small: dict[str, object], large: dict[str, int], code: str, words: str) -> None:
    with pytest.raises(Unfit, match="a/model") as refused:
        detect(listing_of(small, large))
    assert refused.value.code == code
    assert words in refused.value.message


INDEX = {"model.safetensors.index.json": {"weight_map": {"a": "model-00001-of-00002.safetensors"}}}


@pytest.mark.parametrize(
    ("small", "large", "where", "words"),
    [
        ({}, {**WEIGHTS, "model_ema.safetensors": 9}, "/srv/m", "has both model_ema.safetensors and model.safetensors"),
        ({}, {**WEIGHTS, "model_ema.safetensors": 9}, "a/m", "Keep one, in a folder, and add that."),
        ({}, {**WEIGHTS, "consolidated.safetensors": 9}, "/srv/m", "has both consolidated.safetensors and"),
        ({}, {**WEIGHTS, "consolidated.safetensors": 9}, "a/m", ""),
        ({}, {**WEIGHTS, "adapter_model.safetensors": 9}, "/srv/m", "(adapter_model.safetensors) in addition to"),
        ({}, {**WEIGHTS, "adapter_model.safetensors": 9}, "a/m", ""),
        (INDEX, {**WEIGHTS, "model-00001-of-00002.safetensors": 9}, "/srv/m", "and model-00001-of-00002"),
        (INDEX, {"model-00001-of-00002.safetensors": 9, "consolidated.safetensors": 9, "x.safetensors": 9}, "/m", ""),
    ],
)  # fmt: skip
def test_a_chat_model_is_one_model(small: dict[str, object], large: dict[str, int], where: str, words: str) -> None:
    """vLLM would load one file over the other, and answer with a mixture."""
    listing = listing_of({"config.json": {"architectures": ["LlamaForCausalLM"]}, **small}, large, where)
    if not words:
        assert detect(listing).task is Task.CHAT
        return
    with pytest.raises(Unfit) as refused:
        detect(listing)
    assert refused.value.code == "bad_weights"
    assert words in refused.value.message


@pytest.mark.parametrize("is_installed", [True, False])
def test_a_missing_image_package_is_named(is_installed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Qwen3.5's load failed after a download of gigabytes."""
    monkeypatch.setattr("launch.files.detect.find_spec", lambda name: name if is_installed else None)
    config = {"architectures": ["Qwen3_5ForConditionalGeneration"], "vision_config": {}}
    notes = detect(listing_of({"config.json": config}, WEIGHTS)).notes
    assert any("the package torchvision" in note for note in notes) != is_installed


def test_a_chat_model_that_ranks_is_described_to_be_no_reranker_here() -> None:
    """Qwen3-Reranker and mxbai-rerank v2 used to become chat models silently."""
    small = {
        "config.json": {"architectures": ["Qwen3ForCausalLM"]},
        "README.md": "---\npipeline_tag: text-ranking\n---",
    }
    assert any("calls it a reranker" in note for note in detect(listing_of(small, WEIGHTS)).notes)
    small["README.md"] = "---\npipeline_tag: text-generation\n---"
    assert not any("calls it a reranker" in note for note in detect(listing_of(small, WEIGHTS)).notes)


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("/srv/run", "roundhouse models add /srv/run/checkpoint-9."),
        ("org/run", "roundhouse models add ./run/checkpoint-9, once it is here: hf download org/run --include "
                    "'checkpoint-9/*' --local-dir ./run."),
    ],
)  # fmt: skip
def test_a_checkpoint_inside_a_repository_is_fetched_first(where: str, words: str) -> None:
    """org/name/checkpoint-9 is no valid source, although it used to be advised."""
    with pytest.raises(Unfit) as refused:
        detect(listing_of({}, {"checkpoint-9/model.safetensors": 1}, where))
    assert refused.value.message.endswith(words)


def test_a_checkpoint_is_fetched_at_the_revision_that_was_requested() -> None:
    """The advised command used to fetch the main branch's, which may be missing or different."""
    listing = replace(listing_of({}, {"checkpoint-9/model.safetensors": 1}, "org/run"), revision="v2")
    with pytest.raises(Unfit, match=r"hf download org/run --revision v2 --include"):
        detect(listing)


def gguf(pairs: dict[str, str | int]) -> bytes:
    found = b"GGUF" + struct.pack("<IQQ", 3, 0, len(pairs))
    for key, value in pairs.items():
        found += struct.pack("<Q", len(key)) + key.encode()
        if isinstance(value, int):
            found += struct.pack("<II", 4, value)
        else:
            found += struct.pack("<IQ", 8, len(value)) + value.encode()
    return found


def test_a_gguf_names_what_it_was_made_from() -> None:
    data = gguf({"general.architecture": "qwen3", "general.quantization_version": 2,
                 "general.base_model.0.repo_url": "https://huggingface.co/Qwen/Qwen3-8B"})  # fmt: skip
    header = read_header(data)
    assert header is not None
    assert (header.architecture, header.base) == ("qwen3", "Qwen/Qwen3-8B")
    with pytest.raises(Unfit, match=r"GGUF \(qwen3\).*add Qwen/Qwen3-8B") as refused:
        detect(listing_of({"q4.gguf": data.decode("latin-1")}))
    assert refused.value.code == "gguf_not_served"


def test_only_the_beginning_of_a_gguf_is_read_for_advice(tmp_path: Path) -> None:
    """Beside a model.bin, a file of many GB was read into the server's memory."""
    (tmp_path / "model.bin").touch()
    with (tmp_path / "q4.gguf").open("wb") as file:
        file.write(gguf({"general.architecture": "qwen3"}))
        file.truncate(SMALL + 1)
    listing = list_folder(tmp_path)
    assert len(listing.read("q4.gguf")) == SMALL
    with pytest.raises(Unfit, match=r"holds a GGUF \(qwen3\)"):
        detect(listing)


@pytest.mark.parametrize("length", range(0, 120, 7))
def test_a_gguf_that_is_cut_anywhere_is_read_or_ignored(length: int) -> None:
    data = gguf({"general.architecture": "llama", "general.name": "x" * 40})
    header = read_header(data[:length])
    assert header is None or header.architecture in ("llama", "unknown")
    assert read_header(b"GGUF" + b"\xff" * length) is not None, "impossible figures"


def test_a_text_of_a_gguf_that_is_cut_is_not_read_in_part() -> None:
    data = gguf({"general.architecture": "llama"})
    headers = [read_header(data[:length]) for length in range(4, len(data) + 1)]
    assert {header.architecture for header in headers if header is not None} == {"llama", "unknown"}
    assert [header is not None and header.architecture for header in headers].index("llama") == len(headers) - 1


def test_a_gguf_with_newer_values_gives_what_comes_before_them() -> None:
    pairs = {"general.source.url": "https://huggingface.co/a/b", "general.type": "adapter", "general.new": 7}
    data = gguf(pairs)
    data = data[:-8] + struct.pack("<II", 99, 7)
    header = read_header(data)
    assert header is not None
    assert (header.base, header.kind) == ("a/b", "adapter")


def test_recipes_may_use_files_for_another_task_that_fit_theirs(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(bytes(9))
    fitting = {}
    for name in ("Qwen3ForCausalLM", "BertModel"):
        (tmp_path / "config.json").write_text(f'{{"architectures": ["{name}"]}}')
        fitting[name] = {task for task in Task if misfit(tmp_path, task) is None}
    assert fitting == {
        "Qwen3ForCausalLM": {Task.CHAT, Task.EMBED, Task.RERANK}, "BertModel": {Task.EMBED, Task.RERANK},
    }  # fmt: skip
    assert "holds a model for embed (BertModel in config.json), but this recipe is for chat" in str(
        misfit(tmp_path, Task.CHAT)
    )


def test_hidden_files_are_not_listed_and_large_ones_not_read(tmp_path: Path) -> None:
    (tmp_path / "1_Pooling").mkdir()
    for name in ("._model.safetensors", "config.json", "1_Pooling/config.json", "1_Pooling/.hidden"):
        (tmp_path / name).write_text("{}")
    for name, size in (("a.txt", SMALL), ("b.txt", SMALL + 1)):
        with (tmp_path / name).open("wb") as file:
            file.truncate(size)
    listing = list_folder(tmp_path)
    assert listing.sizes.keys() == {"config.json", "1_Pooling/config.json", "a.txt", "b.txt"}
    assert (len(listing.text("a.txt")), listing.text("b.txt")) == (SMALL, "")


@pytest.mark.parametrize(
    ("small", "large", "read"),
    [
        ({}, ["model.bin"], ["model.bin"]),
        ({}, ["model.bin", "a.safetensors"], ["a.safetensors"]),
        ({}, ["b.safetensors", "a.safetensors", "consolidated.safetensors", "adapter_model.safetensors"],
         ["a.safetensors", "b.safetensors"]),
        ({}, ["a.safetensors", "model.safetensors"], ["model.safetensors"]),
        ({"model.safetensors.index.json": {"weight_map": {"x": "b.safetensors", "y": "missing.safetensors"}}},
         ["a.safetensors", "b.safetensors"], ["b.safetensors"]),
        ({}, ["model.safetensors", "2_Dense/model.safetensors", "2_Dense/other.safetensors", "a/b/model.safetensors",
              "onnx/model.safetensors"], ["model.safetensors", "2_Dense/model.safetensors"]),
    ],
)  # fmt: skip
def test_which_files_of_weights_an_engine_reads(small: dict[str, object], large: list[str], read: list[str]) -> None:
    assert weight_files(listing_of(small, dict.fromkeys(large, 9))) == read
