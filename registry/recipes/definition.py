"""A recipe: versioned launch settings of one model. Unknown keys are refused.

`registry.recipes.loading` reads them from files and reports every fault with file and line. Here are only the types.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Literal, Self

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from registry.names import AdapterName, ModelId, RecipeId
from registry.recipes.fields import AnySource, Flag, ModelSource, Money, PoolName, Seconds, Size, Strict

MOST_REPLICAS = 16


# What a model is made for. `models.tasks` has one object for each.
class Task(StrEnum):
    endpoint: str
    """The task's main path, which errors name."""
    engines: tuple[str, ...]
    """The engines that can do it."""
    batches_inside: bool
    """True if the engine batches across requests itself, so that no more are sent than one batch holds."""

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
        """Requests at once: one batch if the engine batches across requests, else two."""
        return batch if self.batches_inside else 2 * batch


class Tier(StrEnum):
    DEVICE = "device"
    HOST = "host"
    PREWARMED = "prewarmed"
    """Files on disk, with an empty slot that has imported its engine's libraries: a load costs weights and set-up."""
    DISK = "disk"


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
    flags: dict[str, Flag] = Field(default_factory=dict)


class AdapterPlaces(Strict):
    """Room for LoRA adapters. `device`: places in the batch; `host`: staged ones.

    `on_demand`: requests may name adapters by a hub's id or an address, which registers them. `arena`: on a GPU, stage
    them in one piece of pinned memory with blocks of `max_rank`, instead of a block of a power of two for each.
    """

    device: int = Field(default=0, ge=0, le=1024)
    host: int = Field(default=0, ge=0, le=100_000)
    max_rank: Literal[1, 8, 16, 32, 64, 128, 256, 320, 512] = 16
    on_demand: bool = False
    arena: bool = False

    @model_validator(mode="after")
    def _host_holds_device(self) -> Self:
        if self.device and self.host < self.device:
            raise PydanticCustomError("adapter_places", "host must be at least device: what is in a place is staged")
        return self


class Memory(Strict):
    """Bytes. What is left out is estimated first and measured after the first load."""

    kv_cache: Size | None = None
    overhead: Size | None = Field(default=None, description="beside weights and KV cache; default per engine")
    adapters: AdapterPlaces = AdapterPlaces()


class Parallel(Strict):
    """Devices that one chat model is spread over: tensor x pipeline x data."""

    tensor: int = Field(default=1, ge=1, le=64, description="parts of each layer, a device for each")
    pipeline: int = Field(default=1, ge=1, le=64, description="groups of layers, one after the other")
    data: int = Field(default=1, ge=1, le=64, description="copies of what is beside the experts of a mixture")

    @property
    def devices(self) -> int:
        return self.tensor * self.pipeline * self.data

    def words(self) -> str:
        """The product, such as 'tensor 2 x pipeline 2'."""
        return " x ".join(f"{name} {count}" for name, count in self if count > 1) or "tensor 1"


FORMER_FLAGS = {
    "tensor_parallel_size": "tensor",
    "pipeline_parallel_size": "pipeline",
    "data_parallel_size": "data",
}
"""vLLM's names in `engine.flags`, by which recipes said it before there was `parallel`."""


