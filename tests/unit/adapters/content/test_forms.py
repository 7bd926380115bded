"""Adapters in the layouts of trainers, archives and hubs."""

import json
import shutil
import zipfile
from pathlib import Path, PurePosixPath

import pytest

from adapters.check_process import check
from adapters.content.config import REFUSED
from adapters.content.forms import CONFIG, FOREIGN, INITS, KINDS, TENSORS, is_shadow
from adapters.jobs import CheckAnswer, Job
from adapters.types import Base
from registry.bounds import Bounds
from tests.unit.adapters.makers import write_adapter, write_base


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    folder = write_base(tmp_path_factory.mktemp("base"))
    (folder / "tokenizer.json").write_text(
        json.dumps({"added_tokens": [{"content": "<|end|>"}], "model": {"vocab": {}}})
    )
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    return Base("base", folder, 16)


def judge(source: Path, base: Base, unpack_to: Path | None = None) -> CheckAnswer:
    return check(Job(source=source, base=base, bounds=Bounds(), unpack_to=unpack_to))


def zipped(files: dict[str, Path | bytes], folder: Path) -> tuple[Path, Path]:
    with zipfile.ZipFile(folder / "it.zip", "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content if isinstance(content, bytes) else content.read_bytes())
    (folder / "out").mkdir()
    return folder / "it.zip", folder / "out"


def test_each_form_of_an_archive_gives_the_same_adapter(base: Base, tmp_path: Path) -> None:
    good, other = write_adapter(tmp_path / "good"), write_adapter(tmp_path / "other", seed=1)
    plain = judge(good, base)
    assert plain.outcome == "fit", plain.faults
    both = (CONFIG, TENSORS)
    shadow = b"\0\5\x16\7\0\2\0\0Mac OS X        " + bytes(120)
    mine = {f"legal/{name}": good / name for name in both}
    archives: dict[str, dict[str, Path | bytes]] = {
        "finder": {
            **{key: value for name in both for key, value in
               ((f"legal/{name}", good / name), (f"__MACOSX/legal/._{name}", shadow))},
            "legal/.DS_Store": b"x",
        },
        "trainer": {**{f"legal/checkpoint-10/{name}": other / name for name in both}, **mine},
        "checkpoints first": {
            **{f"checkpoint-10/{name}": other / name for name in both}, **{name: good / name for name in both},
        },
        "one checkpoint": {f"checkpoint-10/{name}": good / name for name in both},
        "tokenizer": {"legal/tokenizer.json": base.path / "tokenizer.json", **mine},
    }  # fmt: skip
    for what, files in archives.items():
        folder = tmp_path / what
        folder.mkdir()
        assert judge(*zipped(files, folder)[:1], base, folder / "out").digest == plain.digest, what


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("mine/._adapter_config.json", True),
        ("mine/.DS_Store", True),
        ("__MACOSX/mine/adapter_config.json", True),
        ("mine/adapter_config.json", False),
    ],
)
def test_files_that_macos_adds_are_known_by_their_names(name: str, is_one: bool) -> None:
    assert is_shadow(PurePosixPath(name)) is is_one


def test_an_archive_of_checkpoints_alone_names_one(base: Base, tmp_path: Path) -> None:
    good = write_adapter(tmp_path / "good")
    archive, out = zipped({f"run/checkpoint-10/{name}": good / name for name in (CONFIG, TENSORS)}, tmp_path)
    assert "in checkpoints, such as 'run/checkpoint-10'" in " ".join(judge(archive, base, out).faults)


def test_pefts_folder_of_a_named_adapter_is_accepted(base: Base, tmp_path: Path) -> None:
    good = write_adapter(tmp_path / "run" / "legal")
    assert judge(tmp_path / "run", base).digest == judge(good, base).digest
    write_adapter(tmp_path / "run" / "medical")
    assert "2 adapters (legal, medical)" in " ".join(judge(tmp_path / "run", base).faults)


