"""A recipe: versioned launch settings of one model. Unknown keys are refused.

Only the types are defined here. `registry.recipes.loading` reads them from files and reports every fault with its
file and line.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Literal, Self

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from registry.names import AdapterName, ModelId, RecipeId
from registry.recipes.fields import (
    AnySource,
    Flag,
    ModelSource,
    Money,
    PoolName,
    Seconds,
    Size,
    Strict,
    Text,
    flags_as_text,
)

MOST_REPLICAS = 16


# What a model is made for. `models.tasks` has one object for each.
class Task(StrEnum):
    endpoint: str
    """The task's main path, named in error messages."""
    engines: tuple[str, ...]
    """The engines that can run it."""
    batches_inside: bool
    """Whether the engine batches across requests itself. It is then sent only one batch at a time."""

    def __new__(
        cls, value: str, endpoint: str = "", engines: tuple[str, ...] = (), batches_inside: bool = False
    ) -> Self:
        task = str.__new__(cls, value)
        task._value_, task.endpoint, task.engines, task.batches_inside = value, endpoint, engines, batches_inside
        return task

    CHAT = "chat", "/v1/chat/completions", ("vllm",), True
    EMBED = "embed", "/v1/embeddings", ("sentence-transformers",)
    RERANK = "rerank", "/v1/rerank", ("sentence-transformers",)
    TRANSCRIBE = "transcribe", "/v1/audio/transcriptions", ("faster-whisper",)

    def at_once(self, batch: int) -> int:
        """Return how many requests to send at once: one batch if the engine batches across requests, else two."""
        return batch if self.batches_inside else 2 * batch


class Tier(StrEnum):
    DEVICE = "device"
    HOST = "host"
    PREWARMED = "prewarmed"
    """Disk, with an empty slot that has imported its engine's libraries: a load only reads weights and sets up."""
    DISK = "disk"


def _listed(value: object) -> object:
    """Return a single text as a list, as requests may have it."""
    return [value] if isinstance(value, str) else value


def _is_range(value: str) -> str:
    try:
        SpecifierSet(value)
    except InvalidSpecifier:
        raise PydanticCustomError("version_range", "write a range of versions such as '>=0.26,<0.33'") from None
    return value


class EngineSpec(Strict):
    """The library that runs the model, its tested versions, and its flags."""

    name: Literal["vllm", "sentence-transformers", "faster-whisper"]
    versions: Annotated[str, AfterValidator(_is_range)] = Field(
        default=">=0", description="a PEP 440 range, such as '>=0.26,<0.33'"
    )
    flags: Annotated[dict[str, Flag], BeforeValidator(flags_as_text)] = Field(default_factory=dict)


class AdapterPlaces(Strict):
    """Room for LoRA adapters. `device`: places in the batch; `host`: staged adapters.

    `on_demand`: requests may name adapters by hub id or address, which registers them. `arena`: on a GPU, stage them in
    one piece of pinned memory with blocks of `max_rank`, instead of allocating a power of two for each.
    """

    device: int = Field(default=0, ge=0, le=1024)
    host: int = Field(default=0, ge=0, le=100_000)
    max_rank: Literal[1, 8, 16, 32, 64, 128, 256, 320, 512] = 16
    on_demand: bool = False
    arena: bool = False

    @model_validator(mode="after")
    def _host_holds_device(self) -> Self:
        if self.device and self.host < self.device:
            raise PydanticCustomError(
                "adapter_places", "host must be at least device, because an adapter in a place is also staged"
            )
        return self


class Memory(Strict):
    """Bytes. Missing values are estimated first and measured after the first load."""

    kv_cache: Size | None = None
    overhead: Size | None = Field(default=None, description="besides weights and KV cache; default per engine")
    adapters: AdapterPlaces = AdapterPlaces()


class Parallel(Strict):
    """Devices that one chat model runs on: tensor x pipeline x data."""

    tensor: int = Field(default=1, ge=1, le=64, description="parts of each layer, one device each")
    pipeline: int = Field(default=1, ge=1, le=64, description="groups of layers, one after the other")
    data: int = Field(default=1, ge=1, le=64, description="copies of all weights but the experts of a mixture")

    @property
    def devices(self) -> int:
        return self.tensor * self.pipeline * self.data

    def words(self) -> str:
        """Return the product in words, such as 'tensor 2 x pipeline 2'."""
        return " x ".join(f"{name} {count}" for name, count in self if count > 1) or "tensor 1"


