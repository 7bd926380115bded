"""What is kept between imports is what the libraries themselves answer."""

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from models import import_answers

IMPORT = """
import json, sys
read = []
sys.addaudithook(lambda event, args: read.append(str(args[0])) if event == "open" else None)
if sys.argv[1] == "kept":
    from models import importing
    with importing.quickly():
        import transformers
else:
    import transformers
from transformers.utils import import_utils
models = transformers.models
print(json.dumps({
    "names": sorted(dir(transformers)),
    "modules": {name: transformers._class_to_module[name] for name in sorted(transformers._class_to_module)},
    "of models": {name: models._class_to_module[name] for name in sorted(models._class_to_module)},
    "missing": {name: sorted(needs) for name, needs in sorted(transformers._object_missing_backend.items())},
    "packages": {name: sorted(of) for name, of in import_utils.PACKAGE_DISTRIBUTION_MAPPING.items()},
    "class": transformers.LlamaConfig.__module__,
    "loader": type(import_utils.__spec__.loader).__mro__[-4:][0].__name__,
    "read": sum("/transformers/models/" in path and path.endswith(".py") for path in read),
}))
"""


def imported(how: str, cache: Path) -> dict[str, object]:
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    command = [sys.executable, "-c", IMPORT, how]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=110, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


@pytest.mark.timeout(300)
def test_transformers_is_the_same_with_kept_answers(tmp_path: Path) -> None:
    plain, first, second = (imported(how, tmp_path) for how in ("plain", "kept", "kept"))
    read = [answer.pop("read") for answer in (plain, first, second)]
    assert plain == first == second
    first_read, second_read, third_read = (int(str(number)) for number in read)
    assert first_read > 1000, "transformers no longer reads its model files: nothing has to be kept"
    assert second_read <= first_read / 2 + 100, "once, not twice"
    assert third_read < 100, "not at all"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "roundhouse" / "imports"


def asked(*answers: object) -> list[object]:
    """What comes back when a question is asked once per answer: of 1, 1, 2, 2 ..."""
    return [import_answers.answer("q", i // 2, lambda found=found: found) for i, found in enumerate(answers)]


def test_an_answer_is_kept_until_what_it_is_of_changes() -> None:
    assert asked("a", "b", "c", "d") == ["a", "a", "c", "c"]


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"of": 0}', '{"answer": 1}', "\udcff"])
def test_a_spoilt_file_is_written_again(cache: Path, text: str) -> None:
    asked("a")
    [file] = cache.iterdir()
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert asked("b", "c") == ["b", "b"]


def test_nothing_is_read_from_a_folder_that_others_can_write_to(cache: Path) -> None:
    asked("a")
    cache.chmod(0o777)
    assert asked("b") == ["b"]
    cache.chmod(0o700)
    assert asked("c") == ["a"]


def test_a_folder_that_cannot_be_made_is_no_fault(cache: Path) -> None:
    cache.parent.mkdir()
    cache.write_text("a file")
    assert asked("a", "b") == ["a", "b"]


def test_what_the_library_raises_is_raised_once(cache: Path) -> None:
    calls = []

    def ask() -> None:
        calls.append(1)
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        import_answers.answer("q", 0, ask)
    assert len(calls) == 1


def test_a_change_of_a_file_changes_the_fingerprint(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    (folder / "llama").mkdir(parents=True)
    file = folder / "llama" / "modeling_llama.py"
    file.write_text("a")
    seen = [import_answers.fingerprint(str(folder))]
    assert import_answers.fingerprint(str(folder)) == seen[0]
    (folder / "llama" / "__pycache__").mkdir()
    (folder / "llama" / "__pycache__" / "x.py").write_text("no source")
    assert import_answers.fingerprint(str(folder)) == seen[0]
    for change in (
        lambda: file.write_text("bb"),
        lambda: os.utime(file, (1, 1)),
        lambda: file.rename(file.with_name("modeling_b.py")),
        lambda: (folder / "new.py").touch(),
    ):
        change()
        seen.append(import_answers.fingerprint(str(folder)))
    assert len(set(seen)) == 5


def test_packages_are_asked_again_when_there_is_another_distribution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    before = import_answers.packages_distributions(importlib.metadata.packages_distributions)
    assert before["pytest"] == importlib.metadata.packages_distributions()["pytest"]
    (tmp_path / "new-1.dist-info").mkdir()
    (tmp_path / "new-1.dist-info" / "METADATA").write_text("Name: new\nVersion: 1\n")
    (tmp_path / "new-1.dist-info" / "top_level.txt").write_text("new_package\n")
    after = import_answers.packages_distributions(importlib.metadata.packages_distributions)
    assert after["new_package"] == ["new"]
    assert "new_package" not in before
    with_nothing_new = import_answers.packages_distributions(lambda: {})
    assert with_nothing_new == after


def test_other_folders_than_that_of_all_models_are_the_librarys(tmp_path: Path) -> None:
    asked_for = []

    def ask(path: object, prefix: object = None) -> import_answers.Structure:
        asked_for.append((path, prefix))
        return {frozenset(): {"a": {"A"}}}

    define = import_answers.import_structures(ask)
    models = tmp_path / "transformers" / "models"
    (models / "llama").mkdir(parents=True)
    (models / "__init__.py").touch()
    assert define(models / "llama" / "__init__.py", prefix="x") == {frozenset(): {"a": {"A"}}}
    assert define(str(models / "__init__.py")) == {frozenset(): {"a": {"A"}}}
    assert define(models, prefix="models") == {frozenset(): {"models.a": {"A"}}}
    assert asked_for == [(models / "llama" / "__init__.py", "x"), (str(models), None)]
