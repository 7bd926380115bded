"""Describe GGUF files, and convert them to what vLLM reads.

Describing runs in a separate process, `python -m launch.conversion.gguf PARENT MEMORY FILE`. Both use transformers'
reader, which dequantizes to bfloat16.
"""

import json
import os
import resource
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import Any

import msgspec
import psutil

from launch.conversion.gguf_settings import begins_with_token, left_out_settings, split_as_trained, value_of
from launch.files.gguf import read_header
from launch.files.listing import Listing, RepositoryListing, read_beginning
from models.process_control import die_with_parent
from models.sources.repository import files_of, missing_bytes
from models.sources.resolve import Fetched
from registry.base.child import PACKAGES, with_our_packages
from registry.base.importing import TRAINING, fast_imports
from registry.base.limits import limit
from registry.base.wording import size_words
from registry.errors import DoesNotFit, EngineFailed, Unfit
from registry.files import git_lfs
from registry.recipes.fields import GgufSource

BYTES = 2
"""Bytes of a bfloat16 value."""
WORKING_BYTES = 7
"""Bytes of memory for each value during conversion: as float32, in the network, and in the saver's copy."""
SECONDS, PROCESSOR_SECONDS = 900.0, 180
"""Longest time to describe a file, whose vocabulary is read value by value; and longest CPU time."""
MEMORY = 4 << 30
"""Memory of the process that describes a file. 262,000 tokens with 514,000 merges take 1.9 GB of it."""
HEADER = 1 << 20
LARGEST_HEADER = 64 << 20
"""Largest header in bytes. A vocabulary of 260,000 tokens takes about 10 MiB."""


NO_NETWORKS = {"general", "tokenizer"}
"""Names in transformers' table that are no architectures."""


class GgufDescription(msgspec.Struct, frozen=True):
    config: dict[str, Any] = {}
    template: str = ""
    parameters: int = 0
    begins: bool = False
    """Whether texts begin with a token of their own."""
    fault: str = ""
    """The fault and its remedy; '' if none."""


def gguf_of(folder: Path) -> Path | None:
    """Return a folder's GGUF file if it has no other weights. Raises Unfit for several."""
    if any(folder.glob("*.safetensors")) or (folder / "model.bin").is_file():
        return None
    files = sorted(file for file in folder.glob("*.gguf") if file.is_file())
    if len(files) > 1:
        raise Unfit(
            f"{folder} holds {len(files)} GGUF files ({', '.join(file.name for file in files[:5])}): put the one to "
            "serve into a separate folder.",
            code="gguf_not_served",
            param="source",
        )
    return files[0] if files else None