def test_links_of_a_hubs_cache_are_followed_and_no_others(base: Base, tmp_path: Path) -> None:
    good = write_adapter(tmp_path / "good")
    repository = tmp_path / "models--team--legal"
    snapshot = repository / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    for number, name in enumerate((CONFIG, TENSORS)):
        shutil.copy(good / name, repository / "blobs" / (str(number) * 64))
        (snapshot / name).symlink_to(f"../../blobs/{str(number) * 64}")
    assert judge(snapshot, base).digest == judge(good, base).digest
    (snapshot / TENSORS).unlink()
    (snapshot / TENSORS).symlink_to(good / TENSORS)
    assert "is a link: only regular files" in " ".join(judge(snapshot, base).faults)


@pytest.mark.parametrize("maker", FOREIGN)
def test_another_trainers_format_is_named(base: Base, tmp_path: Path, maker: str) -> None:
    files = {
        "mlx-lm": "adapters.safetensors", "llama.cpp": "legal-f16.gguf",
        "diffusers": "pytorch_lora_weights.safetensors",
        "torchtune": "adapter_0.pt", "the library adapters (AdapterHub)": "pytorch_adapter.bin",
        "DeepSpeed ZeRO": "zero_to_fp32.py", "FSDP": "__0_0.distcp", "NeMo": "legal.nemo",
    }  # fmt: skip
    (tmp_path / files[maker]).write_bytes(b"x")
    faults = " ".join(judge(tmp_path, base).faults)
    assert f"has the format of {maker}, not of peft" in faults
    assert FOREIGN[maker][1] in faults


@pytest.mark.parametrize("kind", KINDS)
def test_another_kind_of_peft_is_refused_with_the_remedy(base: Base, tmp_path: Path, kind: str) -> None:
    write_adapter(tmp_path / "it", settings={"peft_type": kind})
    faults = " ".join(judge(tmp_path / "it", base).faults)
    assert kind in faults
    assert KINDS[kind] in faults


@pytest.mark.parametrize("setting", REFUSED)
def test_a_setting_that_changes_the_tensors_is_refused_by_name(base: Base, tmp_path: Path, setting: str) -> None:
    write_adapter(tmp_path / "it", settings={setting: ["x"]})
    assert REFUSED[setting] in " ".join(judge(tmp_path / "it", base).faults)


@pytest.mark.parametrize("init", [*INITS, "pissa_niter_4"])
def test_an_initialisation_that_changes_the_base_is_refused_with_its_remedy(
    base: Base, tmp_path: Path, init: str
) -> None:
    write_adapter(tmp_path / "it", settings={"init_lora_weights": init})
    faults = " ".join(judge(tmp_path / "it", base).faults)
    assert f"init_lora_weights is '{init}'" in faults
    assert INITS[init.partition("_niter")[0]] in faults


def test_a_pointer_of_git_lfs_says_what_to_run(base: Base, tmp_path: Path) -> None:
    write_adapter(tmp_path / "it")
    (tmp_path / "it" / TENSORS).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 12\n")
    assert "run 'git lfs pull'" in " ".join(judge(tmp_path / "it", base).faults)


def test_an_mlx_adapter_is_named(base: Base, tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text(json.dumps({"fine_tune_type": "lora", "lora_parameters": {"rank": 8}}))
    (tmp_path / "adapters.safetensors").write_bytes(b"x")
    assert "has the format of mlx-lm" in " ".join(judge(tmp_path, base).faults)


@pytest.mark.parametrize(
    ("named", "has_note"),
    [("Qwen/Qwen2.5-7B", True), ("meta-llama/Llama-3.2-1B", False), ("acme/own", False), ("TinyLlama/x-llama", False)],
)
def test_a_base_of_another_family_is_noted(base: Base, tmp_path: Path, named: str, has_note: bool) -> None:
    write_adapter(tmp_path / "it", settings={"base_model_name_or_path": named})
    notes = " ".join(judge(tmp_path / "it", base).notes)
    assert (f"names {named} as its base, but this model is a llama" in notes) is has_note


def test_halves_b_of_zeros_are_noted(base: Base, tmp_path: Path) -> None:
    write_adapter(tmp_path / "it", change=lambda weights: [t.zero_() for n, t in weights.items() if ".lora_B" in n])
    assert "All lora_B are zero" in " ".join(judge(tmp_path / "it", base).notes)
