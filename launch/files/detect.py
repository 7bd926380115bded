"""Detect from a listing what kind of model a folder or repository holds. Pure.

1. an adapter                      refused: `adapters add`
2. a trainer's output folder       refused: the checkpoint inside is named
3. GGUF, GGML, pickles, ONNX       refused: the original repository is named, if its files give it
4. CTranslate2 (model.bin)         Whisper: transcribe; others refused
5. sentence-transformers' modules  embed, or rerank for a CrossEncoder; sparse, static and ColBERT's refused
6. config.json architectures       Whisper: transcribe, after a conversion; one score: rerank; an encoder: embed;
                                   architectures of the installed vLLM: chat
7. anything else                   refused, with a list of the files
"""

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from launch.conversion.gguf import gguf_of
from launch.files.gguf import read_header
from launch.files.listing import INDEX, Listing, list_folder, weight_files
from models.chat.vllm import source as vllm_source
from models.estimate import ODD
from models.sources.repository import is_included
from registry.base.wording import nearest
from registry.errors import Unfit
from registry.files.shape import nested_configs
from registry.files.sources import something_else
from registry.recipes.definition import Task

WEIGHTS = ".safetensors"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".msgpack", ".h5")
CHECKPOINT = re.compile(r"^checkpoint-(\d+)/")
OTHER_TASKS = frozenset({"SEQ_CLS", "TOKEN_CLS", "QUESTION_ANS", "FEATURE_EXTRACTION", "SEQ_2_SEQ_LM"})
"""Values of `task_type` in adapters for models other than chat models."""
SPEECH = re.compile(r"ForCTC\Z|SpeechSeq2Seq|^(Moonshine|Speech|Seamless|Wav2Vec2|Hubert|WavLM)")
WRITES = re.compile(r"For(CausalLM|ConditionalGeneration)|LMHead")
CROSS_ENCODER, SPARSE, MULTI_VECTOR = "CrossEncoder", "SparseEncoder", "MultiVectorEncoder"
NO_TRANSFORMER = frozenset({"StaticEmbedding", "CLIPModel", "WordEmbeddings", "BoW"})
"""First steps in modules.json whose inputs are not the tokens of one text."""
ROUTED = frozenset({"Router", "Asym"})
"""Steps that differ between queries and documents."""
BASE = re.compile(r"^base_model:\s*(?:- *)?([\w.-]+/[\w.-]+) *$", re.MULTILINE)
RANKS = re.compile(r"^pipeline_tag: *text-ranking *$", re.MULTILINE)
"""BASE and RANKS are in the metadata of a model card."""
HALF_WHISPERS = frozenset({"WhisperForAudioClassification", "WhisperForCausalLM"})
"""An encoder that classifies, or a decoder that drafts for a larger model."""
IMAGE_PACKAGE = "torchvision"
"""The package for images, which is not installed for CPUs."""
CT2_WHISPER = frozenset({"suppress_ids", "suppress_ids_begin", "lang_ids", "alignment_heads"})
"""Keys of the config.json that CTranslate2 writes for a Whisper."""
ENCODERS = re.compile(
    r"^(Bert|Roberta|XLMRoberta|Camembert|MPNet|DistilBert|Deberta|DebertaV2|Electra|Albert|NomicBert|ModernBert|"
    r"New|Gte|JinaBert|NeoBERT|EuroBert|T5Encoder|Xmod|BGEM3)Model\Z"
)


@dataclass(frozen=True, slots=True)
class Detection:
    task: Task
    engine: str
    architecture: str
    """First of `architectures` in config.json; '' if there is none."""
    why: str
    """The reason, for people."""
    convert: bool = False
    """Whether it must be converted to CTranslate2 first."""
    notes: tuple[str, ...] = ()