def describe(file: Path, *, quiet: bool = False) -> GgufDescription:
    """Read a file's config and template in a separate process. Blocks for seconds.

    quiet: print no traceback of the libraries. Raises Unfit (gguf_not_served, is_adapter), EngineFailed (check_failed).
    """
    with file.open("rb") as stream:
        beginning = stream.read(HEADER)
    if git_lfs.is_pointer(beginning):
        raise Unfit(f"{file} {git_lfs.FAULT}", code="gguf_not_served", param="source")
    header = read_header(beginning)
    if header and header.kind == "adapter":
        raise Unfit(
            f"{file} is a LoRA adapter in the format of llama.cpp, not a model: register the folder of peft that it "
            "was made from with 'roundhouse adapters add'.",
            code="is_adapter",
            param="source",
        )
    original = f"{header.base}, from which it was made" if header and header.base else "the original, as safetensors"
    command = [sys.executable, "-P", "-m", "launch.conversion.gguf", str(os.getpid()), str(MEMORY), str(file)]
    try:
        done = subprocess.run(
            command,
            cwd=PACKAGES,
            env=with_our_packages(os.environ),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if quiet else None,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise EngineFailed(f"Reading {file} took more than {SECONDS:.0f} s.", code="check_failed") from None
    if done.returncode:
        raise EngineFailed(f"The process that reads {file} was killed.", code="check_failed")
    description = msgspec.json.decode(done.stdout, type=GgufDescription)
    if description.fault:
        raise Unfit(
            f"{file} is a GGUF that cannot be read here: {description.fault} Or add {original}.",
            code="gguf_not_served",
            param="source",
        )
    return description


def listing_of(file: Path, description: GgufDescription) -> Listing:
    """Return a listing of the converted folder, with the files that a proposal reads."""
    texts = {"config.json": json.dumps(description.config), "tokenizer_config.json": "{}", "tokenizer.json": "{}"}
    if description.template:
        texts["chat_template.jinja"] = description.template
    sizes = {name: len(text.encode()) for name, text in texts.items()}
    sizes["model.safetensors"] = description.parameters * BYTES
    return Listing(str(file), sizes, lambda name: texts[name].encode())


def look(source: GgufSource) -> RepositoryListing:
    """Describe a file on a hub from its header only. Raises as `describe` and `files_of`."""
    repository = files_of(source)
    pinned = source.model_copy(update={"revision": repository.commit})
    where = Path(source.hub) / source.file
    with TemporaryDirectory() as folder:
        file = Path(folder) / where.name
        file.write_bytes(read_beginning(pinned, source.file, LARGEST_HEADER))
        os.truncate(file, repository.files[source.file].size)
        try:
            description = describe(file)
        except Unfit as unfit:
            raise Unfit(unfit.message.replace(str(file), str(where)), code=unfit.code, param=unfit.param) from None
    return RepositoryListing(pinned, listing_of(where, description), missing_bytes(pinned, repository))


def conversion_note(listing: Listing) -> str:
    """Return a note on the disk and memory needed to convert a listed file."""
    size = listing.sizes["model.safetensors"]
    memory = size_words(size // BYTES * WORKING_BYTES)
    return f"The GGUF is converted to bfloat16 once: {size_words(size)} on disk, {memory} of memory meanwhile."


def convert(file: Path, out: Path, report: Fetched) -> None:
    """Convert a GGUF's model to bfloat16. Raises Unfit, DoesNotFit, and libraries' errors.

    Args:
        report: called with the bytes done and the total.
    """
    with _parsed_once():
        network, tokenizer = _load(file, report)
    network.save_pretrained(str(out), max_shard_size="4GB")
    tokenizer.save_pretrained(str(out))


@contextmanager
def _parsed_once() -> Iterator[None]:
    """Let libraries parse a file and name its tensors only once in the block.

    transformers parses the file at each step, 3.5 s for 49,000 tokens, and makes the map of names for every module.
    """
    if find_spec("gguf") is None:  # which is reported by `_read`
        yield
        return
    with fast_imports(*TRAINING):
        import gguf
    originals = {name: getattr(gguf, name) for name in ("GGUFReader", "get_tensor_name_map")}
    for name, original in originals.items():
        setattr(gguf, name, cache(original))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(gguf, name, original)


def _load(file: Path, report: Fetched) -> tuple[Any, Any]:
    """Return a GGUF's network in bfloat16, and its tokenizer. Raises as `convert`."""
    import torch
    from gguf import GGUFReader
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig, modeling_gguf_pytorch_utils

    description = _read(file)
    if description.fault:
        raise Unfit(f"{file}: {description.fault}", code="gguf_not_served")
    needed, free = description.parameters * WORKING_BYTES, psutil.virtual_memory().available
    if needed > free:
        raise DoesNotFit(
            f"Converting {file} takes {size_words(needed)} of memory, and {size_words(free)} are free. Convert it on a "
            "larger machine, or add the original as safetensors."
        )
    plain = {"quantization_config": GgufConfig(dequantize=True)}
    named = {"gguf_file": file.name, "local_files_only": True}
    # the reader reports progress only through tqdm
    modeling_gguf_pytorch_utils.tqdm = _counted(report, description.parameters * BYTES)
    network, info = AutoModelForCausalLM.from_pretrained(
        str(file.parent),
        config=AutoConfig.for_model(**description.config),
        dtype=torch.bfloat16,
        output_loading_info=True,
        **plain,
        **named,
    )
    if missing := sorted(info["missing_keys"]):
        raise Unfit(
            f"{file} lacks {len(missing)} of the weights of a {type(network).__name__}, such as {missing[0]}. "
            "Without them the model would answer at random: add the original, as safetensors.",
            code="bad_weights",
        )
    reader = GGUFReader(str(file))
    if unread := _unread_biases(reader, network):
        raise Unfit(
            f"{file} has {len(unread)} biases that a {type(network).__name__} made from it lacks, such as {unread[0]}. "
            "Without them its answers would differ: add the original, as safetensors.",
            code="bad_weights",
        )
    for owner, name in ((network.config, "quantization_config"), (network, "hf_quantizer")):
        if hasattr(owner, name):  # it is not quantized any more
            delattr(owner, name)
    tokenizer = AutoTokenizer.from_pretrained(str(file.parent), add_bos_token=description.begins, **named)
    split_as_trained(reader, tokenizer.backend_tokenizer)
    tokenizer.chat_template = description.template or tokenizer.chat_template
    return network, tokenizer


def _unread_biases(reader: Any, network: Any) -> list[str]:
    """Return the biases that transformers' reader left out, because its config has none there."""
    from transformers.integrations.gguf.utils import is_gguf_arch_supported
    from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor, get_gguf_hf_weights_map

    architecture = str(value_of(reader, "general.architecture"))
    if is_gguf_arch_supported(architecture):  # read by other code, which reports what it leaves out
        return []
    processor = TENSOR_PROCESSORS.get(architecture, TensorProcessor)(network.config.to_dict())
    read = get_gguf_hf_weights_map(network, processor)
    biases = (tensor.name for tensor in reader.tensors if tensor.name.endswith(".bias"))
    return sorted(name for name in biases if name not in read and "_exps." not in name)


def _counted(report: Fetched, total: int) -> Callable[..., Iterator[Any]]:
    """Return a replacement for tqdm that reports the bytes of the tensors read."""

    def tensors(items: Iterable[Any], **_: object) -> Iterator[Any]:
        done = 0
        for tensor in items:
            yield tensor
            done += int(tensor.n_elements) * BYTES
            report(done, total)

    return tensors


def _read(file: Path) -> GgufDescription:
    if find_spec("gguf") is None:
        return GgufDescription(fault="the package gguf is not installed: pip install gguf.")
    with fast_imports(*TRAINING):
        from gguf import GGUFReader
        from transformers import AutoConfig
        from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES, load_gguf_checkpoint
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    known = f"Known are {', '.join(sorted(set(map(str, GGUF_SUPPORTED_ARCHITECTURES)) - NO_NETWORKS))}."
    try:
        loaded = load_gguf_checkpoint(str(file), return_tensors=False)
        reader = GGUFReader(str(file))
    except Exception as error:  # two libraries raise many kinds
        traceback.print_exc()
        return GgufDescription(fault=f"{type(error).__name__}: {str(error)[:200].rstrip('.')}. {known}")
    config = dict(loaded["config"])
    kind = str(config.get("model_type"))
    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return GgufDescription(fault=f"its architecture {kind} writes no text. {known}")
    try:
        config |= left_out_settings(reader, config)
    except Unfit as unfit:
        return GgufDescription(fault=unfit.message)
    whole = AutoConfig.for_model(**config).to_dict()
    whole |= {"architectures": [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind]], "dtype": "bfloat16"}
    return GgufDescription(
        json.loads(json.dumps(whole, default=str)),
        str(value_of(reader, "tokenizer.chat_template") or ""),
        sum(int(tensor.n_elements) for tensor in reader.tensors),
        begins_with_token(reader),
    )


def main() -> None:
    """Describe the file named by the last argument. Ends early if the parent process ends."""
    die_with_parent(int(sys.argv[1]))
    limit(resource.RLIMIT_CPU, PROCESSOR_SECONDS, for_good=True)
    answers = os.dup(1)
    os.dup2(2, 1)  # only the answer may go to the pipe

    def answer(description: GgufDescription) -> None:
        os.write(answers, msgspec.json.encode(description))

    ended = Event()
    Thread(target=_watch_memory, args=(int(sys.argv[2]), ended, answer), daemon=True).start()
    with _parsed_once():
        description = _read(Path(sys.argv[3]))
    ended.set()
    answer(description)


def _watch_memory(most: int, ended: Event, answer: Callable[[GgufDescription], None]) -> None:
    """End this process with a fault once it has more than `most` bytes of its own in memory.

    A limit of the system would not do: CPython 3.11 loops for ever if it lacks the memory to handle a MemoryError.
    """
    process = psutil.Process()
    while not ended.wait(0.1):
        memory = process.memory_info()
        if memory.rss - memory.shared > most:
            answer(GgufDescription(fault="its header takes more memory to read than that of any known model."))
            os._exit(0)


if __name__ == "__main__":
    main()
