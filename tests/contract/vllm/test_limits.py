"""vLLM's own limits on requests are all known, and none is stricter than our bounds."""

import json
import re
import subprocess
import sys

import pytest

from registry.bounds import USUAL
from tests.eventually import PATIENCE

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
PROBE = """
import json
from models.chat.vllm import prewarm
prewarm.environment()
import vllm.envs
print(json.dumps({name: str(getattr(vllm.envs, name)) for name in vllm.envs.environment_variables if "MAX" in name}))
"""


@pytest.mark.real
def test_every_limit_is_known_and_above_ours() -> None:
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr[-3000:]
    values = json.loads(done.stdout.splitlines()[-1])
    limits = {name for name in values if re.search(r"_MAX_|LIMIT", name)}
    assert limits == SET | MEDIA | OTHERS, "a new limit has to be put into one of these sets"
    assert int(values["VLLM_MAX_STOP_STRINGS"]) > USUAL.stops
    assert int(values["VLLM_MAX_COMPLETION_PROMPTS"]) > USUAL.answers
    assert int(values["VLLM_MAX_NUM_BAD_WORDS"]) > USUAL.entries
    assert int(values["VLLM_MAX_N_SEQUENCES"]) == 128, "OpenAI's limit"