def detect(listing: Listing) -> Detection:
    """Detect what the files are. Raises Unfit, with advice."""
    _refuse_adapter(listing)
    _refuse_trainer_output(listing)
    if detection := _ctranslate2(listing):
        return detection
    _refuse_without_weights(listing)
    config = listing.json("config.json")
    detection = _sentence_transformers(listing) or _by_architecture(listing, config)
    if detection.task is not Task.CHAT and isinstance(config.get("quantization_config"), dict):
        # converted or read without its scales, it would answer, but wrongly
        raise Unfit(
            f"{listing.where} is quantized, which is supported only for chat models: add the original.",
            code="quantized",
            param="source",
        )
    return detection


# --- files that are not a model --------------------------------------------------------------------------------------
def _own_weights(listing: Listing) -> list[str]:
    return [name for name in listing.names(WEIGHTS) if not name.startswith("adapter_")]


def _refuse_adapter(listing: Listing) -> None:
    if "adapter_config.json" not in listing or _own_weights(listing):
        return
    config = listing.json("adapter_config.json")
    base = str(config.get("base_model_name_or_path") or "")
    for_base = f" for {base}" if base else ""
    if config.get("task_type") in OTHER_TASKS or "whisper" in f"{base} {config.get('auto_mapping')}".lower():
        raise Unfit(
            f"{listing.where} is an adapter{for_base}, and only chat models take adapters: merge it into its model "
            "(peft's merge_and_unload), and add the result.",
            code="is_adapter",
            param="source",
        )
    raise Unfit(
        f"{listing.where} is an adapter{for_base}: roundhouse adapters add NAME {listing.where} --base MODEL.",
        code="is_adapter",
        param="source",
    )


def _refuse_trainer_output(listing: Listing) -> None:
    if _own_weights(listing):
        return
    steps = sorted({int(match[1]) for name in listing.sizes if (match := CHECKPOINT.match(name))})
    if not steps:
        return
    last, where, first = f"checkpoint-{steps[-1]}", listing.where, ""
    if not where.startswith("/"):  # only whole repositories can be named on a hub
        where = f"./{where.rpartition('/')[2]}"
        at = f" --revision {listing.revision}" if listing.revision else ""
        first = f", once it is here: hf download {listing.where}{at} --include '{last}/*' --local-dir {where}"
    if f"{last}/adapter_config.json" in listing:
        what = f"the adapter is in {last}: roundhouse adapters add NAME {where}/{last} --base MODEL{first}"
    else:
        what = f"the model is in {last}: roundhouse models add {where}/{last}{first}"
    raise Unfit(f"{listing.where} is a trainer's output folder; {what}.", code="is_trainer_output", param="source")


def _refuse_without_weights(listing: Listing) -> None:
    if listing.bytes_of(WEIGHTS):
        return
    if ggufs := listing.names(".gguf"):
        header = read_header(listing.read(ggufs[0]))
        what = f" ({header.architecture})" if header else ""
        base = f"{header.base}, from which it was made" if header and header.base else "the original, as safetensors"
        raise Unfit(
            f"{listing.where} holds {'a GGUF' if len(ggufs) == 1 else 'GGUF files'}{what}: add {base}, or name the "
            f"file, such as {listing.where}/{ggufs[0]}.",
            code="gguf_not_served",
            param="source",
        )
    if ggmls := [name for name in listing.names(".bin") if name.startswith("ggml-")]:
        raise Unfit(
            f"{listing.where} holds whisper.cpp's {ggmls[0]}, which no engine here reads: add the original, such as "
            "openai/whisper-small.",
            code="gguf_not_served",
            param="source",
        )
    if pickles := [name for name in listing.names(*PICKLES) if name != "training_args.bin"]:
        first = next((name for name in pickles if name.startswith("pytorch_model")), pickles[0])
        waiting = (
            "" if listing.where.startswith("/") else f"; a hub's may wait in a pull request: {listing.where}@refs/pr/N"
        )
        raise Unfit(
            f"{listing.where} has its weights only as {first}, which can run code when it is read: convert them "
            f"to safetensors, or look for a repository or revision that has them{waiting}.",
            code="bad_weights",
            param="source",
        )
    if any(name.endswith(".onnx") for name in listing.sizes):
        base_match = BASE.search(listing.text("README.md"))
        original = f"{base_match[1]}, from which it was made" if base_match else "the original, as safetensors"
        raise Unfit(
            f"{listing.where} has its weights only as ONNX, which no engine here reads: add {original}.",
            code="bad_weights",
            param="source",
        )
    present = ", ".join(listing.names("")[:6]) or "nothing"
    raise Unfit(
        f"{listing.where} holds no model: there are no weights as safetensors, but {present}.",
        code="not_a_model",
        param="source",
    )


