"""Handle settings and weights that a model's files lack and the library silently assumes."""

import contextlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from registry.base.json import read_object
from registry.errors import EngineFailed, Unfit


@contextlib.contextmanager
def collect_missing_weights() -> Iterator[set[str]]:
    """Collect weights that no file has, which transformers initialises at random.

    Within this context, loading raises Unfit for weights of other shapes or of more layers than config.json has.
    """
    from transformers import PreTrainedModel

    missing: set[str] = set()
    own = PreTrainedModel.__dict__["from_pretrained"]

    def from_pretrained(kind: Any, *arguments: Any, **named: Any) -> Any:
        with_info = named.pop("output_loading_info", False)
        named["ignore_mismatched_sizes"] = True  # transformers' own error does not say which
        model, info = own.__func__(kind, *arguments, output_loading_info=True, **named)
        _refuse_other_sizes(info["mismatched_keys"])
        _refuse_further_layers(info["unexpected_keys"], model)
        missing.update(info["missing_keys"])
        return (model, info) if with_info else model

    PreTrainedModel.from_pretrained = classmethod(from_pretrained)
    try:
        yield missing
    finally:
        PreTrainedModel.from_pretrained = own


_LAYER = re.compile(r"(?P<layers>.*\b(?:layers?|blocks?|h))\.(?P<number>\d+)\.")
_CONFIG = "Use the config.json that the weights were saved with"


def _refuse_other_sizes(mismatched: Collection[tuple[str, Sequence[int], Sequence[int]]]) -> None:
    if mismatched:
        name, actual, expected = min(mismatched)
        raise Unfit(
            f"{len(mismatched)} of its weights have other sizes than config.json says, such as {name}: {list(actual)}, "
            f"not {list(expected)}. {_CONFIG}.",
            code="bad_weights",
        )


def _refuse_further_layers(unexpected: Iterable[str], model: Any) -> None:
    """Refuse files with more layers than the network has, or with more in a layer, which transformers ignores."""
    present = {place for name in model.state_dict() if (place := _place(name, model))}
    config = model.config.to_dict()
    drafts = any("nextn" in key or "mtp" in key for key in config)
    for name in sorted(unexpected):
        place = _place(name, model)
        if place in present and name.endswith(".weight"):  # such as BERT's relative positions
            raise Unfit(
                f"its files have {name}, which a {type(model).__name__} of the installed transformers does not have, "
                "and which would be left out. Add a model whose network it has.",
                code="bad_weights",
            )
        if place and not drafts and (place.layers, 0) in present and place not in present:
            raise Unfit(
                f"its files have {name}, of a layer that config.json does not have, and which would be left out. "
                f"{_CONFIG}.",
                code="bad_weights",
            )


class _Place(NamedTuple):
    layers: str
    number: int


def _place(name: str, model: Any) -> _Place | None:
    """Return the layer of a weight; None for those outside of layers."""
    match = _LAYER.match(name)
    return match and _Place(match["layers"].removeprefix(f"{model.base_model_prefix}."), int(match["number"]))


def refuse_missing_weights(missing: Iterable[str], network: str) -> None:
    """Refuse random weights, except BERT's pooler, which embeddings do not use."""
    if unsaved := sorted(key for key in missing if not key.startswith("pooler.")):
        raise EngineFailed(
            f"its files lack {len(unsaved)} of the weights of a {network}, such as {unsaved[0]}, "
            "which would be random: "
            "they were saved under other names, or config.json is another model's"
        )


def refuse_conversion(path: Path, library_class: str) -> None:
    """Refuse files of another kind of model, of which the library would make means over the tokens.

    library_class: the class that is to open them.
    """
    kind = read_object(path / "config_sentence_transformers.json").get("model_type") or library_class
    if library_class == "SentenceTransformer" and kind != library_class:
        raise EngineFailed(
            f"it was saved as a {kind}, so its vectors of texts would be means that it was not trained for: add a "
            "SentenceTransformer" + (", or give its recipe the task rerank" if kind == "CrossEncoder" else "")
        )


def refuse_without_network(model: Any) -> None:
    """Refuse first steps that are no transformer, such as tables of static embeddings."""
    if getattr(model[0], "model", None) is None:
        raise EngineFailed(
            f"it begins with {type(model[0]).__name__}; only models that begin with a Transformer are served: add one "
            "of those"
        )


