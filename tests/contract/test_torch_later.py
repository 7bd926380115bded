"""What is not imported with vLLM is there, and the same, once it is used."""

import subprocess
import sys

import pytest

from tests.system.serving import PACK

LEFT_OUT = """
import sys
import torch
compiles = torch.compile
from models import stand_ins, torch_later
from models.chat.vllm import prewarm as chat_prewarm
chat_prewarm.prewarm()
chat_prewarm.prewarm_server()
only = torch_later.only()
there = [name for name in (*torch_later.PARTS, "sympy") if name in sys.modules]
assert not there, f"{there} are imported again. What was asked of stand-ins: {only.asked}"
assert torch.compile is compiles and only not in sys.meta_path and not only.open
assert not [name for name, module in sys.modules.items() if isinstance(module, stand_ins.Stand)]
assert len(stand_ins.names()) > 5, "nobody holds a name: nothing has to stand in for anything"
"""

USED = """
from vllm import LLM, SamplingParams
from vllm.sampling_params import StructuredOutputsParams
llm = LLM(PATH, enforce_eager=True, kv_cache_memory_bytes=1 << 24, max_num_seqs=4, max_model_len=256)
for settings in (
    {"temperature": 0, "logprobs": 2, "prompt_logprobs": 1},
    {"temperature": 1, "top_k": 5, "top_p": 0.9, "min_p": 0.1, "seed": 1},
    {"repetition_penalty": 1.1, "presence_penalty": 0.1, "logit_bias": {1: 1.0}, "n": 2, "logprobs": 1},
    {"structured_outputs": StructuredOutputsParams(json={"type": "object"})},
):
    assert llm.generate(["hello"], SamplingParams(max_tokens=4, **settings))[0].outputs[0].token_ids
there = [name for name in (*torch_later.PARTS, "sympy") if name in sys.modules]
assert not there, f"{there} are imported by what answers requests"
torch._dynamo.decorators.mark_unbacked(torch.ones(1), 0)
assert "torch._dynamo" not in sys.modules and torch._dynamo.config.suppress_errors is False
assert "torch._dynamo" in sys.modules and type(torch._dynamo) is not stand_ins.Stand
"""

AS_ELSEWHERE = """
from importlib import import_module
from operator import attrgetter
from transformers.generation.continuous_batching.cache import PagedAttentionCache
from vllm.compilation import decorators
from vllm.compilation.passes.inductor_pass import InductorPass
from vllm.model_executor.layers.fused_moe.runner import moe_runner

assert moe_runner._resolve_layer_name._dynamo_marked_constant
import asyncio
from vllm import connections
async def fetch():
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        return await connections.HTTPConnection().async_get_bytes(f"http://{host}:{port}/")
async def answer(reader, writer):
    await reader.readuntil(b"\\r\\n\\r\\n")
    writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 5\\r\\nConnection: close\\r\\n\\r\\nhello")
    writer.close()
assert asyncio.run(fetch()) == b"hello"
assert connections.aiohttp.ClientError.__module__.startswith("aiohttp")
double = torch.compile(lambda x: x * 2, backend="eager")
assert double(torch.ones(2)).tolist() == [2, 2]

from torch._dynamo import trace_rules
from torch._dynamo.symbolic_convert import InliningInstructionTranslator
assert decorators.InliningInstructionTranslator is InliningInstructionTranslator
assert not [name._name for *_, name in stand_ins.names() if name.of("torch._dynamo")]
assert only.allowed and all(trace_rules.is_callable_allowed(fn) for fn in only.allowed)
[runs] = [cell.cell_contents for cell in PagedAttentionCache.update.__closure__]
assert runs[0]._torchdynamo_disable
from torch._inductor import lowering
assert lowering.FALLBACK_ALLOW_LIST._vllm_patched
assert issubclass(InductorPass, torch._inductor.custom_graph_pass.CustomGraphPass)

for part in torch_later.PARTS:
    import_module(part)
assert all(name.real() for *_, name in stand_ins.names()), "parts import each other in circles, so some are left"
for module, name in only.asked:
    attrgetter(name)(import_module(module))
"""

ENDED = """
import sys
import torch
from models import stand_ins, torch_later
only = torch_later.only()
with only.imports():
    from torch._dynamo.symbolic_convert import InstructionTranslator
    assert type(InstructionTranslator) is stand_ins.Name
    @torch.compile(backend="eager")
    def double(x):
        return x * 2
    assert only.open and "torch._dynamo.eval_frame" not in sys.modules
    assert USE
    assert not only.open
    import torch._dynamo.symbolic_convert
    assert not isinstance(sys.modules["torch._dynamo"], stand_ins.Stand)
    assert InstructionTranslator is torch._dynamo.symbolic_convert.InstructionTranslator
assert double(torch.ones(2)).tolist() == [2, 2]
with only.imports():
    assert not only.open, "imported is imported"
"""


def run(script: str) -> None:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.real
@pytest.mark.timeout(300)
def test_parts_that_a_cpu_does_not_use_are_left_out_and_the_same_when_used() -> None:
    run(LEFT_OUT + AS_ELSEWHERE)


@pytest.mark.real
@pytest.mark.timeout(300)
def test_nothing_that_a_request_asks_for_imports_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    run(LEFT_OUT + USED.replace("PATH", repr(str(PACK / "starter-chat"))))


@pytest.mark.real
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "use",
    [
        "InstructionTranslator.__subclasscheck__(bool) is False",
        "double(torch.ones(2)).tolist() == [2, 2]",
        "type('Mine', (), {}) and __import__('types').new_class('Mine', (InstructionTranslator,))",
        "torch.compile(torch.nn.Identity(), backend='eager')(torch.ones(1)).tolist() == [1]",
    ],
)
def test_a_use_during_the_imports_imports_the_part(use: str) -> None:
    run(ENDED.replace("USE", use))
