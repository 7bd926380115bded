"""Both ways of computing LoRA on a CPU, for tests that hold for either."""

from models.chat.vllm.cpu import kernel, products
from models.chat.vllm.cpu.kernel import AddLora

WAYS = ["compiled", "products"]


def way(name: str) -> AddLora:
    if name == "products":
        return products.add
    found = kernel.load()
    assert isinstance(found, kernel.Kernel), "this machine has no C compiler, which `make` needs too"
    return found
