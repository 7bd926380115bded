"""Versions, aliases and rollback compared with a model of plain lists, in any order of calls and restarts."""

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from registry.errors import Conflict, NotFound
from registry.records import AdapterKey, NewVersion
from registry.state.database import State
from tests.unit.registry.makers import digest

pytestmark = pytest.mark.long

KEYS = st.sampled_from([AdapterKey("m", "a"), AdapterKey("m", "b"), AdapterKey("n", "a")])
ALIASES = st.sampled_from(["prod", "next"])
NUMBERS = st.integers(1, 8)


@dataclass
class Plain:
    """The expected state of an adapter."""

    versions: dict[int, int] = field(default_factory=dict)
    """The content of each version by number."""
    stack: list[int] = field(default_factory=list)
    aliases: dict[str, int] = field(default_factory=dict)
    pinned: bool = False


class Versions(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.state = State(self.folder)
        self.plain: dict[AdapterKey, Plain] = {}
        self.last: dict[AdapterKey, int] = {}
        self.contents: set[int] = set()

    def teardown(self) -> None:
        self.state.close()
        shutil.rmtree(self.folder)

    @rule(key=KEYS, content=st.integers(1, 4))
    def register(self, key: AdapterKey, content: int) -> None:
        plain = self.plain.get(key)
        done = self.state.adapters.register(key, NewVersion(digest(content), 8, 1, ""))
        if plain is not None and plain.versions[plain.stack[-1]] == content:
            assert not done.created
            return
        assert done.created
        plain = self.plain.setdefault(key, Plain())
        number = self.last[key] = self.last.get(key, 0) + 1
        plain.versions[number] = content
        plain.stack.append(number)
        self.contents.add(content)
        assert done.version.number == number

    @rule(key=KEYS, number=NUMBERS)
    def point(self, key: AdapterKey, number: int) -> None:
        plain = self.plain.get(key)
        try:
            self.state.adapters.point(key, f"v{number}")
        except NotFound:
            assert plain is None or number not in plain.versions
            return
        assert plain is not None
        if plain.stack[-1] != number:
            plain.stack.append(number)

    @rule(key=KEYS)
    def rollback(self, key: AdapterKey) -> None:
        plain = self.plain.get(key)
        try:
            self.state.adapters.rollback(key)
        except NotFound:
            assert plain is None
        except Conflict:
            assert plain is not None
            assert len(plain.stack) == 1
        else:
            assert plain is not None
            plain.stack.pop()

    @rule(key=KEYS, alias=ALIASES, number=NUMBERS)
    def set_alias(self, key: AdapterKey, alias: str, number: int) -> None:
        plain = self.plain.get(key)
        try:
            self.state.adapters.set_alias(key, alias, f"v{number}")
        except NotFound:
            assert plain is None or number not in plain.versions
            return
        assert plain is not None
        plain.aliases[alias] = number

    @rule(key=KEYS, alias=ALIASES)
    def remove_alias(self, key: AdapterKey, alias: str) -> None:
        try:
            self.state.adapters.remove_alias(key, alias)
        except NotFound:
            assert alias not in self.plain.get(key, Plain()).aliases
        else:
            del self.plain[key].aliases[alias]

    @rule(key=KEYS, pinned=st.booleans())
    def pin(self, key: AdapterKey, pinned: bool) -> None:
        if key in self.plain:
            self.state.adapters.pin(key, pinned)
            self.plain[key].pinned = pinned

    @rule(key=KEYS, number=NUMBERS, force=st.booleans())
    def delete_version(self, key: AdapterKey, number: int, force: bool) -> None:
        plain = self.plain.get(key)
        try:
            left = self.state.adapters.delete_version(key, f"v{number}", force=force)
        except NotFound:
            assert plain is None or number not in plain.versions
            return
        except Conflict:
            assert plain is not None
            assert not force
            assert number == plain.stack[-1] or number in plain.aliases.values()
            return
        assert plain is not None
        assert force or (number != plain.stack[-1] and number not in plain.aliases.values())
        del plain.versions[number]
        plain.aliases = {alias: to for alias, to in plain.aliases.items() if to != number}
        rest = [n for n in plain.stack if n != number]
        plain.stack = [n for place, n in enumerate(rest) if place == 0 or rest[place - 1] != n]
        if not plain.versions:
            assert left is None
            del self.plain[key]
        elif not plain.stack:
            plain.stack = [max(plain.versions)]

    @rule(key=KEYS, force=st.booleans())
    def delete(self, key: AdapterKey, force: bool) -> None:
        plain = self.plain.get(key)
        try:
            self.state.adapters.delete(key, force=force)
        except NotFound:
            assert plain is None
        except Conflict:
            assert plain is not None
            assert not force
            assert plain.aliases or plain.pinned
        else:
            del self.plain[key]

    @precondition(lambda self: self.contents)
    @rule()
    def collect(self) -> None:
        for found in self.state.adapters.garbage():
            assert self.state.adapters.mark_removed(found)
            self.contents.discard(int(found.removeprefix("sha256:"), 16))

    @rule()
    def restart(self) -> None:
        self.state.close()
        self.state = State(self.folder)

    @invariant()
    def same(self) -> None:
        found = {adapter.key: adapter for adapter in self.state.adapters.all()}
        assert found.keys() == self.plain.keys()
        for key, plain in self.plain.items():
            adapter = found[key]
            assert {v.number: v.digest for v in adapter.versions} == {n: digest(c) for n, c in plain.versions.items()}
            assert adapter.current.number == plain.stack[-1]
            assert adapter.aliases == plain.aliases
            assert adapter.pinned == plain.pinned
        used = {content for plain in self.plain.values() for content in plain.versions.values()}
        assert set(self.state.adapters.garbage()) == {digest(c) for c in self.contents - used}


TestVersions = Versions.TestCase
TestVersions.settings = settings(max_examples=25, stateful_step_count=40)