# --- files that are a model ------------------------------------------------------------------------------------------
def _ctranslate2(listing: Listing) -> Detection | None:
    if "model.bin" not in listing or listing.names(WEIGHTS):
        return None
    config = listing.json("config.json")
    if CT2_WHISPER & config.keys():
        if "tokenizer.json" not in listing:
            raise Unfit(
                f"{listing.where} has no tokenizer.json, without which it cannot be loaded: copy it from the Whisper "
                "that it was made from, or add that one.",
                code="bad_config",
                param="source",
            )
        if "vocabulary.json" not in listing and "vocabulary.txt" not in listing:
            raise Unfit(
                f"{listing.where} has no vocabulary.json (nor vocabulary.txt), which CTranslate2 writes with its "
                "model.bin: copy the whole folder, or add the Whisper that it was made from.",
                code="bad_config",
                param="source",
            )
        why = "model.bin of CTranslate2, with Whisper's config.json"
        return Detection(Task.TRANSCRIBE, "faster-whisper", "", why)
    if any(name.startswith("vocabulary") for name in listing.sizes):
        raise Unfit(
            f"{listing.where} is a CTranslate2 model other than Whisper: only Whisper is served that way.",
            code="not_whisper",
            param="source",
        )
    return None


def _sentence_transformers(listing: Listing) -> Detection | None:
    if "modules.json" not in listing and "config_sentence_transformers.json" not in listing:
        return None
    kind = str(listing.json("config_sentence_transformers.json").get("model_type") or "")
    types = [kind for kind, _ in listing.steps()]
    architecture = _architecture(listing.json("config.json"))
    if kind == SPARSE or any("sparse_encoder" in kind for kind in types):
        raise Unfit(
            f"{listing.where} makes sparse vectors, which are not served: add a model with dense ones.",
            code="sparse_encoder",
            param="source",
        )
    if kind == MULTI_VECTOR or any("multi_vector_encoder" in kind or kind.startswith("pylate.") for kind in types):
        raise Unfit(
            f"{listing.where} makes a vector for each token (ColBERT), which is not served: add a model with one "
            "for each text.",
            code="unknown_architecture",
            param="source",
        )
    if "message" in (listing.json("sentence_bert_config.json").get("modality_config") or ()):
        raise Unfit(
            f"{listing.where} writes each text into its chat template first (modality_config in "
            "sentence_bert_config.json), which is not supported: add a model for plain texts.",
            code="unknown_architecture",
            param="source",
        )
    if kind == CROSS_ENCODER or any("cross_encoder" in kind for kind in types):
        _refuse_classes(listing, listing.json("config.json"))
        return Detection(Task.RERANK, "sentence-transformers", architecture, "sentence-transformers' CrossEncoder")
    if "modules.json" not in listing:
        return None
    steps = [kind.rpartition(".")[2] for kind in types]
    if steps and steps[0] in NO_TRANSFORMER:
        raise Unfit(
            f"{listing.where} begins with {steps[0]} (modules.json); only embedding models that begin with a "
            "Transformer are served: add one of those.",
            code="unknown_architecture",
            param="source",
        )
    if ROUTED.intersection(steps):
        raise Unfit(
            f"{listing.where} has separate steps for queries and for documents (a Router in modules.json), which is "
            "not supported: add a model that treats both alike.",
            code="unknown_architecture",
            param="source",
        )
    if "config.json" not in listing:
        raise Unfit(
            f"{listing.where} has no config.json next to its modules.json: its network is in a folder of its own, as "
            "old versions of sentence-transformers saved it. Save it again, SentenceTransformer(OLD).save(NEW), and "
            "add the result.",
            code="bad_config",
            param="source",
        )
    _refuse_pickled_steps(listing)
    why = f"sentence-transformers' modules.json: {', '.join(steps)}"
    return Detection(Task.EMBED, "sentence-transformers", architecture, why)


