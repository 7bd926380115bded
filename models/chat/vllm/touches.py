"""Every place where Roundhouse relies on vLLM's private side, or replaces something there.

tests/contract/vllm/test_touches.py fails when one of them is gone or takes other parameters; `test` is the file that
shows the fault without it, or uses it. EngineCore also gets one utility method of ours (`core.METHOD`).
"""

from typing import NamedTuple


class VllmPatch(NamedTuple):
    """`where` is module:attribute, or module:Class.attribute, which may be set in the class' code."""

    where: str
    why: str
    test: str
    takes: tuple[str, ...] | None = None
    """First parameters that are relied on; None: it is not called."""


CORE, LORA = "tests/contract/vllm/test_core.py", "tests/contract/vllm/test_staged.py"
MESSAGES = "tests/contract/vllm/test_messages.py"
GRAMMARS = "tests/contract/chat_engine/test_grammars.py"
NUMBERS = "tests/contract/chat_engine/test_numbers.py"
ENGINE, SLEEP = "tests/contract/chat_engine/test_adapters.py", "tests/contract/test_sleep_gpu.py"

REPLACED = (
    VllmPatch(
        "vllm.v1.engine.core:EngineCore.__init__",
        "what its process needs is done first; the reason of a failed start is left for the slot",
        CORE,
        ("self", "vllm_config", "executor_class", "log_stats"),
    ),
    VllmPatch(
        "vllm.v1.engine.core:EngineCore.preprocess_add_request",
        "a request for an adapter that is in no place would end the engine",
        CORE,
        ("self", "request"),
    ),
    VllmPatch(
        "vllm.lora.worker_manager:LRUCacheWorkerLoRAManager.add_adapter",
        "it would load from a path inside a step, and lists all cached adapters for each of a step",
        CORE,
        ("self", "lora_request"),
    ),
    VllmPatch(
        "vllm.lora.model_manager:get_supported_lora_modules",
        "adapters of the embedding and the head have no way in; a layer has its adapter by each of its names",
        "tests/contract/vllm/test_cpu_punica.py",
        ("model",),
    ),
    VllmPatch("vllm.lora.lora_model:safetensors", "a mapped file that is cut short ends the engine", LORA),
    VllmPatch(
        "vllm.platforms.cpu:CpuPlatform.get_punica_wrapper",
        "CPU: a base request in a mixed batch gets the last place's adapter; slow",
        "tests/contract/vllm/test_cpu_punica.py",
        (),
    ),
    VllmPatch(
        "vllm.v1.engine.output_processor:OutputProcessor.add_request",
        "exact token counts of every call, from `request_states`; `AsyncLLM.abort` takes back what fails after it",
        NUMBERS,
        ("self", "request"),
    ),
    VllmPatch(
        "vllm.v1.structured_output:StructuredOutputManager._create_grammar",
        "compiled at a lower priority, not beside the steps; one that takes too long in them ends its request",
        GRAMMARS,
        ("self", "request"),
    ),
    VllmPatch(
        "vllm.sampling_params:SamplingParams._validate_structured_outputs",
        "a grammar that was checked is not parsed again on the loop that feeds all streams",
        GRAMMARS,
        ("self", "model_config", "structured_outputs_config", "tokenizer"),
    ),
    VllmPatch(
        "vllm.entrypoints.openai.responses.protocol:ResponsesRequest.model_fields",
        "numbers of every request have 64 bits; a list is looked at up to its first fault: else for 30 s",
        "tests/contract/chat_engine/test_fail_fast.py",
    ),
    VllmPatch(
        "vllm.entrypoints.anthropic.serving:AnthropicServingMessages.create_chat_completion",
        "Messages: a call of a tool that `max_tokens` cut is a 400; an error in a stream is told as one of reading it",
        MESSAGES,
        ("self", "request"),
    ),
)

USED = (
    VllmPatch(
        "vllm.v1.engine.core:EngineCoreProc.input_queue",
        "staging begins when its call arrives, not after the running step",
        CORE,
    ),
    VllmPatch(
        "vllm.v1.engine.core:EngineCoreProc._handle_client_request",
        "the way of a call; a Future is an answer, so staging is told when it has ended, without polls",
        CORE,
        ("self", "request_type", "request"),
    ),
    VllmPatch("vllm.v1.core.sched.scheduler:Scheduler.requests", "whether a request uses an adapter", ENGINE),
    VllmPatch(
        "vllm.v1.worker.lora_model_runner_mixin:LoRAModelRunnerMixin.lora_manager", "the way to the places", ENGINE
    ),
    VllmPatch("vllm.lora.worker_manager:WorkerLoRAManager._adapter_manager", "the way to the places", LORA),
    VllmPatch(
        "vllm.lora.worker_manager:WorkerLoRAManager._load_adapter",
        "vLLM's own loader, in a thread",
        LORA,
        ("self", "lora_request"),
    ),
    VllmPatch(
        "vllm.lora.model_manager:LoRAModelManager._create_merged_loras_inplace",
        "packs what was loaded, in the thread",
        LORA,
        ("self", "lora_model"),
    ),
    VllmPatch(
        "vllm.lora.model_manager:LoRAModelManager.lora_index_to_id",
        "which adapter is in which place; whoever writes it says so",
        LORA,
    ),
    VllmPatch(
        "vllm.lora.layers.base_linear:BaseLinearLayerWithLoRA.set_lora",
        "a place is written in the thread, and published between two steps",
        LORA,
        ("self", "index", "lora_a", "lora_b"),
    ),
    VllmPatch(
        "vllm.entrypoints.openai.models.serving:OpenAIServingModels.lora_requests",
        "only placed adapters may be asked for",
        ENGINE,
    ),
    VllmPatch(
        "vllm.v1.core.sched.scheduler:Scheduler.max_num_scheduled_tokens",
        "shorter steps while adapters come, for which a place would wait",
        CORE,
    ),
    VllmPatch("vllm.device_allocator.cumem:CuMemAllocator.pointer_to_data", "bytes that a sleep keeps", SLEEP),
)

TOUCHES = REPLACED + USED

PARSED = {
    "model_executor/models/registry.py": (
        "_TEXT_GENERATION_MODELS",
        "_MULTIMODAL_MODELS",
        "_TRANSFORMERS_SUPPORTED_MODELS",
        "_PREVIOUSLY_SUPPORTED_MODELS",
        "_OOT_SUPPORTED_MODELS",
    ),
    "model_executor/layers/quantization/__init__.py": ("QuantizationMethods",),
    "transformers_utils/config.py": ("_CONFIG_REGISTRY",),
}
"""Read in vLLM's source by `source.py`, not imported. Without one of them that check is left to a load."""