def former_flags(recipe: object) -> Iterator[tuple[str, str]]:
    """Each flag of a recipe, as plain values, that is a key of `parallel` now; and that key."""
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
        description="chat: places beside `max_requests` for teams that would run no more than their part of those, so "
        "that they need not wait until one is free; default: an eighth of `max_requests`",
    )
    max_tokens: int = Field(default=8192, ge=1)
    tokens_while_swapping: int | None = Field(
        default=None,
        ge=1,
        description="chat: `max_tokens` while adapters come and for a second after; a swap waits for the running step, "
        "and a long prompt is read in more steps meanwhile",
    )
    tokens_beside_critical: int | None = Field(
        default=None,
        ge=1,
        description="chat: `max_tokens` while requests of the class critical come and for a second after, as each of "
        "them waits for the running step; default: a sixteenth of `max_tokens`, or two for each place if that is more",
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
        """Most that a chat engine runs at once."""
        return self.max_requests + self.spare_places


class QueueSpec(Strict):
    """Bounds on the number of waiting requests, and on their wait."""

    max_waiting: int = Field(default=256, ge=0, le=100_000)
    max_wait: Seconds = 120.0
    floor: float = Field(
        default=0.05,
        ge=0,
        lt=0.5,
        description="the least part of the model's work for each service class that waits, whatever higher ones want",
    )


class PoolSpec(Strict):
    """Places for one kind of request. The first pool whose conditions hold counts."""

    classes: tuple[Literal["critical", "interactive", "batch"], ...] = Field(
        default=("critical", "interactive", "batch"), min_length=1, description="service classes that it takes"
    )
    min_prompt: int = Field(default=0, ge=0, description="fewest prompt tokens, estimated from the body's size")
    max_prompt: int | None = Field(default=None, ge=1, description="most prompt tokens, estimated from the body's size")
    reserved: int = Field(default=0, ge=0, description="places that no other request takes")
    max_requests: int | None = Field(default=None, ge=1, description="places at once; default: all but those reserved")
    max_waiting: int = Field(
        default=256, ge=0, le=100_000, description="requests that may wait for it; one more is a 429"
    )
    ttft: Seconds | None = Field(default=None, description="goal for the first token; metrics count who met it")

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
    """A speech model's window, in whole seconds. Whisper knows 30 s."""

    seconds: int = Field(default=30, ge=1, le=30, description="seconds of a recording that are heard at once, at most")
    padded: int = Field(
        default=30,
        ge=1,
        le=30,
        description="seconds that each piece is filled up to for the network, at least `seconds`: what it costs",
    )

    @model_validator(mode="after")
    def _holds_the_sound(self) -> Self:
        if self.padded < self.seconds:
            raise PydanticCustomError("window_padded", "padded must be at least seconds: what is heard has to fit in")
        return self


class Residency(Strict):
    """Rules for how long a model stays, and how it leaves."""

    pin: bool = False
    idle_timeout: Seconds = Field(default=0.0, description="0: stays until another model needs the room")
    min_resident: Seconds = Field(default=2.0, description="not evicted sooner than this after its load")
    drain_deadline: Seconds = 60.0
    preload: bool = False
    sleep: Literal["auto", "always", "never"] = Field(
        default="auto",
        description="auto: where its weights then lie in host memory and half of its device bytes are freed",
    )
    sleep_timeout: Seconds = Field(
        default=0.0,
        description="a model that has slept for so long ends; 0: sleeps until another model needs the room",
    )
    sleep_prepared: bool = Field(
        default=False,
        description="chat on a GPU: pin the host memory of its sleep while it is idle, so that its first sleep takes "
        "the copy only; awake it then holds that memory, too",
    )


class Replicas(Strict):
    """The number of engines for the model, each with weights and adapter places of its own."""

    least: int = Field(default=1, ge=1, le=MOST_REPLICAS, description="loaded as the model is")
    most: int = Field(
        default=1,
        ge=1,
        le=MOST_REPLICAS,
        description="beyond `least` they come while requests wait longer than their goal and memory is free, and leave "
        "before any model does",
    )

    @model_validator(mode="before")
    @classmethod
    def _most_is_least(cls, value: object) -> object:
        if isinstance(value, dict) and value.keys() == {"least"}:
            least = value["least"]
            if isinstance(least, int) and 1 <= least <= MOST_REPLICAS:  # else it is one fault, and not two
                return {"least": least, "most": least}
        return value

    @model_validator(mode="after")
    def _most_holds_least(self) -> Self:
        if self.most < self.least:
            raise PydanticCustomError("replicas_most", "most must be at least `least`")
        return self


class Expected(Strict):
    """Costs of a load and an answer where the recipe was measured, to compare with."""

    load_seconds: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    resident: Size | None = None
    tokens_per_second: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    note: str = ""


class Prices(Strict):
    """Prices in the server's currency, to a millionth. What is left out is free."""

    input: Money = Field(default=0.0, description="price of a million prompt tokens")
    cached_input: Money | None = Field(
        default=None, description="price of a million prompt tokens that were in the cache; left out: as `input`"
    )
    written_input: Money | None = Field(
        default=None,
        description="price of a million prompt tokens that were written into the cache; left out: as `input`",
    )
    output: Money = Field(default=0.0, description="price of a million tokens that are made")
    audio_hour: Money = Field(default=0.0, description="price of an hour of a recording")
    pairs: Money = Field(default=0.0, description="price of a thousand pairs of query and document")
    batch: float = Field(default=1.0, ge=0, le=10, description="factor on all of them for lines of batches")


class RecipeAdapter(Strict):
    """An adapter that is registered at start if its name is not there yet."""

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
        description="what becomes of a request for more tokens than the context length; cut: with a warning header, "
        "except for clients that send `Prefer: handling=strict`",
    )
    strict: bool = Field(
        default=False,
        description="chat: refuse a hint that cannot be followed, such as an unknown field or OpenAI's `store: true`; "
        "else it is left out, with a warning header",
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
        """The first pool that takes such a request of so many tokens; '': none."""
        return next((name for name, pool in self.pools.items() if pool.takes(service_class, prompt)), "")

    @property
    def is_former(self) -> bool:
        """Whether it is a former version, served beside the current as `id@version`."""
        return "@" in self.id

    @model_validator(mode="before")
    @classmethod
    def _move_former_flags(cls, data: object) -> object:
        """Read vLLM's names for `parallel` as its keys, unless the recipe has both."""
        moved = dict(former_flags(data))
        if not moved or not isinstance(data, dict) or not isinstance(data.get("parallel", {}), Mapping):
            return data
        flags, parallel = data["engine"]["flags"], dict(data.get("parallel", {}))
        for flag, key in moved.items():
            if key in parallel:
                raise PydanticCustomError("former_flag", f"write it as parallel.{key} alone: there is that key, too")
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
        if self.batching.tokens_while_swapping and not self.memory.adapters.device:
            raise PydanticCustomError("swap_places", "tokens_while_swapping needs memory.adapters.device of at least 1")
        at_once = self.task.at_once(self.batching.max_requests)
        if self.pools and sum(pool.reserved for pool in self.pools.values()) >= at_once:
            raise PydanticCustomError("pools_reserved", "the pools reserve every place: leave one for the others")
        if self.task is not Task.TRANSCRIBE and self.window != WindowSpec():
            raise PydanticCustomError("window_task", "only task transcribe has windows; leave 'window' out")
        return self
