"""A cluster's YAML file, which says on which machine each server of a fleet runs."""

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from fleet.reports import NodeId
from registry.errors import BadRequest

Port = Annotated[int, Meta(ge=1024, le=65000)]
Host = Annotated[str, Meta(min_length=1, max_length=253)]
PORTS = 10
"""Number of ports for Ray's own processes, from the file's `port` on."""
WORKERS = 64
"""Number of ports for Ray's workers, after those."""


class LaunchedServer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: NodeId
    host: Host
    """The machine, as given to `up --host`."""
    serve: Annotated[tuple[str, ...], Meta(max_length=200)]
    """Options of `roundhouse serve`."""
    environment: dict[str, str] = {}


class Cluster(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    head: Host
    """The machine of Ray's head, as reached by the others."""
    port: Port = 6379
    folder: Path
    """Folder on each machine for Ray's token, process records and logs."""
    servers: Annotated[tuple[LaunchedServer, ...], Meta(min_length=1, max_length=4096)]

    @property
    def address(self) -> str:
        return f"{self.head}:{self.port}"

    @property
    def token(self) -> Path:
        return self.folder / "ray-token"

    def on(self, host: str) -> list[LaunchedServer]:
        """Return a machine's servers. Raises BadRequest if it has none, unless it is the head's."""
        result = [server for server in self.servers if server.host == host]
        if not result and host != self.head:
            known = ", ".join(sorted({server.host for server in self.servers} | {self.head}))
            raise BadRequest(f"The file has no server on {host}. Its machines: {known}.")
        return result


def _path(kind: type, value: str) -> Path:
    """Convert `folder`, the only type that msgspec does not support."""
    return Path(value)


def read_cluster(path: Path) -> Cluster:
    """Read a cluster's file. Raises BadRequest if it is invalid."""
    try:
        cluster = msgspec.yaml.decode(path.read_bytes(), type=Cluster, dec_hook=_path)
    except OSError as error:
        raise BadRequest(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"{path} is not a valid cluster file: {error}.") from None
    names = [server.name for server in cluster.servers]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise BadRequest(f"{path} has two servers with the name {twice[0]}. Give each its own.")
    if not cluster.folder.is_absolute():
        raise BadRequest(f"{path}: `folder` must be an absolute path, because processes start in other folders.")
    return cluster
