"""The page at `/`: what this server is, its state, four requests to copy, and where to read on."""

import json
from collections.abc import Mapping
from html import escape
from string import Template

from registry.recipes.definition import Task
from runtime.gateway.views.overview import StatusView
from runtime.gateway.views.values import ModelView

JSON_REQUESTS: Mapping[Task, tuple[str, Mapping[str, object]]] = {
    Task.CHAT: ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}]}),
    Task.EMBED: ("/v1/embeddings", {"input": "a warm kitchen"}),
    Task.RERANK: (
        "/v1/rerank",
        {"query": "how do I open a file", "documents": ["open() opens it", "an egg"]},
    ),
}
PAGE = Template("""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Roundhouse</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 56rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; } td, th { text-align: left; padding: .2rem 1.5rem .2rem 0; }
pre { background: #8882; padding: .7rem; overflow-x: auto; }
:root { color-scheme: light dark; }
</style>
<h1>Roundhouse</h1>
<p>One server for chat models with LoRA adapters, embeddings, rerankers and speech-to-text.</p>
<p>This one is <b>$phase</b>; $used of $budget are in use on $device, and $waiting requests wait.</p>
<table><tr><th>model<th>task<th>state<th>adapters</tr>$models</table>
<h2>Try it</h2>
$requests
<p><a href="/docs">Reference of the API</a> · <a href="/openapi.json">OpenAPI document</a> ·
<a href="/v1/models">models</a> · <a href="/v1/status">status</a> · <a href="/metrics">metrics</a></p>
</html>
""")


def page(address: str, phase: str, status: StatusView) -> str:
    """`address`: as the browser called this server."""
    rows = (
        f"<tr><td>{escape(m.id)}<td>{m.task.value}<td>{m.state.value}<td>{len(m.adapters) or ''}</tr>"
        for m in status.models
    )
    first = {model.task: model for model in reversed(status.models)}
    return PAGE.substitute(
        phase=escape(phase),
        used=_size(status.device.resident_bytes),
        budget=_size(status.device.budget_bytes),
        device=escape(status.device.label),
        waiting=status.waiting,
        models="".join(rows) or "<tr><td>There is no model yet.</tr>",
        requests="".join(f"<pre>{escape(_request(address, first[task]))}</pre>" for task in Task if task in first),
    )


def _request(address: str, model: ModelView) -> str:
    if model.task is Task.TRANSCRIBE:
        return f"curl {address}/v1/audio/transcriptions -F model={model.id} -F file=@talk.wav"
    path, fields = JSON_REQUESTS[model.task]
    body = json.dumps({"model": model.id, **fields})
    return f"curl {address}{path} -H 'Content-Type: application/json' \\\n  -d '{body}'"


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
