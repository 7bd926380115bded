"""Both ways of computing LoRA on a CPU, for tests that hold for either."""

from models.chat.vllm.cpu import compiled, lora, products
from models.chat.vllm.cpu.lora import AddLora

WAYS = ["compiled", "products"]


def way(name: str) -> AddLora:
    if name == "products":
        return products.add
    found = lora.load()
    assert isinstance(found, compiled.Kernel), "this machine has no C compiler: `make` needs one too"
    return found
