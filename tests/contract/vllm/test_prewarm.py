"""What a warm slot has before its model is known, in one process that then loads a model."""

import json
import logging
import os
import re
import subprocess
import sys
from typing import Any

import pytest

from models.chat.vllm import prewarm
from registry.bounds import USUAL
from tests.contract.chat import fixtures as chat_fixtures
from tests.eventually import PATIENCE

PROBE = """
import asyncio, gc, json, logging, os, sys
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
    found = {"known": len(before), "slot": sorted(modules() - before), "core": sorted(core - before)}
    await engine.close()
    import torch, vllm.envs
    from vllm.v1.sample import sampler
    names = [name for name in vllm.envs.environment_variables if "MAX" in name]
    found["limits"] = {name: str(getattr(vllm.envs, name)) for name in names}
    found["compiles"] = hasattr(sampler.batched_count_greater_than, "_torchdynamo_orig_callable")
    values = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[2.0]])
    found["ranks"] = sampler.batched_count_greater_than(*values).tolist()
    print(json.dumps(found), flush=True)

asyncio.run(main())
os._exit(0)
"""
SET = {
    "VLLM_MAX_N_SEQUENCES", "VLLM_MAX_STOP_STRINGS", "VLLM_MAX_COMPLETION_PROMPTS", "VLLM_MAX_NUM_BAD_WORDS",
    "VLLM_MAX_BAD_WORDS_TOTAL_TOKENS",
}  # fmt: skip
"""Limits that models/chat/vllm/prewarm.py raises, because our bounds refuse earlier and with a clear message."""
MEDIA = {
    "VLLM_MAX_MEDIA_DOWNLOAD_SIZE_MB", "VLLM_MAX_AUDIO_CLIP_FILESIZE_MB", "VLLM_MAX_AUDIO_DECODE_DURATION_S",
    "VLLM_MAX_AUDIO_DECODE_BYTES", "VLLM_MAX_EMBED_DECODE_BYTES", "VLLM_MAX_IMAGE_PIXELS",
}  # fmt: skip
"""Limits on decoded media, which are left as they are."""
OTHERS = {
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN", "VLLM_ENABLE_INDUCTOR_MAX_AUTOTUNE", "VLLM_KV_OFFLOAD_MAX_BATCH_DESCRIPTORS",
    "VLLM_MAX_AUDIO_PREPROCESS_WORKERS", "VLLM_MAX_TOKENS_PER_EXPERT_FP4_MOE", "VLLM_MEDIA_CACHE_MAX_SIZE_MB",
    "VLLM_MEDIA_FETCH_MAX_RETRIES", "VLLM_MQ_MAX_CHUNK_BYTES_MB", "VLLM_P2P_MAX_PEERS",
    "VLLM_ROCM_QUICK_REDUCE_MAX_SIZE_BYTES_MB", "VLLM_SPARSE_INDEXER_MAX_LOGITS_MB",
}  # fmt: skip
"""Names that are no limits of requests."""


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what the process has found. It does not get the variables that engines of other tests have set here."""
    base = chat_fixtures.write_base(tmp_path_factory.mktemp("warm") / "base")
    clean = {name: value for name, value in os.environ.items() if name != "TORCHDYNAMO_DISABLE"}
    clean["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # EngineCore runs `modules`
    command = [sys.executable, "-c", PROBE, str(base)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=clean)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.real
def test_a_load_in_a_warm_slot_imports_no_more(warm: dict[str, Any]) -> None:
    """Neither the slot nor EngineCore imports more large libraries, and both keep the log levels."""
    assert warm["known"] > 1000
    assert (warm["slot"], warm["core"]) == ([], [])


@pytest.mark.real
def test_every_limit_of_vllm_is_known_and_above_ours(warm: dict[str, Any]) -> None:
    values = warm["limits"]
    limits = {name for name in values if re.search(r"_MAX_|LIMIT", name)}
    assert limits == SET | MEDIA | OTHERS, "a new limit has to be put into one of these sets"
    assert int(values["VLLM_MAX_STOP_STRINGS"]) > USUAL.stops
    assert int(values["VLLM_MAX_COMPLETION_PROMPTS"]) > USUAL.answers
    assert int(values["VLLM_MAX_NUM_BAD_WORDS"]) > USUAL.entries
    assert int(values["VLLM_MAX_N_SEQUENCES"]) == 128, "OpenAI's limit"


@pytest.mark.real
def test_ranks_of_logprobs_are_counted_without_a_compiler(warm: dict[str, Any]) -> None:
    assert (warm["compiles"], warm["ranks"]) == (False, [2])


def test_the_build_for_gpus_without_a_gpu_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as in a container without --gpus all. vLLM advises a variable for its own log."""
    from vllm import platforms
    from vllm.platforms.interface import UnspecifiedPlatform

    monkeypatch.setattr(platforms, "_current_platform", UnspecifiedPlatform())
    with pytest.raises(RuntimeError, match=r"--gpus all.*make install ACCELERATOR=cpu"):
        prewarm._import_all()


def test_a_package_of_vllms_server_raises_the_levels_of_all_loggers() -> None:
    """If this fails, `_keep_log_levels` can go."""
    code = (
        f"import logging; logging.basicConfig(); import {prewarm.RAISES_LEVELS}; print(logging.root.handlers[0].level)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == logging.ERROR
