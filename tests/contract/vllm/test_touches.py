"""The private parts of vLLM that Roundhouse uses are there, as they were when the code that uses them was written."""

import ast
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

from models.chat.vllm import launch, source
from models.chat.vllm.touches import PARSED, TOUCHES, VllmPatch
from registry import vllm_source
from tests.contract.vllm import touch_scan
from tests.contract.vllm.stock import stock

pytestmark = pytest.mark.real
ROOMS = ("registry", "adapters", "models", "tenants", "routing", "batches", "launch", "console", "fleet", "runtime")
ROOT = Path(__file__).parents[3]
EXTRA = {"args"}
"""Names in the same files that are no flags."""


def set_in_code(kind: type, name: str) -> bool:
    """Return whether a class or one of its bases declares `name` or sets it on `self`."""
    for one in kind.__mro__[:-1]:
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(one)))):
            targets = (
                node.targets
                if isinstance(node, ast.Assign)
                else [node.target]
                if isinstance(node, ast.AnnAssign)
                else []
            )
            for target in targets:
                if isinstance(target, ast.Name) and target.id == name:
                    return True
                if isinstance(target, ast.Attribute) and target.attr == name and is_self(target.value):
                    return True
    return False


def is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def missing(touch: VllmPatch) -> str:
    """Return what has changed in a fresh, unpatched copy of the module, or ''."""
    module, _, path = touch.where.partition(":")
    *classes, name = path.split(".")
    owner: Any = stock(module)
    for one in classes:
        owner = getattr(owner, one, None)
        if owner is None:
            return f"no {one}"
    found = inspect.getattr_static(owner, name, None)
    if found is None:
        is_set = isinstance(owner, type) and set_in_code_of(module, classes[-1], name)
        return "" if is_set else f"no {name}"
    expected = touch.takes.split()
    takes = list(inspect.signature(getattr(owner, name)).parameters)[: len(expected)] if expected else []
    return "" if takes == expected else f"{name} takes {takes}"


def set_in_code_of(module: str, kind: str, name: str) -> bool:
    from importlib import import_module

    return set_in_code(getattr(import_module(module), kind), name)


@pytest.mark.parametrize("touch", TOUCHES, ids=lambda touch: touch.where)
def test_each_private_name_is_unchanged(touch: VllmPatch) -> None:
    assert missing(touch) == ""
    assert (ROOT / touch.test).is_file()


@pytest.mark.parametrize(("file", "name"), [(file, name) for file, names in PARSED.items() for name in names])
def test_names_that_are_read_from_vllms_source_are_there(file: str, name: str) -> None:
    root = vllm_source.root()
    assert root is not None
    body = ast.parse((root / file).read_text()).body
    targets = [one for node in body if isinstance(node, ast.Assign) for one in node.targets]
    targets += [node.target for node in body if isinstance(node, ast.AnnAssign)]
    assert name in [target.id for target in targets if isinstance(target, ast.Name)]


def test_an_architecture_is_found_as_vllm_finds_it() -> None:
    """With the same module and class that vLLM would import."""
    from vllm.model_executor.models import ModelRegistry

    known = {name: source.class_of(name) for name in source.architectures()}
    fresh = stock("vllm.model_executor.models.registry").ModelRegistry.models
    assert len(known) > 100
    assert {name: (fresh[name].module_name, fresh[name].class_name) for name in known} == known
    assert known.keys() <= set(ModelRegistry.get_supported_archs())
    assert source.class_of("NobodysForCausalLM") is None


def test_missing_and_changed_names_are_reported() -> None:
    def fault(where: str, takes: str = "") -> str:
        return missing(VllmPatch(where, "", "", "", takes))

    where = "vllm.lora.model_manager:LoRAModelManager"
    assert fault(f"{where}._absent") == "no _absent"
    assert fault("vllm.lora.model_manager:Absent.x") == "no Absent"
    assert "takes" in fault(f"{where}._create_merged_loras_inplace", "self other")
    assert fault(f"{where}._last_mapping") == ""


def names_of(touch: VllmPatch) -> set[str]:
    """Return the names that a row covers: its module, class or name, attribute, and those in `also`."""
    module, _, path = touch.where.partition(":")
    return {module, f"{module}:{path.split('.')[0]}", *path.split("."), *touch.also.split()}


def test_everything_that_the_product_uses_is_in_the_table() -> None:
    covered = set[str]().union(*map(names_of, TOUCHES))
    assert [use for use in touch_scan.uses() if use.name not in covered] == []


def test_everything_in_the_table_is_used() -> None:
    used = {use.name for use in touch_scan.uses()}
    assert {name for touch in TOUCHES for name in touch.also.split()} - used == set()
    assert len({touch.where for touch in TOUCHES}) == len(TOUCHES)


def test_the_scan_finds_each_kind_of_use() -> None:
    source = """
from vllm.lora.request import LoRARequest
class A:
    def __init__(self, engine: Any, name: str) -> None:
        self._engine, self._name = engine.inner, name
    def f(self, app: Any) -> None:
        for one in self._engine.rows:
            one.field = import_module("vllm.x").made
        setattr(app, "handler", self._name.upper())
        app.roundhouse_own.clear()
"""
    found = [use.name for use in touch_scan.scan(source, "a.py")]
    names = ["vllm.lora.request:LoRARequest", "vllm.x", "inner", "rows", "field", "made", "handler"]
    assert sorted(found) == sorted(names)


def test_vllm_is_imported_in_one_folder_only() -> None:
    vllm = re.compile(r"^\s*(from|import) vllm\b|import_module\(\"vllm", re.MULTILINE)
    outside = [
        str(file.relative_to(ROOT))
        for room in ROOMS
        for file in (ROOT / room).rglob("*.py")
        if vllm.search(file.read_text()) and "models/chat/vllm" not in file.as_posix()
    ]
    assert outside == ["models/chat/adapters.py"], "only vLLM's own LoRARequest"


def test_the_flags_in_vllms_source_are_those_of_its_parser() -> None:
    options = {option for option in launch.parser()._option_string_actions if option.startswith("--")}
    names = {option.removeprefix("--").replace("-", "_") for option in options}
    read = vllm_source.serve_flags()
    assert names <= read
    assert {name for name in read - names if not name.startswith("no_")} <= EXTRA
