"""Part of `benchmarks.adapters.small`: the two servers, and how each of them learns of an adapter."""

from pathlib import Path

from benchmarks.models import Chat
from benchmarks.peers.servers import Roundhouse, Server, VllmServe, before


def pair(model: Chat, folder: Path) -> list[Server]:
    """Roundhouse, stock vLLM and, if one is named, the checkout of before, on one model, not yet started."""
    return [
        Roundhouse(model.recipe.id, folder, [model.file], "--slots", "1"),
        VllmServe(model.recipe, model.path, folder, variables={"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}),
        *before(model.recipe.id, folder, [model.file], "--slots", "1"),
    ]


def register(server: Server, name: str, file: Path) -> None:
    """Make an adapter known, by each server's own call. Raises httpx.HTTPStatusError when it is refused."""
    path, body = registration(server, name, file)
    server.http.post(path, json=body).raise_for_status()


def registration(server: Server, name: str, file: Path) -> tuple[str, dict[str, object]]:
    """Path and body of the call that makes an adapter known."""
    if isinstance(server, Roundhouse):
        return "/v1/adapters", {"name": name, "base": server.model, "source": {"path": str(file)}}
    return "/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(file)}
