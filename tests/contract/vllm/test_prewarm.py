"""A load in a warm slot imports no more large libraries, in the slot or EngineCore, and keeps the log levels."""

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from models.chat.vllm import prewarm
from tests.contract.chat import fixtures as chat_fixtures
from tests.eventually import PATIENCE

PROBE = """
import asyncio, gc, logging, os, sys
from pathlib import Path
from models.chat.engine import VllmEngine
from models.chat.vllm import prewarm
from tests.contract.chat import fixtures as chat_fixtures

def modules(worker=None):
    import sys
    return {name for name in sys.modules if name.split(".")[0] in ("torch", "transformers", "vllm")}

def levels(worker=None):
    import logging
    return [part.level for part in (logging.root, *logging.root.handlers, logging.getLogger("vllm"))]

async def main():
    logging.basicConfig()
    prewarm.prewarm(lambda: False)
    prewarm.prewarm_server()
    assert gc.isenabled()
    before = modules()
    engine, base = VllmEngine(), Path(sys.argv[1])
    await engine.load(chat_fixtures.recipe(base), base, "cpu", lambda progress: None)
    (core,) = await engine._engine.collective_rpc(modules)
    (core_levels,) = await engine._engine.collective_rpc(levels)
    assert levels() == core_levels == [logging.WARNING, logging.NOTSET, logging.ERROR], (levels(), core_levels)
    print(len(before), sorted(modules() - before), sorted(core - before), flush=True)
    await engine.close()

asyncio.run(main())
os._exit(0)
"""


@pytest.mark.real
def test_a_load_in_a_warm_slot_imports_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = chat_fixtures.write_base(tmp_path / "base")
    monkeypatch.setenv("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")  # EngineCore runs `modules`
    done = subprocess.run([sys.executable, "-c", PROBE, str(base)], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr[-3000:]
    known, more = done.stdout.splitlines()[-1].split(" ", 1)
    assert int(known) > 1000
    assert more == "[] []", "slot, EngineCore"


def test_a_package_of_vllms_server_raises_the_levels_of_all_loggers() -> None:
    """If this fails, `_keep_log_levels` can go."""
    code = (
        f"import logging; logging.basicConfig(); import {prewarm.RAISES_LEVELS}; print(logging.root.handlers[0].level)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == logging.ERROR
