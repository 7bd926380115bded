"""Providers added at run time, each a document in the data directory, in addition to those of recipe files."""

import asyncio
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml

from registry.base.wording import quoted
from registry.errors import Conflict, Unavailable, Unfit
from registry.names import ADAPTER
from registry.recipes.loading import faults_of, load_documents
from registry.recipes.provider import Provider
from registry.storage.files import delete_files, unusable, write_text
from runtime.gateway.names import Names
from runtime.gateway.providers.index import ProviderIndex, unknown_provider

log = logging.getLogger("roundhouse.gateway")
OWN_VARIABLES = frozenset(("ROUNDHOUSE_DATABASE", "ROUNDHOUSE_OIDC_SECRET", "ROUNDHOUSE_PEPPER", "PGPASSWORD"))
"""Variables with secrets of the server itself. An administrator's request must not have them sent anywhere."""


class ProviderDefinitionView(msgspec.Struct, frozen=True, kw_only=True):
    """A provider's document. It names the variable or file of the key, and never holds the key."""

    object: Literal["provider.definition"] = "provider.definition"
    id: str
    version: int
    source: Literal["recipe file", "request"]
    definition: dict[str, Any]


class ProviderStore:
    """One writer at a time. A recipe file's provider takes precedence over an added one with the same id."""

    def __init__(self, folder: Path, names: Names, index: ProviderIndex, given: Iterable[Provider] = ()) -> None:
        self._folder, self._names, self._index = folder, names, index
        self._given = {provider.id: provider for provider in given}
        self._added: dict[str, Provider] = {}
        self._changing = asyncio.Lock()

    def open(self) -> None:
        """Read the added providers at startup. Skips providers with unreadable files. Blocks.

        Raises Unavailable if the folder cannot be read, because then the added providers are unknown.
        """
        try:
            names = os.listdir(self._folder) if self._folder.exists() else []  # glob() ignores errors
            for name in names:
                if name.endswith(".tmp"):  # half-written when the server was killed
                    (self._folder / name).unlink(missing_ok=True)
        except OSError as error:
            raise Unavailable(unusable(error)) from error
        for file in (self._folder / name for name in sorted(names) if name.endswith(".yaml")):
            try:
                self._added |= {provider.id: provider for provider in load_documents((file,)).providers}
            except Unfit as unfit:
                log.error("a provider is left out", extra={"provider": file.stem, "cause": "; ".join(unfit.faults)})
        self._serve()

    def serve(self, given: Iterable[Provider]) -> None:
        """Set the providers of recipe files."""
        self._given = {provider.id: provider for provider in given}
        self._serve()

    def _serve(self) -> None:
        self._index.serve((self._added | self._given).values())

    def show(self, name: str) -> ProviderDefinitionView:
        """Raises NotFound."""
        providers = self._added | self._given
        provider = providers.get(name)
        if provider is None:
            raise unknown_provider(name, providers)
        return ProviderDefinitionView(
            id=name,
            version=provider.version,
            source="recipe file" if name in self._given else "request",
            definition=provider.model_dump(mode="json", exclude={"id", "version"}, exclude_defaults=True),
        )

    async def put(self, name: str, definition: Mapping[str, Any]) -> tuple[ProviderDefinitionView, bool]:
        """Add or replace a provider. Also returns whether it is new.

        Raises Unfit (bad_recipe), Conflict (name_in_use, or defined by a recipe file), Unavailable (disk_full).
        """
        async with self._changing:
            self._check_file(name)
            before = self._added.get(name)
            version = 1 if before is None else before.version + 1
            faults = [] if ADAPTER.match(name) else [f"{quoted(name)} is not a valid provider id"]
            whole = {"kind": "provider", **definition, "id": name, "version": version}
            try:
                text = yaml.safe_dump(whole, sort_keys=False)
                faults += await asyncio.to_thread(faults_of, text)
            except RecursionError:
                faults.append("it is nested too deeply")
            if faults:
                raise Unfit("The provider cannot be used.", faults[:20], code="bad_recipe")
            provider = Provider.model_validate({**definition, "id": name, "version": version})
            await asyncio.to_thread(self._check_key, provider)
            self._check_names(provider)
            try:
                await asyncio.to_thread(write_text, self._folder / f"{name}.yaml", text)
            except OSError as error:
                raise Unavailable(unusable(error), code="disk_full") from error
            self._added[name] = provider
            self._serve()
        return self.show(name), before is None

    async def remove(self, name: str) -> None:
        """Remove a provider. Running requests continue.

        Raises NotFound, Conflict for one of a recipe file, Unavailable (disk_full).
        """
        async with self._changing:
            self._check_file(name)
            self.show(name)
            await asyncio.to_thread(delete_files, [self._folder / f"{name}.yaml"])
            del self._added[name]
            self._serve()

    def _check_file(self, name: str) -> None:
        if name in self._given:
            raise Conflict(f"Provider '{name}' is from a recipe file: change that, then roundhouse models reload.")

    def _check_key(self, provider: Provider) -> None:
        """Raises Unfit for a key that is a secret of the server itself, such as the pepper. Blocks."""
        is_own = provider.key_file is not None and self._is_own(provider.key_file)
        if is_own or provider.key_env in OWN_VARIABLES:
            where = f"file {quoted(provider.key_file or '')}" if is_own else f"variable {provider.key_env}"
            fault = f"the {where} may hold secrets of this server: name another one, with the provider's key"
            raise Unfit("The provider cannot be used.", [fault], code="bad_recipe")

    def _is_own(self, file: str) -> bool:
        """Whether a file is in the data directory, or in /proc, where the server's variables are."""
        try:
            path = Path(file).resolve()
        except (OSError, ValueError):  # it is none, and will be reported as missing
            return False
        return path.is_relative_to(self._folder.parent.resolve()) or path.is_relative_to("/proc")

    def _check_names(self, provider: Provider) -> None:
        """Raises Conflict (name_in_use) if a name has another meaning."""
        others = {
            name for one in (self._added | self._given).values() if one.id != provider.id for name in _names_of(one)
        }
        catalog, is_router = self._names.catalog, self._names.is_router
        for name in _names_of(provider):
            is_here = name in catalog.recipes or name in catalog.aliases or catalog.is_adapter(name) or is_router(name)
            if name in others or is_here:
                raise Conflict(
                    f"{quoted(name)} is the name of something else already. Choose another name.",
                    code="name_in_use",
                    param="models",
                )


def _names_of(provider: Provider) -> list[str]:
    return [name for model in provider.models for name in (provider.served(model), *model.aliases)]
