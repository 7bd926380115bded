"""Adapters composed with peft: combinations match their definition, a merged model its base with the adapter."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from adapters.check_process import check
from adapters.compose.jobs import (
    Combine,
    ComposeProgress,
    Merge,
    Method,
    Unmergeable,
    WeightedAdapter,
    compose,
    decode_answer,
    encode,
    plan,
)
from adapters.content.tokenizer import read_template
from adapters.jobs import Job
from adapters.types import Base, ComposedAdapter
from registry.bounds import Bounds
from registry.errors import EngineFailed, Unavailable, Unfit
from starter_training import figures
from starter_training.chat.answers import BASE, Question, Served
from starter_training.chat.tasks.conversations import heldout
from tests.children import children, running
from tests.eventually import PATIENCE
from tests.unit.adapters import makers
from tests.unit.adapters.rig import Rig

pytestmark = pytest.mark.real
PACK = figures.PACK
WEIGHTS = (0.7, -0.3)
Q, DOWN = "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return Base("small", makers.write_base(tmp_path_factory.mktemp("base")), max_rank=16)


@pytest.fixture
async def rig(tmp_path: Path, base: Base) -> AsyncIterator[Rig]:
    rig = Rig(tmp_path / "data", base)
    await rig.service.start(warm=False)  # one checking process is enough, because adapters are added one by one
    yield rig
    await rig.service.close()
    rig.state.close()


@pytest.fixture
async def stored(rig: Rig, tmp_path: Path) -> tuple[Path, ...]:
    """Two stored adapters of rank 8."""
    found = [await rig.add(name, tmp_path / "sources", seed) for seed, name in enumerate(("one", "two"), 1)]
    return tuple(rig.service.stored(registered.version).path for registered in found)


def job(
    base: Base, stored: tuple[Path, ...], out: Path, method: Method, seed: int = 0, halves: bool = False
) -> Combine:
    parts = tuple(WeightedAdapter(folder=folder, weight=weight) for folder, weight in zip(stored, WEIGHTS, strict=True))
    kind, rank = plan(method, [8, 8], base.max_rank, halves=halves)
    out.mkdir()
    return Combine(base=base, parts=parts, kind=kind, rank=rank, density=0.5, seed=seed, out=out)


def product(folder: Path, module: str) -> torch.Tensor:
    """Return what an adapter adds to a layer."""
    weights = load_file(folder / "adapter_model.safetensors")
    config = json.loads((folder / "adapter_config.json").read_text())
    a, b = (weights[f"base_model.model.{module}.lora_{half}.weight"].float() for half in "AB")
    return b @ a * (config["lora_alpha"] / config["r"])


def combine_here(job: Combine) -> None:
    """Combine in this process, because a separate one takes 6 s to import peft."""
    from adapters.compose.peft_jobs import combine

    combine(job, lambda text, fraction: None)


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())


async def test_a_linear_combination_is_the_weighted_sum_and_can_be_registered(
    base: Base, rig: Rig, stored: tuple[Path, ...], tmp_path: Path
) -> None:
    reported: list[ComposeProgress] = []
    expected = job(base, stored, tmp_path / "out", "linear")
    await compose(expected, PATIENCE, reported.append)
    assert [progress.text for progress in reported] == ["reading the adapters", "combining", "writing"]
    done = await rig.service.register("both", base, ComposedAdapter(expected.out, "0.7 × one"))
    assert (done.version.source, done.version.rank) == ("0.7 × one", 16)
    kept = rig.service.stored(done.version).path
    for module in (Q, DOWN):
        want = sum(weight * product(folder, module) for weight, folder in zip(WEIGHTS, stored, strict=True))
        assert isinstance(want, torch.Tensor)
        assert relative_error(product(expected.out, module), want) < 1e-5
        assert relative_error(product(kept, module), want) < 1e-2  # bfloat16


TEMPLATE = "{% for message in messages %}({{ message.content }}){% endfor %}"


async def test_a_chat_template_is_kept_if_all_parts_have_it(
    base: Base, stored: tuple[Path, ...], tmp_path: Path
) -> None:
    folders = [tmp_path / "own" / folder.name for folder in stored]
    for source, folder in zip(stored, folders, strict=True):
        shutil.copytree(source, folder, copy_function=shutil.copyfile)
        folder.chmod(0o755)
        config = json.loads((folder / "adapter_config.json").read_text())
        (folder / "adapter_config.json").write_text(json.dumps({**config, "chat_template": TEMPLATE}))
    for parts, want in ((folders, TEMPLATE), ([folders[0], stored[1]], None)):
        out = tmp_path / f"out{len(set(parts) & set(stored))}"
        combine_here(job(base, tuple(parts), out, "linear"))
        file = out / "chat_template.jinja"
        assert (file.read_text() if file.exists() else None) == want


async def test_a_sum_of_too_high_a_rank_is_approximated_best(
    base: Base, stored: tuple[Path, ...], tmp_path: Path
) -> None:
    small = Base(base.id, base.path, max_rank=8)
    expected = job(small, stored, tmp_path / "out", "linear")
    assert (expected.kind, expected.rank) == ("svd", 8)
    combine_here(expected)
    want = WEIGHTS[0] * product(stored[0], Q) + WEIGHTS[1] * product(stored[1], Q)
    u, s, v = torch.linalg.svd(want, full_matrices=False)
    assert relative_error(product(expected.out, Q), u[:, :8] @ torch.diag(s[:8]) @ v[:8]) < 1e-4


async def test_a_decomposition_has_the_rank_of_its_config(base: Base, tmp_path: Path) -> None:
    """k_proj is 64 wide, so a sum of rank 70 has only 64 there. The result used to be refused as a faulty adapter."""
    roomy = Base(base.id, base.path, max_rank=70)
    folders = [makers.write_adapter(tmp_path / str(seed), rank=36, seed=seed) for seed in (1, 2)]
    kind, rank = plan("linear", [36, 36], roomy.max_rank)
    parts = tuple(
        WeightedAdapter(folder=folder, weight=weight) for folder, weight in zip(folders, WEIGHTS, strict=True)
    )
    made = tmp_path / "made"
    made.mkdir()
    combine_here(Combine(base=roomy, parts=parts, kind=kind, rank=rank, density=0.5, seed=0, out=made))
    assert check(Job(source=made, base=roomy, bounds=Bounds())).faults == ()
    keys = "model.layers.0.self_attn.k_proj"
    want = WEIGHTS[0] * product(folders[0], keys) + WEIGHTS[1] * product(folders[1], keys)
    assert relative_error(product(made, keys), want) < 1e-3


async def test_halves_of_unequal_ranks_in_one_layer_are_refused(
    base: Base, stored: tuple[Path, ...], tmp_path: Path
) -> None:
    """With ranks from rank_pattern although the adapters' own ranks are equal. It was a 500."""
    weights = makers.tensors(8)
    a, b = makers.name(0, "mlp.up_proj", "A"), makers.name(0, "mlp.up_proj", "B")
    weights |= {a: weights[a][:4].contiguous(), b: weights[b][:, :4].contiguous()}
    low = makers.write_adapter(tmp_path / "low", weights=weights, settings={"rank_pattern": {"0.mlp.up_proj": 4}})
    with pytest.raises(Unmergeable, match=r"Halves of ranks 4, 8 in one layer .* leave 'halves' out"):
        combine_here(job(base, (stored[0], low), tmp_path / "out", "ties", halves=True))


