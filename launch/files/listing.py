"""Names and sizes of a model's files, and the content of small ones."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from models.sources.repository import Repository, files_of, missing_bytes
from models.sources.resolve import EXCLUDED
from registry.errors import Unfit
from registry.files import git_lfs
from registry.files.shape import QUANTIZATION, nested_configs, with_quantization
from registry.files.sources import TIMEOUT, endpoint, hub_errors
from registry.files.weights import BITS, Weights, chosen_files
from registry.recipes.fields import HubSource

SMALL = 8 * 2**20
"""Largest file that is read as a whole, in bytes. Tokenizers are larger, and not needed."""
MOST_FILES = 10_000
READ = (
    "config.json",
    QUANTIZATION,
    "modules.json",
    "adapter_config.json",
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
    "tokenizer_config.json",
    "generation_config.json",
    "preprocessor_config.json",
    "model.safetensors.index.json",
    "1_Pooling/config.json",
    "vocabulary.json",
    "vocabulary.txt",
    "chat_template.jinja",
    "additional_chat_templates/tool_use.jinja",
    "chat_template.json",
    "README.md",
)
"""All files that detection and proposal read."""


@dataclass(frozen=True)
class Listing:
    """A model's files. `sizes`: path below the root to bytes. `read`: returns a small file."""

    where: str
    """The location, for messages."""
    sizes: Mapping[str, int]
    read: Callable[[str], bytes]
    revision: str = ""
    """The revision of a hub's repository, as requested."""
    _parsed: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        return name in self.sizes

    def names(self, *endings: str) -> list[str]:
        """Return files with these endings in the root folder only."""
        return sorted(name for name in self.sizes if "/" not in name and name.endswith(endings))

    def bytes_of(self, *endings: str) -> int:
        """Return the total size of files with these endings, also in subfolders."""
        return sum(size for name, size in self.sizes.items() if name.endswith(endings))

    def json(self, name: str) -> dict[str, Any]:
        """Return the object in a small file; empty if there is none. Raises Unfit if it is broken.

        config.json also has the quantization that older ModelOpts store in a file of its own.
        """
        if name not in self._parsed:
            content = self._read(name)
            parsed = content if isinstance(content, dict) else {}
            self._parsed[name] = with_quantization(parsed, self.json(QUANTIZATION)) if name == "config.json" else parsed
        return self._parsed[name]

    def array(self, name: str) -> list[Any]:
        """Return the list in a small file; empty if there is none. Raises as `json`."""
        content = self._read(name)
        return content if isinstance(content, list) else []

    def steps(self) -> list[tuple[str, str]]:
        """Return type and folder ('' if not given) of each step in sentence-transformers' modules.json."""
        modules = [module for module in self.array("modules.json") if isinstance(module, dict)]
        return [(str(module.get("type") or ""), str(module.get("path") or "")) for module in modules]

    def chat_template(self) -> str:
        """Return the chat template, preferably the one for tools; '' if there is none.

        It is in a separate file, in the tokenizer's config, or in an older processor's config.
        """
        if own := self.text("additional_chat_templates/tool_use.jinja") or self.text("chat_template.jinja"):
            return own
        templates = (self.json(name).get("chat_template") for name in ("tokenizer_config.json", "chat_template.json"))
        template = next((template for template in templates if template), "")
        if isinstance(template, list):
            named = {str(entry["name"]): entry["template"] for entry in template}
            template = named.get("tool_use") or named.get("default") or ""
        return str(template)

    def has_processor(self) -> bool:
        """Return whether it takes more than text; then vLLM reads chat_template.json."""
        return "preprocessor_config.json" in self or "processor_config.json" in self

    def is_tekken(self) -> bool:
        """Return whether only Mistral's tokenizer (tekken.json) can serve this model.

        transformers converts that file to a tokenizer that splits words differently and has no template.
        """
        return "tekken.json" in self and not ("tokenizer.json" in self and self.chat_template())

    def text(self, name: str) -> str:
        if name not in self.sizes or self.sizes[name] > SMALL:
            return ""
        return self.read(name).decode("utf-8", "replace")

    def _read(self, name: str) -> object:
        text = self.text(name)
        if git_lfs.is_pointer(text[: git_lfs.LENGTH].encode()):
            raise Unfit(f"{name} of {self.where} {git_lfs.FAULT}", code="bad_config")
        try:
            content: object = json.loads(text or "{}")
            # refuse lone surrogates, which neither answers nor recipes can hold
            json.dumps(content, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:
            raise Unfit(f"{name} of {self.where} is broken: {error}", code="bad_config") from None
        return content


def list_folder(folder: Path) -> Listing:
    """List a local folder two levels deep, which is enough for every known layout."""
    sizes: dict[str, int] = {}
    for file in sorted((*folder.glob("*"), *folder.glob("*/*"))):
        if file.is_file() and not file.name.startswith("."):
            sizes[str(file.relative_to(folder))] = file.stat().st_size
        if len(sizes) > MOST_FILES:
            raise Unfit(f"{folder} holds more than {MOST_FILES} files: it is not a model's folder.", code="not_a_model")
    return Listing(str(folder), sizes, lambda name: _read_here(folder / name))


def _read_here(file: Path) -> bytes:
    """Return a small file, or the beginning of a large one, which holds a GGUF's header."""
    with file.open("rb") as opened:
        return opened.read(SMALL)


KINDS: Mapping[str, str] = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64"}
INDEX = "model.safetensors.index.json"


def weights_of(listing: Listing) -> Weights:
    """Estimate weights from file sizes, including headers of a few KB, and config.json's dtype."""
    config = listing.json("config.json")
    kind = KINDS.get(stored_dtype(config), "F32")
    if isinstance(config.get("quantization_config"), dict):
        kind = "I8"  # packed weights are not cast
    files = weight_files(listing)
    size = sum(listing.sizes[name] for name in files)
    hidden, layers = int(config.get("d_model") or 0), int(config.get("decoder_layers") or 0)
    return Weights({kind: size * 8 // BITS[kind]}, (), tuple(files), hidden, layers)


def stored_dtype(config: Mapping[str, Any]) -> str:
    """Return the dtype in config.json, perhaps of the language part only; '' if unknown."""
    return next(
        (
            str(dtype)
            for config_part in nested_configs(config)
            for key in ("dtype", "torch_dtype")
            if (dtype := config_part.get(key))
        ),
        "",
    )


def weight_files(listing: Listing) -> list[str]:
    """Return the files that an engine reads, as `registry.files.weights` does for a folder."""
    if "model.bin" in listing and not listing.names(".safetensors"):
        return ["model.bin"]
    map_ = listing.json(INDEX).get("weight_map")
    if isinstance(map_, dict):
        root = sorted({str(name) for name in map_.values()} & listing.sizes.keys())
    else:
        root = chosen_files(listing.names(".safetensors"))
    below = [name for name in listing.sizes if name.count("/") == 1 and name.endswith("/model.safetensors")]
    return root + sorted(name for name in below if not any(fnmatch(name, pattern) for pattern in EXCLUDED))


HEADER = 2**20


@dataclass(frozen=True, slots=True)
class RepositoryListing:
    source: HubSource
    """At a commit, even if a branch or tag was requested."""
    listing: Listing
    to_fetch: int
    """Bytes that are not in the cache yet."""


def look(source: HubSource) -> RepositoryListing:
    """List `source` on the hub. Raises as `registry.files.sources.hub_errors`."""
    repository = files_of(source)
    pinned = HubSource(hub=source.hub, revision=repository.commit)
    sizes = {name: file.size for name, file in repository.files.items() if not name.startswith(".")}
    small = [name for name in READ if sizes.get(name, SMALL + 1) <= SMALL]
    folder = _fetch_small(pinned, small)
    listing = Listing(source.hub, sizes, lambda name: _read(pinned, folder, name), source.revision)
    large = {name: file for name, file in repository.files.items() if name not in small}
    return RepositoryListing(pinned, listing, missing_bytes(pinned, Repository(repository.commit, large)))


def _fetch_small(source: HubSource, names: list[str]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    with hub_errors(source):
        return Path(
            snapshot_download(
                source.hub, revision=source.revision, allow_patterns=names or ["config.json"], endpoint=endpoint(),
                etag_timeout=TIMEOUT,
            )
        )  # fmt: skip


def _read(source: HubSource, folder: Path, name: str) -> bytes:
    """Return a small file, or the first MiB of a large one, which holds a GGUF's header."""
    if (folder / name).is_file():
        return (folder / name).read_bytes()
    return read_beginning(source, name, HEADER)


def read_beginning(source: HubSource, name: str, most: int) -> bytes:
    """Read the first bytes of a file from the hub. Raises as `hub_errors`."""
    from huggingface_hub import get_session, hf_hub_url
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    url = hf_hub_url(source.hub, name, revision=source.revision, endpoint=endpoint())
    with hub_errors(source), get_session().stream(
        "GET", url, headers={**build_hf_headers(), "Range": f"bytes=0-{most - 1}"}, timeout=TIMEOUT,
        follow_redirects=True,
    ) as response:  # fmt: skip
        response.raise_for_status()
        data = b""
        for part in response.iter_bytes():
            data += part
            if len(data) >= most:
                break
        return data[:most]
