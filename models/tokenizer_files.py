"""Load a model's tokenizer as it is in its tokenizer.json.

transformers 5 builds tokenizers of many classes anew from their vocabulary, and splits texts in the class's way, not in
the file's. Makers often named a class that splits otherwise: all blanks of a prompt were lost with DeepSeek's distilled
Llamas, SmolLM2 and StarCoder 2 read numbers by other tokens than in training, and DeBERTa 3 knew no "…" any more.
"""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

PROBE = "Don't, I'LL: 12345 x=[y];\n\n  naïve\tcafé 列車 3.5% ＡＢ ﬁ…\u00a0x  "
"""A text that common ways to split it divide differently."""

UNIGRAM = r'"type"\s*:\s*"Unigram"'


@cache
def patch() -> None:
    """Make transformers' AutoTokenizer split texts as tokenizer.json says, in this process."""
    from transformers import AutoTokenizer

    own = AutoTokenizer.__dict__["from_pretrained"].__func__

    def from_pretrained(kind: Any, folder: Any, *arguments: Any, **named: Any) -> Any:
        tokenizer = own(kind, folder, *arguments, **named)
        file = Path(folder) / "tokenizer.json"
        if not _is_rebuilt(tokenizer) or not file.is_file() or _splits_alike(tokenizer.backend_tokenizer, file):
            return tokenizer
        from transformers import TokenizersBackend

        others = {name: value for name, value in named.items() if name not in ("config", "mistral_format")}
        inputs = tokenizer.model_input_names
        return TokenizersBackend.from_pretrained(folder, *arguments, model_input_names=inputs, **others)

    AutoTokenizer.from_pretrained = classmethod(from_pretrained)


def _is_rebuilt(tokenizer: Any) -> bool:
    from transformers import TokenizersBackend

    kind = type(tokenizer)
    return isinstance(tokenizer, TokenizersBackend) and kind is not TokenizersBackend and "__init__" in kind.__dict__


def _splits_alike(backend: Any, file: Path) -> bool:
    """Return whether a byte-level or Unigram tokenizer splits PROBE as its file says.

    True for other kinds, such as BERT's: there the tokenizer's config decides, too.
    """
    from tokenizers import Tokenizer

    text = file.read_text(encoding="utf-8")
    parts = {name: _part(text, name) for name in ("normalizer", "pre_tokenizer")}
    if "ByteLevel" not in json.dumps(parts["pre_tokenizer"]) and not re.search(UNIGRAM, text):
        return True
    model = {"type": "BPE", "vocab": {}, "merges": []}
    return _split(backend) == _split(Tokenizer.from_str(json.dumps({"added_tokens": [], "model": model, **parts})))


def _part(text: str, name: str) -> Any:
    """Return a part of tokenizer.json without parsing its vocabulary; None if it has none."""
    start = re.search(rf'"{name}"\s*:\s*', text)
    return json.JSONDecoder().raw_decode(text, start.end())[0] if start else None


def _split(backend: Any) -> list[str]:
    text = backend.normalizer.normalize_str(PROBE) if backend.normalizer else PROBE
    return [piece for piece, _ in backend.pre_tokenizer.pre_tokenize_str(text)] if backend.pre_tokenizer else [text]