async def test_ties_keeps_the_larger_half_and_the_majority_sign(
    base: Base, stored: tuple[Path, ...], tmp_path: Path
) -> None:
    expected = job(base, stored, tmp_path / "out", "ties")
    combine_here(expected)
    kept = []
    for folder in stored:
        whole = product(folder, Q)
        kept.append(torch.where(whole.abs() >= whole.abs().flatten().topk(whole.numel() // 2).values[-1], whole, 0.0))
    stack = torch.stack(kept)
    agree = stack.sign() == torch.where(stack.sum(0) >= 0, 1, -1)
    weighted = stack * torch.tensor(WEIGHTS)[:, None, None] * agree
    want = weighted.sum(0) / agree.sum(0).clamp(min=1)
    u, s, v = torch.linalg.svd(want, full_matrices=False)
    assert relative_error(product(expected.out, Q), u[:, :16] @ torch.diag(s[:16]) @ v[:16]) < 1e-3


@pytest.mark.parametrize("halves", [False, True])
async def test_dare_depends_only_on_its_seed(
    base: Base, rig: Rig, stored: tuple[Path, ...], tmp_path: Path, halves: bool
) -> None:
    """Also in another process, whose number of threads might round sums otherwise.

    Separate processes are tested only without halves, because each one imports peft for seconds.
    """
    digests = []
    for number, seed in enumerate((1, 1, 2)):
        expected = job(base, stored, tmp_path / str(number), "dare", seed, halves)
        if seed == 1 and not halves:
            await compose(expected, PATIENCE)
        else:
            combine_here(expected)
        digests.append((await rig.service.validate(base, ComposedAdapter(expected.out, ""))).digest)
    assert digests[0] == digests[1] != digests[2]


async def test_adapters_that_no_longer_fit_their_base_are_refused(
    base: Base, stored: tuple[Path, ...], tmp_path: Path
) -> None:
    """It was a failure of the server."""
    changed = tmp_path / "changed"
    changed.mkdir()
    whole = load_file(base.path / "model.safetensors")
    narrow = {name: values[:128] if "mlp.up" in name else values for name, values in whole.items()}
    save_file({name: values.contiguous() for name, values in narrow.items()}, changed / "model.safetensors")
    with pytest.raises(Unmergeable, match=r"lora_B of model\.layers\.\d\.mlp\.up_proj is \[256, 8\], .*\[128, 128\]"):
        combine_here(job(Base("small", changed, 16), stored, tmp_path / "out", "linear"))


@pytest.fixture
def stuck(tmp_path: Path) -> Base:
    """A base whose weights are a FIFO that never opens, which keeps a process busy."""
    (tmp_path / "base").mkdir()
    os.mkfifo(tmp_path / "base" / "model.safetensors")
    return Base("small", tmp_path / "base", 16)


async def test_a_process_that_takes_too_long_or_dies_is_reported(
    stuck: Base, stored: tuple[Path, ...], tmp_path: Path
) -> None:
    others = children()
    with pytest.raises(Unavailable) as late:
        await compose(job(stuck, stored, tmp_path / "late", "linear"), 0.01)
    assert late.value.code == "compose_timeout"

    def kill(_: ComposeProgress) -> None:
        (child,) = running("adapters.compose.process", others)
        child.send_signal(signal.SIGKILL)

    with pytest.raises(EngineFailed, match="was killed") as died:
        await compose(job(stuck, stored, tmp_path / "died", "linear"), PATIENCE, kill)
    assert died.value.code == "compose_failed"
    assert not running("adapters.compose.process", others)


async def test_the_process_ends_with_its_caller(stuck: Base, stored: tuple[Path, ...], tmp_path: Path) -> None:
    """The caller's end closes the pipe."""
    requested = job(stuck, stored, tmp_path / "out", "linear")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "adapters.compose.process", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(encode(requested))
    assert decode_answer(await process.stdout.readline()) == ComposeProgress("reading the adapters", 0.0)
    process.stdin.close()
    assert await process.stdout.read() == b""
    assert await process.wait() == 1


async def test_quantised_weights_are_refused(base: Base, stored: tuple[Path, ...], tmp_path: Path) -> None:
    folder = tmp_path / "quantised"
    folder.mkdir()
    config = json.loads((base.path / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "awq"}}))
    with pytest.raises(Unfit, match="quantised"):
        await compose(Merge(base=folder, adapter=stored[0], out=tmp_path))


async def test_a_merged_model_answers_as_base_and_adapter_do(tmp_path: Path) -> None:
    """Both are served by the engine. All greedy tokens of all answers must be equal."""
    adapter, out, own = PACK / "adapters" / "uppercase", tmp_path / "merged", tmp_path / "own"
    out.mkdir()
    shutil.copytree(adapter, own)
    config, template = json.loads((own / "adapter_config.json").read_text()), read_template(PACK / BASE)
    (own / "adapter_config.json").write_text(json.dumps({**config, "chat_template": template + "\n"}))
    await compose(Merge(base=PACK / BASE, adapter=own, out=out))
    assert (out / "chat_template.jinja").read_text() == template + "\n"
    assert (out / "config.json").read_bytes() == (PACK / BASE / "config.json").read_bytes()
    assert load_file(out / "model.safetensors").keys() == load_file(PACK / BASE / "model.safetensors").keys()
    requested = [heldout("uppercase")[number] for number in range(10)]

    def questions(name: str | None) -> list[Question]:
        return [Question(name, text, len(want) + 8) for text, want in requested]

    async with Served(PACK / BASE, {"uppercase": adapter}, "float32") as served:
        apart = await served.ask_all(questions("uppercase"))
    async with Served(out, {}, "float32") as served:
        merged = await served.ask_all(questions(None))
    assert [answer.tokens for answer in merged] == [answer.tokens for answer in apart]
    assert sum(answer.text == want for answer, (_, want) in zip(merged, requested, strict=True)) >= 8