def _refuse_pickled_steps(listing: Listing) -> None:
    """Refuse steps that exist only as pickles, such as a Dense after the network.

    Pickles are never fetched from a hub; in a local folder the library reads such a step with safe loading.
    """
    if listing.where.startswith("/"):
        return
    for _, step in listing.steps():
        pickled = f"{step}/pytorch_model.bin"
        if step and pickled in listing and f"{step}/model.safetensors" not in listing:
            raise Unfit(
                f"{listing.where} has the weights of a step only as {pickled}, which can run code when it is read: "
                "convert them to safetensors, or look for a repository or revision that has them.",
                code="bad_weights",
                param="source",
            )


def _architecture(config: dict[str, Any]) -> str:
    names = config.get("architectures")
    return str(names[0]) if isinstance(names, list) and names else ""


def _by_architecture(listing: Listing, config: dict[str, Any]) -> Detection:
    name = _architecture(config)
    source = f"{name} in config.json"
    if "config.json" not in listing:
        raise Unfit(
            f"{listing.where} has weights, but no config.json that says what they are.",
            code="bad_config",
            param="source",
        )
    if not name:
        raise Unfit(
            f"{listing.where} has a config.json without 'architectures', which say what the weights are.",
            code="bad_config",
            param="source",
        )
    if config.get("model_type") == "whisper":
        if name in HALF_WHISPERS:
            raise Unfit(
                f"{listing.where} ({name}) is half a Whisper, which writes no text: add a "
                "WhisperForConditionalGeneration.",
                code="not_whisper",
                param="source",
            )
        if "tokenizer.json" not in listing and not ("vocab.json" in listing and "merges.txt" in listing):
            raise Unfit(
                f"{listing.where} has no tokenizer (tokenizer.json, or vocab.json and merges.txt), as trainers may "
                "leave it: copy the tokenizer's files from the Whisper that it was made from.",
                code="bad_config",
                param="source",
            )
        return Detection(Task.TRANSCRIBE, "faster-whisper", name, f"{source}, converted to CTranslate2", convert=True)
    if name.endswith("ForSequenceClassification"):
        _refuse_classes(listing, config)
        return Detection(Task.RERANK, "sentence-transformers", name, f"{source}, with one score")
    if ENCODERS.match(name):
        return Detection(Task.EMBED, "sentence-transformers", name, source)
    if name.endswith("ForMaskedLM"):
        what = f"({name}) fills in masked words: add an embedding model that was made from one"
        raise Unfit(f"{listing.where} {what}.", code="is_masked_lm", param="source")
    if SPEECH.search(name):
        what = f"({name}) is a speech model other than Whisper, and only Whisper is served: add one"
        raise Unfit(f"{listing.where} {what}.", code="not_whisper", param="source")
    architectures = vllm_source.architectures()
    if architectures and name not in architectures:
        _refuse_architecture(listing, name)
    _refuse_two_models(listing)
    return Detection(Task.CHAT, "vllm", name, source, notes=_chat_notes(listing, config))


def _refuse_two_models(listing: Listing) -> None:
    """Raise Unfit for two sets of weights in one folder.

    vLLM reads the files in an index, or else all files, which overwrite each other; transformers prefers
    model.safetensors. Files that are not fetched from a hub do not matter.
    """
    weights, here = set(weight_files(listing)), listing.where.startswith("/")
    indexed = isinstance(listing.json(INDEX).get("weight_map"), dict)
    candidates = [name for name in listing.names(WEIGHTS) if name == "model.safetensors" or not indexed]
    others = [name for name in candidates if name not in weights and (here or is_included(name))]
    if others and weights and others[0].startswith("adapter_"):
        raise Unfit(
            f"{listing.where} has an adapter ({others[0]}) in addition to {min(weights)}, and vLLM may answer with "
            "parts of both. Merge it (peft's merge_and_unload) and add the result, or keep the two in separate "
            "folders and register the adapter: roundhouse adapters add.",
            code="bad_weights",
            param="source",
        )
    if others and weights:
        where = "" if here else ", in a folder, and add that"
        raise Unfit(
            f"{listing.where} has both {others[0]} and {min(weights)}: nothing says which is the model, and vLLM "
            f"may answer with parts of both. Keep one{where}.",
            code="bad_weights",
            param="source",
        )


