"""A cluster's YAML file: the machine that each server of a fleet runs on."""

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from fleet.reports import NodeId
from registry.base.json import NOT_JSON
from registry.errors import BadRequest

Port = Annotated[int, Meta(ge=1024, le=65000)]
Host = Annotated[str, Meta(min_length=1, max_length=253)]
PORTS = 10
"""Number of ports for Ray's own processes, from the file's `port` on, without those of its workers."""
WORKERS = 64
"""Ports of Ray's workers, which follow."""


class LaunchedServer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: NodeId
    host: Host
    """The machine: one of the names that `up --host` is called with."""
    serve: Annotated[tuple[str, ...], Meta(max_length=200)]
    """Options of `roundhouse serve`."""
    environment: dict[str, str] = {}


class Cluster(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    head: Host
    """The machine of Ray's head, as the others reach it."""
    port: Port = 6379
    folder: Path
    """The folder on each machine for Ray's token, records of processes, and logs."""
    servers: Annotated[tuple[LaunchedServer, ...], Meta(min_length=1, max_length=4096)]

    @property
    def address(self) -> str:
        return f"{self.head}:{self.port}"

    @property
    def token(self) -> Path:
        return self.folder / "ray-token"

    def on(self, host: str) -> list[LaunchedServer]:
        """Servers of one machine. Raises BadRequest for a machine without any, unless it is the head's."""
        result = [server for server in self.servers if server.host == host]
        if not result and host != self.head:
            known = ", ".join(sorted({server.host for server in self.servers} | {self.head}))
            raise BadRequest(f"The file has no server on {host}. Its machines: {known}.")
        return result


def _path(kind: type, value: str) -> Path:
    """`folder`, the only value of a kind that msgspec does not know."""
    return Path(value)


def read_cluster(path: Path) -> Cluster:
    """Read a cluster's file. Raises BadRequest for an invalid one."""
    try:
        cluster = msgspec.yaml.decode(path.read_bytes(), type=Cluster, dec_hook=_path)
    except OSError as error:
        raise BadRequest(f"{path} cannot be read: {error.strerror}.") from None
    except NOT_JSON as error:
        raise BadRequest(f"{path} is not a valid cluster file: {error}.") from None
    names = [server.name for server in cluster.servers]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise BadRequest(f"{path} has two servers with the name {twice[0]}. Give each its own.")
    if not cluster.folder.is_absolute():
        raise BadRequest(f"{path}: `folder` has to be an absolute path, since processes start elsewhere.")
    return cluster
