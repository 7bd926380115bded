"""A server without a fleet has none of a fleet's code, and no library that no request has needed."""

import subprocess
import sys
from pathlib import Path

from tests.system.serving import STARTER

SCRIPT = """
import asyncio, ssl, sys
from pathlib import Path

from registry.recipes.loading import load_documents
from runtime.config.device import Device
from runtime.config.settings import Settings
from runtime.server.run import build

made = []
before = ssl.SSLContext.__new__
def counted(kind, *arguments, **options):
    made.append(1)
    return before(kind, *arguments, **options)
ssl.SSLContext.__new__ = counted

folder = Path(sys.argv[1])
settings = Settings(recipes=(), data_dir=folder / "data", run_dir=folder / "run", prewarm=False, slots=1)
server = build(settings, load_documents((Path(sys.argv[2]),)), Device("cpu", "cpu", "cpu", 1 << 30, 1 << 30))
layers = [layer.cls.__name__ for layer in server.app.user_middleware]
context = next(layer for layer in server.app.user_middleware if layer.cls.__name__ == "ContextMiddleware").kwargs

async def serve():
    await context["start"]()
    await context["stop"]()

asyncio.run(serve())
rooms = ("fleet", "ray", "runtime.gateway.peers", "runtime.http.fleet", "registry.state.shared")
print([name for name in sys.modules if any(name == room or name.startswith(f"{room}.") for room in rooms)])
libraries = ("aiohttp", "numpy", "pygments", "psycopg", "cryptography", "huggingface_hub", "tokenizers", "torch")
print([name for name in libraries if name in sys.modules])
print(len(made), "contexts")
print([name for name in layers if "Hop" in name or "Front" in name], context.get("node"))
"""


def test_a_lone_server_has_no_fleet_code_idle_libraries_tls_contexts_or_layers(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), str(STARTER)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-4:] == ["[]", "[]", "0 contexts", "[] None"]