def _refuse_classes(listing: Listing, config: dict[str, Any]) -> None:
    if not _architecture(config).endswith("ForSequenceClassification"):
        return
    labels = len(config.get("id2label") or ()) or int(config.get("num_labels") or 2)
    if labels != 1:
        what = f"is a classifier with {labels} labels: a reranker gives one score (Cohere's and Jina's endpoints)"
        raise Unfit(f"{listing.where} {what}.", code="is_classifier", param="source")


def _chat_notes(listing: Listing, config: dict[str, Any]) -> tuple[str, ...]:
    notes = []
    is_built_in = listing.is_tekken() or _architecture(config) in vllm_source.RENDERED
    if not is_built_in and not listing.chat_template():
        notes.append(
            "It has no chat template: a base model continues text (/v1/completions); for /v1/chat/completions set "
            "engine.flags.chat_template."
        )
    if RANKS.search(listing.text("README.md")):
        notes.append(
            "Its card calls it a reranker, but it ranks by the words of its answers, so it is served as a chat model, "
            "not at /v1/rerank. A reranker with a separate score is a ...ForSequenceClassification."
        )
    if any(key in config_part for config_part in nested_configs(config) for key in ("vision_config", "audio_config")):
        notes.append("It also takes images or sound in its own format; only text has been tested here.")
        if find_spec(IMAGE_PACKAGE) is None:
            notes.append(
                f"vLLM needs the package {IMAGE_PACKAGE} for most models that take images, and it is not installed "
                "here: loading would fail, even for text. Install it, or add a text-only model."
            )
    return tuple(notes)


def _refuse_architecture(listing: Listing, name: str) -> NoReturn:
    if version := vllm_source.former().get(name):
        hint = f"vLLM served it until {version}"
    elif plugin := vllm_source.plugin_models().get(name):
        hint = f"a plug-in for vLLM does: {plugin}"
    elif name.endswith(("Model", "Encoder", "ColBERT")):  # the network alone
        hint = "embedding models need sentence-transformers' modules.json"
    elif not WRITES.search(name):
        hint = (
            "models that are served write text (...ForCausalLM), rank by one score (...ForSequenceClassification), "
            "make vectors (sentence-transformers' modules.json), or are Whispers"
        )
    else:
        close = ", ".join(nearest(name, vllm_source.architectures().keys(), 3))
        hint = f"a newer vLLM may; the most similar ones that it has are {close}"
    raise Unfit(
        f"{listing.where} is a {name}, which the installed vLLM does not serve; {hint}.",
        code="unknown_architecture",
        param="source",
    )


TAKES = {Task.EMBED: (Task.CHAT,), Task.RERANK: (Task.CHAT, Task.EMBED)}
"""Tasks whose files also fit another task."""


def misfit(folder: Path, task: Task | None) -> str | None:
    """Return why `folder` holds no model for `task` (None: no adapter), or None if it does."""
    if task is None:
        names = [child.name for child in folder.iterdir()]
        if "adapter_config.json" in names:
            return None
        return f"{folder}: {something_else(names) or 'it holds no adapter: adapter_config.json is missing.'}"
    try:
        if gguf_of(folder) is not None:
            return None if task is Task.CHAT else f"{folder} holds a GGUF, which only chat models are read from"
        detection = detect(list_folder(folder))
    except Unfit as unfit:
        return unfit.message
    except ODD as error:
        return f"{folder}: its files hold impossible values ({type(error).__name__}): check its config.json"
    if detection.task is not task and detection.task not in TAKES.get(task, ()):
        return (
            f"{folder} holds a model for {detection.task.value} ({detection.why}), but this recipe is for {task.value}"
        )
    return None
