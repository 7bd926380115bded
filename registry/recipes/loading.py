"""Load recipes from YAML files, and report all faults at once, with file and line."""

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from registry.errors import Unfit
from registry.files.sources import locate
from registry.recipes.clashes import find_clashes
from registry.recipes.definition import EngineSpec, Recipe, Task, former_flags
from registry.recipes.fields import AnySource, HubSource, PathSource, Strict
from registry.recipes.provider import Provider
from registry.recipes.router import RouterSpec
from registry.recipes.validation import validate
from registry.recipes.yaml_nodes import Document, Fault, Loc, documents_of, read_documents

Misfit = Callable[[Path, Task | None], str | None]
"""Returns what is wrong with a folder as the source of a model for a task (None: of an adapter), or None."""

COMMIT = re.compile(r"^[0-9a-f]{40}\Z")


@dataclass(frozen=True, slots=True)
class Documents:
    """The documents of recipe files, by kind, each in the order of the files."""

    models: tuple[Recipe, ...] = ()
    notes: tuple[str, ...] = ()
    """A sentence for each flag of a model that is now a key of the recipe."""
    providers: tuple[Provider, ...] = ()
    routers: tuple[RouterSpec, ...] = ()


def load_recipes(paths: Path | Sequence[Path]) -> tuple[Recipe, ...]:
    """Return the models' recipes from `load_documents`."""
    return load_documents(paths).models


def load_documents(
    paths: Path | Sequence[Path],
    *,
    check_sources: bool = False,
    may_be_empty: bool = False,
    misfit: Misfit | None = None,
    flag_fault: Callable[[Recipe], str | None] = lambda _: None,
) -> Documents:
    """Read recipe files, or all *.yaml and *.yml files directly in folders.

    Paths in `source` become absolute, relative to the recipe file's folder.

    Args:
        paths: files and folders.
        may_be_empty: accept a folder without recipes, because models may be added while the server runs.
        check_sources: also require that paths and packages exist on this machine. Hubs are not contacted.
        misfit: checks the folders, if check_sources is set.
        flag_fault: returns what is wrong with a model's `engine.flags`, or None.

    Raises:
        Unfit: `faults` holds every fault of all files, as 'file.yaml:12: what is wrong; what to write instead'.
    """
    files, faults = _files([paths] if isinstance(paths, Path) else paths, may_be_empty)
    read: list[Strict] = []
    notes: list[str] = []
    documents: list[Document] = []
    for file in files:
        parsed, wrong = read_documents(file)
        faults += wrong
        for document in parsed:
            one, wrong = validate(document)
            faults += wrong
            documents.append(document)
            if one is None:
                continue
            one = _with_whole_paths(file, one)
            read.append(one)
            if isinstance(one, Recipe):
                notes += [
                    f"{one.id}: engine.flags.{flag} is read as parallel.{key}; write it as parallel.{key}"
                    for flag, key in former_flags(document.data)
                ]
                faults += _missing(one, document, misfit) if check_sources else []
                if wrong_flag := flag_fault(one):
                    faults.append(document.fault(("engine", "flags"), wrong_flag))
    faults += find_clashes(documents)
    if faults:
        count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
        order = {file: position for position, file in enumerate(files)}
        faults.sort(key=lambda fault: (order.get(fault.file, -1), fault.line))
        raise Unfit(f"The recipes have {count}.", [str(fault) for fault in faults], code="bad_recipe")
    return Documents(
        models=tuple(one for one in read if isinstance(one, Recipe)),
        notes=tuple(notes),
        providers=tuple(one for one in read if isinstance(one, Provider)),
        routers=tuple(one for one in read if isinstance(one, RouterSpec)),
    )


def faults_of(text: str) -> list[str]:
    """Return the faults of `text` as a recipe file, one sentence each."""
    documents, faults = documents_of(Path("recipe.yaml"), text.encode(errors="surrogatepass"))
    for document in documents:
        faults += validate(document)[1]
    return [fault.text for fault in (*faults, *find_clashes(documents))]


