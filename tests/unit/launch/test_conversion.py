"""Whisper checkpoints of transformers are converted to CTranslate2 once, in a separate process."""

import asyncio
import json
import re
import shutil
from pathlib import Path

import pytest

from launch.conversion.process import _convert
from launch.conversion.whisper import Conversions, needs_conversion
from launch.files.detect import detect
from launch.files.listing import list_folder
from models.sources.fetching import FetchFailed
from models.sources.resolve import digest
from registry.errors import EngineFailed, RoundhouseError
from registry.files.weights import read_weights
from registry.recipes.definition import Recipe
from tests.children import children, running
from tests.unit.launch.whisper import SPEECH, save_whisper

pytestmark = pytest.mark.long

RECIPE = Recipe.model_validate(
    {"id": "w", "version": 1, "task": "transcribe", "source": {"path": "x"}, "engine": {"name": "faster-whisper"}}
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_whisper(tmp_path_factory.mktemp("whisper"))


async def test_it_is_converted_once_and_kept_until_it_is_purged(checkpoint: Path, tmp_path: Path) -> None:
    assert needs_conversion(checkpoint)
    assert detect(list_folder(checkpoint)).convert
    conversions = Conversions(tmp_path / "converted")
    former = (
        tmp_path / "converted" / digest(checkpoint)
    )  # the folder's name before languages were read from the tokenizer
    former.mkdir(parents=True)
    assert conversions.find(RECIPE, checkpoint) is None
    both = await asyncio.gather(conversions.make(RECIPE, checkpoint), conversions.make(RECIPE, checkpoint))
    assert both[0] == both[1] == conversions.find(RECIPE, checkpoint)
    weights = read_weights(both[0])
    assert (weights.hidden, weights.decoder_layers) == (32, 1)
    assert {"config.json", "model.bin", "tokenizer.json", "preprocessor_config.json"} <= {
        file.name for file in both[0].iterdir()
    }
    config = json.loads((both[0] / "config.json").read_text())
    known = json.loads((SPEECH / "tokenizer.json").read_text())["added_tokens"]
    assert config["lang_ids"] == [one["id"] for one in known if one["content"] == "<|en|>"], "as in the tokenizer"
    assert [path.name for path in (tmp_path / "converted").iterdir()] == [both[0].name], "without half conversions"

    made = both[0]
    size = sum(file.stat().st_size for file in made.iterdir())
    assert conversions.purge([checkpoint, tmp_path, made]) == size
    assert conversions.purge([made]) == 0, "already removed"
    assert checkpoint.is_dir()
    assert conversions.find(RECIPE, checkpoint) is None
    assert not list((tmp_path / "converted").iterdir())


async def test_models_that_need_no_conversion_are_served_unchanged(tmp_path: Path) -> None:
    conversions = Conversions(tmp_path)
    assert conversions.find(RECIPE, SPEECH) == SPEECH
    assert await conversions.make(RECIPE, SPEECH) == SPEECH


async def test_a_conversion_that_takes_too_long_is_ended(checkpoint: Path, tmp_path: Path) -> None:
    others = children()
    conversions = Conversions(tmp_path, seconds=0.01)
    with pytest.raises(EngineFailed) as refused:
        await conversions.make(RECIPE, checkpoint)
    assert refused.value.code == "conversion_failed"
    assert not running("launch.conversion.process", others)
    assert conversions.find(RECIPE, checkpoint) is None


async def test_a_broken_checkpoint_says_why(checkpoint: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (broken / name).write_bytes((checkpoint / name).read_bytes())
    (broken / "model.safetensors").write_bytes(b"x" * 100)
    with pytest.raises(RoundhouseError, match="cannot be converted") as refused:
        await Conversions(tmp_path / "converted").make(RECIPE, broken)
    assert (refused.value.status, refused.value.code) == (422, "conversion_failed")


def test_missing_weights_are_not_replaced_by_random_ones(checkpoint: Path, tmp_path: Path) -> None:
    """A classifier of recordings has no decoder, and would write random text."""
    from transformers import WhisperConfig, WhisperForAudioClassification

    folder = tmp_path / "classes"
    WhisperForAudioClassification(WhisperConfig.from_pretrained(checkpoint)).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "preprocessor_config.json"):
        (folder / name).write_bytes((checkpoint / name).read_bytes())
    answer = _convert(folder, tmp_path / "converted", lambda come, whole: None)
    assert isinstance(answer, FetchFailed)
    assert (answer.status, answer.code) == (422, "bad_weights")
    assert re.search(r"lacks \d+ of a Whisper's weights, such as model\.", answer.message)


def test_a_quantized_checkpoint_is_not_converted_without_its_scales(checkpoint: Path, tmp_path: Path) -> None:
    """The converter reads only the weights, so the result would write other text."""
    folder = tmp_path / "quantized"
    shutil.copytree(checkpoint, folder)
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "quantization_config": {"quant_method": "fp8"}}))
    answer = _convert(folder, tmp_path / "converted", lambda come, whole: None)
    assert isinstance(answer, FetchFailed)
    assert answer.code == "quantized"
