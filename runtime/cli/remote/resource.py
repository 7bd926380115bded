"""Commands shared by models, adapters and batches, which the server lists by name, and commands of one call."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from runtime.cli.output import ago, short, show
from runtime.cli.remote.client import Client, Json, part


def print_answer(
    url: str, as_json: bool, display: Callable[[Json], object], method: str, path: str,
    body: Mapping[str, Any] | None = None, **params: Any,
) -> None:  # fmt: skip
    """Do one call, and print its answer: as JSON, or by `display`."""
    with Client(url) as client:
        answer = client.call(method, path, json=body, params=params)
    show(answer, as_json, display)


@dataclass(frozen=True)
class Resource:
    """A collection on the server. Each method makes one call and prints the answer, as JSON or with `display`."""

    path: str
    """The collection's path, such as /v1/adapters."""
    display: Callable[[Json], object]
    """Prints one item for people."""

    def at(self, name: str, *below: str) -> str:
        """Return the path of one item, or of something below it."""
        return "/".join((self.path, *map(part, (name, *below))))

    def call(
        self, url: str, as_json: bool, method: str, name: str, *below: str,
        display: Callable[[Json], object] | None = None, **more: Any,
    ) -> None:  # fmt: skip
        """more: as `print_answer` takes it."""
        print_answer(url, as_json, display or self.display, method, self.at(name, *below), **more)

    def list(self, url: str, as_json: bool, display: Callable[[Json], object], **params: Any) -> None:
        print_answer(url, as_json, display, "GET", self.path, **params)

    def create(self, url: str, as_json: bool, body: Mapping[str, Any]) -> None:
        print_answer(url, as_json, self.display, "POST", self.path, body)

    def show(self, url: str, as_json: bool, name: str) -> None:
        self.call(url, as_json, "GET", name)

    def pin(self, url: str, as_json: bool, name: str, *, pinned: bool = True) -> None:
        self.call(url, as_json, "PUT" if pinned else "DELETE", name, "pin")

    def set_alias(self, url: str, as_json: bool, name: str, alias: str, version: str | None, *, remove: bool) -> None:
        """Remove an alias, or point it at a version (None for the current one)."""
        if remove:
            self.call(url, as_json, "DELETE", name, "aliases", alias)
            return
        with Client(url) as client:
            target = version or client.get(self.at(name))["version"]
            answer = client.put(self.at(name, "aliases", alias), {"version": target})
        show(answer, as_json, self.display)

    def roll_back(self, url: str, as_json: bool, name: str, version: str | None) -> None:
        """Make an earlier version (None for the previous one) the current one."""
        self.call(url, as_json, "POST", name, "rollback", body={"version": version} if version else None)


def version_lines(view: Json) -> list[str]:
    """Return a line per version with tag, digest, age, source and aliases."""
    points: dict[str, list[str]] = {}
    for name, version in view["aliases"].items():
        points.setdefault(version, []).append(f"@{name}")
    lines = []
    for one in view["versions"]:
        marks = " ".join(points.get(one["version"], []))
        cells = [one["version"], short(one["digest"]), ago(one["created"]), one["source"], marks]
        lines.append("  " + "  ".join(cells).rstrip())
    return lines
