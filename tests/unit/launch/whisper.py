"""A Whisper as transformers saves it, with random weights. It can be converted and run, but recognizes nothing."""

import json
import shutil
from pathlib import Path

from tests.system.serving import PACK

SPEECH = PACK / "starter-speech"


def save_whisper(folder: Path) -> Path:
    """Save a Whisper with the tokens and features of the starter pack's."""
    import torch
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    vocabulary = len(json.loads((SPEECH / "vocabulary.json").read_text()))
    tokens = json.loads((SPEECH / "tokenizer.json").read_text())
    ids = {one["content"]: one["id"] for one in tokens["added_tokens"]}
    end, start = ids["<|endoftext|>"], ids["<|startoftranscript|>"]
    torch.manual_seed(0)
    config = WhisperConfig(
        vocab_size=vocabulary, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64, max_target_positions=448,
        num_mel_bins=json.loads((SPEECH / "preprocessor_config.json").read_text())["feature_size"],
        bos_token_id=end, eos_token_id=end, pad_token_id=end, decoder_start_token_id=start,
        suppress_tokens=[], begin_suppress_tokens=[],
    )  # fmt: skip
    WhisperForConditionalGeneration(config).save_pretrained(folder)
    for name in ("tokenizer.json", "preprocessor_config.json"):
        shutil.copyfile(SPEECH / name, folder / name)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return folder