FORMER_FLAGS = {
    "tensor_parallel_size": "tensor",
    "pipeline_parallel_size": "pipeline",
    "data_parallel_size": "data",
}
"""vLLM's flags that are read as keys of `parallel`."""


def former_flags(recipe: object) -> Iterator[tuple[str, str]]:
    """Yield each flag that is now a key of `parallel`, with that key. recipe: as plain values."""
    match recipe:
        case {"engine": {"name": "vllm", "flags": Mapping() as flags}}:
            for flag in flags:
                if key := FORMER_FLAGS.get(str(flag).replace("-", "_")):
                    yield flag, key


class Batching(Strict):
    """Limits of an engine step: requests, and tokens (speech: seconds of audio)."""

    max_requests: int = Field(default=32, ge=1, le=4096)
    spare: int | None = Field(
        default=None,
        ge=0,
        le=512,
        description="chat: extra places beyond `max_requests` for teams that are within their fair share, so that they "
        "need not wait for a free one; default: an eighth of `max_requests`",
    )
    max_tokens: int = Field(default=8192, ge=1)
    tokens_while_swapping: int | None = Field(
        default=None,
        ge=1,
        description="chat: `max_tokens` while adapters are swapped in and for a second after; a swap waits for the "
        "running step, so shorter steps help, but long prompts take more of them",
    )
    tokens_beside_critical: int | None = Field(
        default=None,
        ge=1,
        description="chat: `max_tokens` while requests of the class critical arrive and for a second after, because "
        "each of them waits for the running step; default: a sixteenth of `max_tokens`, or two for each place if that "
        "is more",
    )

    @property
    def critical_step(self) -> int:
        requested = self.tokens_beside_critical
        return min(
            self.max_tokens, requested if requested is not None else max(self.max_tokens // 16, 2 * self.sequences)
        )

    @property
    def spare_places(self) -> int:
        return self.max_requests // 8 if self.spare is None else self.spare

    @property
    def sequences(self) -> int:
        """Most requests that a chat engine runs at once."""
        return self.max_requests + self.spare_places


class QueueSpec(Strict):
    """Bounds on the number of waiting requests, and on their wait."""

    max_waiting: int = Field(default=256, ge=0, le=100_000)
    max_wait: Seconds = 120.0
    floor: float = Field(
        default=0.05,
        ge=0,
        lt=0.5,
        description="minimum share of the model's work for each waiting service class, however busy higher ones are",
    )


class PoolSpec(Strict):
    """Places for one kind of request. The first pool whose conditions hold is used."""

    classes: tuple[Literal["critical", "interactive", "batch"], ...] = Field(
        default=("critical", "interactive", "batch"), min_length=1, description="service classes that it accepts"
    )
    min_prompt: int = Field(default=0, ge=0, description="fewest prompt tokens, estimated from the body's size")
    max_prompt: int | None = Field(default=None, ge=1, description="most prompt tokens, estimated from the body's size")
    reserved: int = Field(default=0, ge=0, description="places that other requests cannot use")
    max_requests: int | None = Field(default=None, ge=1, description="places at once; default: all but those reserved")
    max_waiting: int = Field(
        default=256, ge=0, le=100_000, description="requests that may wait for it; one more is a 429"
    )
    ttft: Seconds | None = Field(
        default=None, description="goal for the first token; metrics count the requests that met it"
    )

    @model_validator(mode="after")
    def _check_batching(self) -> Self:
        if self.max_requests is not None and self.reserved > self.max_requests:
            raise PydanticCustomError("pool_reserved", "reserved must be at most max_requests")
        if self.max_prompt is not None and self.min_prompt > self.max_prompt:
            raise PydanticCustomError("pool_prompt", "min_prompt must be at most max_prompt")
        return self

    def takes(self, service_class: str, prompt: float) -> bool:
        most = self.max_prompt
        return service_class in self.classes and prompt >= self.min_prompt and (most is None or prompt <= most)


class WindowSpec(Strict):
    """A speech model's window, in whole seconds. Whisper was trained on 30 s."""

    seconds: int = Field(
        default=30, ge=1, le=30, description="most seconds of a recording that are transcribed at once"
    )
    padded: int = Field(
        default=30,
        ge=1,
        le=30,
        description="seconds to which each piece is padded for the network, at least `seconds`; sets its cost",
    )

    @model_validator(mode="after")
    def _holds_the_sound(self) -> Self:
        if self.padded < self.seconds:
            raise PydanticCustomError("window_padded", "padded must be at least seconds, so that each piece fits")
        return self


class Residency(Strict):
    """When a model is loaded, and when and how it leaves memory."""

    pin: bool = False
    idle_timeout: Seconds = Field(default=0.0, description="0: stays until another model needs the memory")
    min_resident: Seconds = Field(default=2.0, description="shortest time between load and eviction")
    drain_deadline: Seconds = 60.0
    preload: bool = False
    sleep: Literal["auto", "always", "never"] = Field(
        default="auto",
        description="auto: only if its weights then stay in host memory and half of its device memory is freed",
    )
    sleep_timeout: Seconds = Field(
        default=0.0,
        description="unloads a model that has slept for this long; 0: sleeps until another model needs the memory",
    )
    sleep_prepared: bool = Field(
        default=False,
        description="chat on a GPU: pin the host memory for sleep while the model is idle, so that its first sleep "
        "only copies; the model then holds that memory while awake, too",
    )


class Replicas(Strict):
    """Number of engines for the model, each with its own weights and adapter places."""

    least: int = Field(default=1, ge=1, le=MOST_REPLICAS, description="loaded together with the model")
    most: int = Field(
        default=1,
        ge=1,
        le=MOST_REPLICAS,
        description="those beyond `least` are started while requests wait longer than their goal and memory is free, "
        "and are removed before any model is",
    )

    @model_validator(mode="before")
    @classmethod
    def _most_is_least(cls, value: object) -> object:
        if isinstance(value, dict) and value.keys() == {"least"}:
            least = value["least"]
            if isinstance(least, int) and 1 <= least <= MOST_REPLICAS:  # so that a bad value is one fault, not two
                return {"least": least, "most": least}
        return value

    @model_validator(mode="after")
    def _most_holds_least(self) -> Self:
        if self.most < self.least:
            raise PydanticCustomError("replicas_most", "most must be at least `least`")
        return self


class Expected(Strict):
    """Measured cost of a load and an answer where the recipe was made, for comparison."""

    load_seconds: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    resident: Size | None = None
    tokens_per_second: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    note: str = ""


class Prices(Strict):
    """Prices in the server's currency, to a millionth. Anything without a price is free."""

    input: Money = Field(default=0.0, description="price of a million prompt tokens")
    cached_input: Money | None = Field(
        default=None, description="price of a million prompt tokens that were in the cache; default: same as `input`"
    )
    written_input: Money | None = Field(
        default=None,
        description="price of a million prompt tokens that were written into the cache; default: same as `input`",
    )
    output: Money = Field(default=0.0, description="price of a million generated tokens")
    audio_hour: Money = Field(default=0.0, description="price of an hour of a recording")
    pairs: Money = Field(default=0.0, description="price of a thousand pairs of query and document")
    batch: float = Field(default=1.0, ge=0, le=10, description="factor on all prices for batch lines")


class RecipeAdapter(Strict):
    """An adapter that is registered at start if its name does not exist yet."""

    name: AdapterName
    source: AnySource
    pin: bool = False


class Recipe(Strict):
    """The versioned launch settings of one model."""

    id: RecipeId
    version: int = Field(ge=1, description="the recipe's own version; raise it with every change")
    task: Task
    source: ModelSource
    engine: EngineSpec
    dtype: Literal["auto", "float32", "float16", "bfloat16", "int8"] = "auto"
    context_length: int | None = Field(default=None, ge=16)
    on_too_many_tokens: Literal["refuse", "cut"] = Field(
        default="cut",
        description="what to do with a request for more tokens than the context length; cut: cap the answer, with a "
        "warning header, unless the client sends `Prefer: handling=strict`",
    )
    strict: bool = Field(
        default=False,
        description="chat: refuse a hint that cannot be followed, such as an unknown field or OpenAI's `store: true`, "
        "instead of ignoring it with a warning header",
    )
    system: str = Field(
        default="",
        max_length=65536,
        description="chat: the system message of requests that have none, for the model and its adapters",
    )
    stop: Annotated[tuple[Text, ...], BeforeValidator(_listed)] = Field(
        default=(),
        max_length=16,
        description="chat: texts that end an answer, for requests that name none, for the model and its adapters",
    )
    truncate: bool = Field(
        default=False,
        description="embed: cut inputs over the context length, with a warning header, where a request does not send "
        "`truncate`, unless the client sends `Prefer: handling=strict`",
    )
    reasoning_field: Literal["reasoning", "reasoning_content", "both"] = Field(
        default="reasoning",
        description="field of Chat Completions' answers with the reasoning: vLLM's and Ollama's, DeepSeek's, or both "
        "with the same text, which some clients refuse or show twice",
    )
    memory: Memory = Memory()
    parallel: Parallel = Parallel()
    window: WindowSpec = WindowSpec()
    batching: Batching = Batching()
    queue: QueueSpec = QueueSpec()
    pools: dict[PoolName, PoolSpec] = Field(default_factory=dict, max_length=16)
    residency: Residency = Residency()
    replicas: Replicas = Replicas()
    aliases: tuple[ModelId, ...] = ()
    adapters: tuple[RecipeAdapter, ...] = ()
    expected: Expected = Expected()
    price: Prices = Prices()
    description: str = ""
    owned_by: str = "roundhouse"

    def pool_of(self, service_class: str, prompt: float) -> str:
        """Return the first pool that takes such a request; '' if none. prompt: in tokens."""
        return next((name for name, pool in self.pools.items() if pool.takes(service_class, prompt)), "")

    @property
    def is_former(self) -> bool:
        """Whether this is a former version, served alongside the current one as `id@version`."""
        return "@" in self.id

    @model_validator(mode="before")
    @classmethod
    def _move_former_flags(cls, data: object) -> object:
        """Move flags with vLLM's names to `parallel`, and refuse a recipe that has both."""
        moved = dict(former_flags(data))
        if not moved or not isinstance(data, dict) or not isinstance(data.get("parallel", {}), Mapping):
            return data
        flags, parallel = data["engine"]["flags"], dict(data.get("parallel", {}))
        for flag, key in moved.items():
            if key in parallel:
                raise PydanticCustomError("former_flag", f"remove the flag; the recipe has parallel.{key}, too")
            parallel[key] = flags[flag]
        kept = {flag: value for flag, value in flags.items() if flag not in moved}
        return {**data, "engine": {**data["engine"], "flags": kept}, "parallel": parallel}

    @model_validator(mode="after")
    def _is_spread_with_care(self) -> Self:
        count, words = self.parallel.devices, self.parallel.words()
        if count > 1 and self.task is not Task.CHAT:
            raise PydanticCustomError("parallel_task", "only task chat runs on several devices; leave 'parallel' out")
        if count > 1 and self.residency.sleep == "always":
            raise PydanticCustomError(
                "parallel_sleep", f"a model on {count} devices ({words}) cannot sleep; write auto or never"
            )
        if count > self.parallel.tensor and self.memory.adapters.device:
            raise PydanticCustomError(
                "parallel_adapters", "only tensor parallel goes with memory.adapters; leave pipeline and data out"
            )
        return self

    @model_validator(mode="after")
    def _engine_fits_task(self) -> Self:
        if self.engine.name not in self.task.engines:
            engines = " or ".join(self.task.engines)
            raise PydanticCustomError("engine_task", f"task {self.task.value} needs engine name {engines}")
        if self.adapters and not self.memory.adapters.device:
            raise PydanticCustomError("adapters_places", "adapters need memory.adapters.device of at least 1")
        if self.task is not Task.CHAT and self.on_too_many_tokens != "cut":
            raise PydanticCustomError("too_many_tokens_task", "only task chat answers in tokens; leave it out")
        if self.task is not Task.CHAT and self.reasoning_field != "reasoning":
            raise PydanticCustomError("reasoning_task", "only task chat has reasoning; leave reasoning_field out")
        if self.task is not Task.CHAT and self.system:
            raise PydanticCustomError("system_task", "only task chat has a system message; leave 'system' out")
        if self.task is not Task.CHAT and self.stop:
            raise PydanticCustomError("stop_task", "only task chat ends its answers at a text; leave 'stop' out")
        if self.task is not Task.EMBED and self.truncate:
            raise PydanticCustomError("truncate_task", "only task embed cuts its inputs; leave 'truncate' out")
        if self.batching.tokens_while_swapping and not self.memory.adapters.device:
            raise PydanticCustomError("swap_places", "tokens_while_swapping needs memory.adapters.device of at least 1")
        at_once = self.task.at_once(self.batching.max_requests)
        if self.pools and sum(pool.reserved for pool in self.pools.values()) >= at_once:
            raise PydanticCustomError("pools_reserved", "the pools reserve every place: leave one for the others")
        if self.task is not Task.TRANSCRIBE and self.window != WindowSpec():
            raise PydanticCustomError("window_task", "only task transcribe has windows; leave 'window' out")
        return self