def parse_recipe(text: str, name: str) -> Recipe:
    """Parse one model's recipe, whose paths are absolute.

    name: what faults call the text. Raises Unfit.
    """
    documents, faults = documents_of(Path(name), text.encode(errors="surrogatepass"))
    recipes = list[Recipe]()
    for document in documents:
        one, wrong = validate(document)
        faults += wrong
        recipes += [one] if isinstance(one, Recipe) else []
    if faults or len(recipes) != 1:
        messages = [str(fault) for fault in faults] or [f"{name}: holds {len(recipes)} recipes of models, not one"]
        raise Unfit(f"{name} is not a valid recipe.", messages, code="bad_recipe")
    return recipes[0]


def remarks(recipes: Iterable[Recipe]) -> tuple[str, ...]:
    """Return remarks on valid but questionable values, one sentence each."""
    notes = []
    for recipe in recipes:
        sources = [(recipe.id, recipe.source), *((f"{recipe.id}:{a.name}", a.source) for a in recipe.adapters)]
        for name, source in sources:
            if isinstance(source, HubSource) and not COMMIT.match(source.revision):
                notes.append(
                    f"{name}: revision '{source.revision}' of {source.hub} can move; "
                    "write the commit (40 hex digits) to always serve the same weights"
                )
    return tuple(notes)


def _files(paths: Iterable[Path], may_be_empty: bool) -> tuple[list[Path], list[Fault]]:
    """List each file once, in the order given, a folder's files by name."""
    files: dict[Path, Path] = {}
    faults: list[Fault] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(child for child in path.iterdir() if child.suffix in (".yaml", ".yml") and child.is_file())
            if not inside:
                if (path / "config.json").is_file():
                    hint = "holds a model, and no recipe; start without it, then: roundhouse models add FOLDER"
                    faults.append(Fault(path, 0, hint))
                    continue
                nested = sorted({child.parent.name for child in path.glob("*/*.y*ml")})
                if may_be_empty and not nested:
                    continue
                hint = f"; name one of its folders: {', '.join(nested)}" if nested else "; name a folder that does"
                faults.append(Fault(path, 0, f"holds no .yaml or .yml file{hint}"))
        elif path.is_file():
            inside = [path]
        else:
            inside = []
            faults.append(Fault(path, 0, "does not exist; name a recipe file or a folder of them"))
        for file in inside:
            files.setdefault(file.resolve(), file)
    return list(files.values()), faults


def _with_whole_paths(file: Path, one: Strict) -> Strict:
    """Return what a document describes, with whole paths instead of those relative to the recipe file's folder."""
    if isinstance(one, Recipe):
        adapters = tuple(a.model_copy(update={"source": _from(file, a.source)}) for a in one.adapters)
        engine = _with_files(file, one.engine)
        return one.model_copy(update={"source": _from(file, one.source), "adapters": adapters, "engine": engine})
    if isinstance(one, RouterSpec) and one.source is not None:
        return one.model_copy(update={"source": _from(file, one.source)})
    return one


def _from(file: Path, source: AnySource) -> AnySource:
    return PathSource(path=str(file.parent.absolute() / source.path)) if isinstance(source, PathSource) else source


FILE_FLAGS = ("chat_template", "tool_parser_plugin", "reasoning_parser_plugin")
"""Flags of vLLM that may name a file."""


def _with_files(file: Path, engine: EngineSpec) -> EngineSpec:
    """Return flags that name files in the recipe file's folder by whole paths."""
    flags = dict(engine.flags)
    for key, value in flags.items():
        if key.replace("-", "_") in FILE_FLAGS and isinstance(value, str) and not set("{}\n") & set(value):
            with suppress(OSError, ValueError):  # too long, or with a null byte
                if (path := file.parent.absolute() / value).is_file():
                    flags[key] = str(path)
    return engine.model_copy(update={"flags": flags})


def _missing(recipe: Recipe, document: Document, misfit: Misfit | None) -> list[Fault]:
    faults = []
    sources: list[tuple[Loc, AnySource]] = [(("source",), recipe.source)]
    sources += [(("adapters", i, "source"), adapter.source) for i, adapter in enumerate(recipe.adapters)]
    for loc, source in sources:
        if not isinstance(source, HubSource):
            try:
                folder = locate(source)
            except Unfit as absent:
                faults.append(document.fault(loc, absent.message))
                continue
            task = recipe.task if loc == ("source",) else None
            if misfit is not None and folder.is_dir() and (wrong := misfit(folder, task)):
                faults.append(document.fault(loc, wrong))
    return faults
