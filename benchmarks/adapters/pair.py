"""Part of `benchmarks.adapters.small`: the servers, and how to register an adapter with each of them."""

from pathlib import Path

from benchmarks.models import Chat
from benchmarks.peers.servers import Roundhouse, Server, VllmServe, before


def pair(model: Chat, folder: Path) -> list[Server]:
    """Return Roundhouse, stock vLLM and, if BENCHMARKS_BEFORE is set, an older Roundhouse; none is started yet."""
    return [
        Roundhouse(model.recipe.id, folder, [model.file], "--slots", "1"),
        VllmServe(model.recipe, model.path, folder, variables={"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}),
        *before(model.recipe.id, folder, [model.file], "--slots", "1"),
    ]


def register(server: Server, name: str, file: Path) -> None:
    """Register an adapter with the server's own call. Raises httpx.HTTPStatusError if it is refused."""
    path, body = registration(server, name, file)
    server.http.post(path, json=body).raise_for_status()


def registration(server: Server, name: str, file: Path) -> tuple[str, dict[str, object]]:
    """Return path and body of the server's call that registers an adapter."""
    if isinstance(server, Roundhouse):
        return "/v1/adapters", {"name": name, "base": server.model, "source": {"path": str(file)}}
    return "/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(file)}
