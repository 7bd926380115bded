"""What has versions and aliases (adapters, routers): to point, to go back, and how they are shown."""

from runtime.cli.output import ago, short
from runtime.cli.remote.client import Client, Json, part


def set_alias(client: Client, path: str, alias: str, version: str | None, *, remove: bool) -> Json:
    """It, after its alias was taken away or points to a version; None: the current one. path: its own."""
    where = f"{path}/aliases/{part(alias)}"
    return client.delete(where) if remove else client.put(where, {"version": version or client.get(path)["version"]})


def roll_back(client: Client, path: str, version: str | None) -> Json:
    """It, after an earlier version is the current one; None: the one before."""
    return client.post(f"{path}/rollback", {"version": version} if version else None)


def version_lines(view: Json) -> list[str]:
    """A line for each version: its tag, digest and age, where it is from, and the aliases that point to it."""
    points: dict[str, list[str]] = {}
    for name, version in view["aliases"].items():
        points.setdefault(version, []).append(f"@{name}")
    lines = []
    for one in view["versions"]:
        marks = " ".join(points.get(one["version"], []))
        cells = [one["version"], short(one["digest"]), ago(one["created"]), one["source"], marks]
        lines.append("  " + "  ".join(cells).rstrip())
    return lines
