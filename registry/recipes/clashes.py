"""Find names that are used twice, also in faulty documents."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from registry.recipes.validation import kind_of
from registry.recipes.yaml_nodes import Document, Fault, Loc

PROVIDER, ROUTER = "provider", "router"


@dataclass(frozen=True, slots=True)
class _Use:
    """A name and its position in a document."""

    name: str
    document: Document
    loc: Loc

    @property
    def location(self) -> str:
        return f"{self.document.file}:{self.document.line(self.loc)}"

    @property
    def what(self) -> str:
        return ROUTER if kind_of(self.document.data) == ROUTER else "model"

    def fault(self, text: str) -> Fault:
        return self.document.fault(self.loc, text)


def find_clashes(documents: Sequence[Document]) -> list[Fault]:
    """Find ids, aliases and adapter names that are used twice.

    One adapter name on two models does not clash, because its full name is `base:adapter`.
    """
    faults = _providers_twice(documents)
    models: dict[str, _Use] = {}
    for use in _ids(documents):
        if "@" in use.name:
            faults.append(
                use.fault(f"id '{use.name}' has an '@', which is for versions; write the version as 'version:' instead")
            )
        if (first := models.setdefault(use.name, use)) is not use:
            faults.append(use.fault(f"id '{use.name}' is used twice, first in {first.location}; choose another id"))
    aliases: dict[str, _Use] = {}
    for use in _aliases(documents):
        if (model := models.get(use.name)) is not None:
            faults.append(
                use.fault(f"alias '{use.name}' is a {model.what}'s id in {model.location}; choose another alias")
            )
        elif (first := aliases.setdefault(use.name, use)) is not use:
            faults.append(
                use.fault(f"alias '{use.name}' is used twice, first in {first.location}; choose another alias")
            )
    models |= aliases
    for document in documents:
        adapters: dict[str, _Use] = {}
        spellings = {use.name for use in (*_ids([document]), *_aliases([document]))}
        for use in _adapters(document):
            if (first := adapters.setdefault(use.name, use)) is not use:
                text = f"adapter '{use.name}' is listed twice, first in {first.location}; choose another name"
                faults.append(use.fault(text))
            for name in (use.name, *(f"{spelling}:{use.name}" for spelling in sorted(spellings))):
                if (model := models.get(name)) is not None:
                    text = f"adapter '{use.name}' clashes with the {model.what} name '{name}' in {model.location}"
                    faults.append(use.fault(f"{text}; choose another name"))
    return faults


def _providers_twice(documents: Iterable[Document]) -> list[Fault]:
    faults: list[Fault] = []
    first_uses: dict[str, _Use] = {}
    for document in documents:
        name = _get(document.data, "id")
        if kind_of(document.data) == PROVIDER and isinstance(name, str):
            use = _Use(name, document, ("id",))
            if (first := first_uses.setdefault(name, use)) is not use:
                faults.append(
                    use.fault(f"provider '{name}' is given twice, first in {first.location}; choose another id")
                )
    return faults


def _ids(documents: Iterable[Document]) -> Iterator[_Use]:
    """Yield the ids by which clients can call a document's models; a provider's own id is not one."""
    for document in documents:
        name = _get(document.data, "id")
        if not isinstance(name, str):
            continue
        if kind_of(document.data) != PROVIDER:
            yield _Use(name, document, ("id",))
            continue
        ids: set[str] = set()  # a repetition within one document has its own check
        for index, model in _listed(document.data, "models"):
            own = _get(model, "id") or _get(model, "name")
            if isinstance(own, str) and own not in ids:
                ids.add(own)
                yield _Use(f"{name}/{own}", document, ("models", index))


def _aliases(documents: Iterable[Document]) -> Iterator[_Use]:
    for document in documents:
        owners: list[tuple[Loc, object]] = [((), document.data)]
        if kind_of(document.data) == PROVIDER:
            owners = [(("models", index), model) for index, model in _listed(document.data, "models")]
        for loc, owner in owners:
            for index, name in _listed(owner, "aliases"):
                if isinstance(name, str):
                    yield _Use(name, document, (*loc, "aliases", index))


def _adapters(document: Document) -> Iterator[_Use]:
    for index, adapter in _listed(document.data, "adapters"):
        name = _get(adapter, "name")
        if isinstance(name, str):
            yield _Use(name, document, ("adapters", index, "name"))


def _get(mapping: object, key: str) -> object:
    return mapping.get(key) if isinstance(mapping, dict) else None


def _listed(mapping: object, key: str) -> Iterator[tuple[int, object]]:
    items = _get(mapping, key)
    return enumerate(items if isinstance(items, list) else ())