def refuse_routes(model: Any) -> None:
    """Refuse separate steps for queries and documents, which are not distinguished here."""
    if any(type(module).__name__ in ("Router", "Asym") for module in model):
        raise EngineFailed(
            "it has separate steps for queries and for documents (a Router), which is not supported: add a model that "
            "treats both alike"
        )


def refuse_without_vocabulary(tokenizer: Any, path: Path) -> None:
    """Refuse a missing tokenizer, for which transformers would make an empty one."""
    names = dict(getattr(tokenizer, "vocab_files_names", {}))
    whole = names.pop("tokenizer_file", "tokenizer.json")
    absent = [name for name in names.values() if not (path / name).is_file()]
    if absent and not (path / whole).is_file():
        raise EngineFailed(
            f"it has no {whole}, nor {' and '.join(absent)}, as trainers may leave it: copy the tokenizer's files from "
            "the model that it was made from"
        )


EOS_CLASSES = ("Llama", "CodeLlama", "Gemma", "Cohere")
"""Beginnings of tokenizer classes that added the end of a text by `add_eos_token` when their models were trained."""


def add_stated_ends(tokenizer: Any, path: Path) -> None:
    """Let texts end as tokenizer_config.json says, which transformers 5 ignores if there is a tokenizer.json.

    e5-mistral pools its last token, which was then a text's last word instead of </s>.
    """
    stated = read_object(path / "tokenizer_config.json")
    if stated.get("add_eos_token") is not True or not str(stated.get("tokenizer_class")).startswith(EOS_CLASSES):
        return
    if tokenizer.backend_tokenizer.encode("a").ids[-1:] != [tokenizer.eos_token_id]:
        tokenizer.add_bos_token = bool(stated.get("add_bos_token", True))
        tokenizer.add_eos_token = True


def lend_padding(tokenizer: Any, vocabulary: int) -> None:
    """Give a tokenizer a padding token that the network has, if its own is missing or unknown.

    Without a padding token the library refuses texts; with one that the network lacks, a padded step would read past
    the embeddings. The choice does not matter if padding is masked; see `models.text.loading.padding_of` otherwise.
    """
    if tokenizer is None or (tokenizer.pad_token_id is not None and tokenizer.pad_token_id < vocabulary):
        return
    named = (tokenizer.eos_token_id, tokenizer.sep_token_id, tokenizer.unk_token_id, tokenizer.bos_token_id)
    lent = next((token for token in named if token is not None and token < vocabulary), 0)
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(lent)


def read_plainly(transformer: Any, path: Path) -> None:
    """Keep the library from formatting texts with the chat template of a model's base.

    It does so by default for rerankers saved by other tools, which were trained on plain pairs: Qwen's template has no
    pairs, so nothing could be scored. Raises EngineFailed for a model that was saved for such use.
    """
    modalities = getattr(transformer, "modality_config", {})
    if (method := modalities.get("text", {}).get("method", "forward")) != "forward":
        raise EngineFailed(
            f"its vectors of texts are made by {method}, as in multimodal networks, which is not supported: add a "
            "model for plain texts"
        )
    if "message" not in modalities:
        return
    if "modality_config" in read_object(path / "sentence_bert_config.json"):
        raise EngineFailed(
            "it writes each text into its chat template first (modality_config in sentence_bert_config.json), which "
            "is not supported: add a model for plain texts"
        )
    transformer.modality_config = {name: config for name, config in modalities.items() if name != "message"}
    transformer.input_formatter.supported_modalities = list(transformer.modality_config)


def refuse_other_functions(path: Path) -> None:
    """Refuse a Dense whose activation is not torch's, as it would become a Tanh."""
    try:
        modules = json.loads((path / "modules.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    for module in modules:
        file = path / str(module.get("path") or "") / "config.json"
        if str(module.get("type")).rpartition(".")[2] != "Dense" or not file.is_file():
            continue
        named = str(json.loads(file.read_text(encoding="utf-8")).get("activation_function") or "torch.")
        if not named.startswith("torch."):
            raise EngineFailed(
                f"its step {module['path']} ends in {named}, which is code that would be run: if you trust it, set "
                "engine.flags.trust_remote_code: true"
            )
