"""What vLLM's imports leave out is still there for those who need it."""

import subprocess
import sys

import pytest

from models.chat_prewarm import Later, without

PROBE = """
import sys
from models import chat_prewarm
chat_prewarm.prewarm()
hidden = [name for name in chat_prewarm.needless() if name in sys.modules]
assert not hidden, hidden
from vllm.multimodal import audio
assert len(audio.scipy_signal.resample_poly([0.0] * 32, 1, 2)) == 16
from transformers.utils import is_av_available, is_cv2_available, is_scipy_available, is_sklearn_available
assert is_scipy_available() and is_sklearn_available() and is_av_available() and is_cv2_available()
from vllm.multimodal import video
from vllm.multimodal.media import audio as recordings
from vllm.multimodal.video_decoders import opencv
assert video.cv2.__name__ == opencv.cv2.__name__ == "cv2"
assert opencv.vr.getStreamBackends()
assert audio.av.open and recordings.av.open
import gc
assert gc.isenabled()
import sentence_transformers  # imports scikit-learn: another engine may load in a slot that is warm for vLLM
"""


@pytest.mark.real
def test_what_is_left_out_can_be_used_afterwards() -> None:
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]


def test_hidden_packages_come_back() -> None:
    sys.modules.pop("wave", None)
    with without("wave", "json"):
        with pytest.raises(ImportError):
            __import__("wave")
        assert sys.modules["json"] is not None, "what is imported already stays"
    assert __import__("wave").__name__ == "wave"


def test_later_is_the_module() -> None:
    import math

    assert Later("math").pi == math.pi
