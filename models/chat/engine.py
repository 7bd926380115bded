"""The chat engine: vLLM's AsyncLLM with vLLM's own HTTP application on top, called in this process without a port."""

import asyncio
import contextvars
from argparse import Namespace
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from models.chat import processes, settings, warmup
from models.chat.adapters import EngineAdapters
from models.chat.answers.custom_calls import CustomCalls
from models.chat.answers.fitting import Renamer, fit_answer
from models.chat.answers.responses import echo
from models.chat.answers.shapes import Overrides
from models.chat.asgi import PRIORITY, Exchange
from models.chat.grammars import process
from models.chat.grammars.admission import ADMISSION, GrammarAdmission, guard_engine
from models.chat.grammars.checker import GrammarChecker
from models.chat.requests import allowed_tools, client_tools, documents, errors, fields, limits, media, template, turns
from models.chat.requests.client_tools import ClientTools
from models.chat.requests.request import CHAT, COUNTING, INPUT_TOKENS, PATHS, RESPONSES, ChatRequest
from models.chat.sleep import Sleeper
from models.chat.vllm import accounting, launch, prewarm
from models.chat.vllm.accounting import METER, UsageMeter, meter_requests, undo_failed
from models.chat.vllm.answers.pace import pace_logprobs
from models.chat.vllm.handlers import TEMPLATE
from models.lifecycle import LoadPhases
from models.messages import (
    AdapterRef,
    Chunk,
    Event,
    HttpCall,
    LoadResult,
    MemoryFootprint,
    Progress,
    ResponseEnd,
    ResponseStart,
    Usage,
)
from models.protocol import Report
from registry.base.counting import count_down
from registry.base.turns import FairTurns
from registry.bounds import USUAL, Bounds
from registry.errors import BadRequest, EngineFailed, NotFound, RoundhouseError
from registry.files.context import bytes_of_files
from registry.recipes.definition import Recipe


@dataclass(frozen=True, slots=True)
class ReadCall:
    """A call whose request was read, checked and translated."""

    request: ChatRequest
    client: ClientTools | CustomCalls | None
    """Restores the client's own tools in the answer."""
    echoed: Overrides
    template: str
    """The adapter's own chat template; '' if it uses the base's."""
    budget: media.MediaBudget | None
    token_limits: dict[str, int]
    """The requested lengths of the answer."""
    warnings: tuple[str, ...]
    """'' for those that do not apply."""


class ChatCall(AsyncIterator[Event]):
    """The events of one call. `usage` is exact at any time, even after the call was cancelled or closed."""

    def __init__(self, events: AsyncGenerator[Event, None], meter: UsageMeter) -> None:
        self._events = events
        self._meter = meter

    def __aiter__(self) -> "ChatCall":
        return self

    async def __anext__(self) -> Event:
        return await self._events.__anext__()

    async def aclose(self) -> None:
        """End the call now, aborting its work in the engine."""
        await self._events.aclose()

    @property
    def usage(self) -> Usage:
        return self._meter.usage()


LEAVE_WITHIN = 5.0
"""Seconds that vLLM's application has to end after a disconnect, before its task is cancelled."""
CLOSE_WITHIN = 2.0
"""Seconds that EngineCore has to end by itself at `close`."""


class VllmEngine:
    """A loaded chat model. See `models.protocol` for what each method does in each state."""

    def __init__(self, bounds: Bounds = USUAL) -> None:
        self._bounds = bounds
        self._engine: Any = None
        self._app: Any = None
        self._adapters: EngineAdapters | None = None
        self._fields: fields.Fields = {}
        self._variables: template.Variables | None = None
        self._model = ""
        self._cuts, self._strict, self._traces, self._reasoning_field = False, False, False, "reasoning"
        self._state = "new"
        self._checker = GrammarChecker(lambda: process.start(self._engine, bounds), bounds)
        self._counting, self._pause_ends = FairTurns(), 0.0
        self._sleeper: Sleeper | None = None
        self._running: set[Exchange] = set()
        self._change: asyncio.Future[MemoryFootprint] | None = None
        """The last sleep or wake."""
        self._preparing: asyncio.Task[None] | None = None
        """Pins memory for the first sleep."""
        self._children = processes.EngineProcesses()
        self.on_broken: Callable[[EngineFailed], None] = lambda how: None
        self._cause = EngineFailed("the engine's process ended")

    async def load(self, recipe: Recipe, path: Path, device: str, report: Report) -> LoadResult:
        if self._state != "new":
            raise EngineFailed("this engine was used before: load into a new one")
        self._state = "loading"
        phases = LoadPhases(report)
        with phases.phase("importing", 0.0, "vLLM"):
            try:
                await asyncio.to_thread(prewarm.prewarm_core)
            except RuntimeError as error:  # a version of vLLM that our patches were not tested with
                raise EngineFailed(f"{recipe.id} could not be loaded: {error}") from error
        try:
            with phases.phase("starting", 0.3, "engine process"):
                arguments = settings.arguments(recipe, path, device, launch.parser())
                arguments.enable_sleep_mode = arguments.enable_sleep_mode and launch.sleep_mode_available()
                in_thread = partial(self._start, arguments, recipe, path, device)
                starting = asyncio.create_task(processes.in_new_thread(in_thread))
                await processes.child_or_end(starting)
            with phases.phase("weights", 0.4, f"{bytes_of_files(path) >> 20} MiB"):
                importing = asyncio.create_task(asyncio.to_thread(prewarm.prewarm_server))
                await starting
                await importing
            with phases.phase("warming", 0.8):
                on_device = await launch.device_bytes(self._engine)
                await self._open(arguments, recipe, path, device)
                adapters = self._adapters if arguments.enable_lora else None
                self._sleeper = Sleeper(self._engine, self._app, recipe.id, adapters, on_device, self._host_bytes)
                asleep = await self._sleeper.expected() if arguments.enable_sleep_mode else None
            self._state = "loaded"
        except RoundhouseError:
            raise
        except Exception as error:
            cause = launch.cause(self._engine) or EngineFailed(launch.describe_failure(error))
            raise EngineFailed(f"{recipe.id} could not be loaded: {cause.message}", code=cause.code) from error
        finally:
            if self._state != "loaded":
                await self.close()
        report(Progress("ready", 1.0))
        prepares = recipe.residency.sleep_prepared and asleep is not None
        if prepares and self._sleeper is not None:
            work = self._sleeper.prepare(lambda: not self._running)
            self._preparing = asyncio.create_task(work, name="memory of a sleep")
        return self._loaded(path, phases.seconds, on_device, asleep, prepares=prepares)

    def _start(self, arguments: Namespace, recipe: Recipe, path: Path, device: str) -> None:
        """Start EngineCore. Must run in its own thread."""
        threads = settings.threads(path, launch.workers(arguments))
        swap, critical = settings.swap_tokens(recipe), settings.critical_tokens(recipe)
        arena = recipe.memory.adapters.arena
        self._engine = launch.start_engine(arguments, device, threads, self._bounds, swap, critical, has_arena=arena)

    async def _open(self, arguments: Namespace, recipe: Recipe, path: Path, device: str) -> None:
        """Build vLLM's application on top of the engine with all checks that a call passes, and warm it up."""
        meter_requests(self._engine.output_processor)
        undo_failed(self._engine)
        pace_logprobs(self._engine)
        self._app = await launch.application(self._engine, arguments)
        self._adapters = EngineAdapters(self._engine, launch.adapter_names(self._app))
        effort = fields.knows_effort(path, recipe.engine.flags)
        calls = launch.reads_calls(self._app)
        reasoning = self._engine.vllm_config.reasoning_config
        budget = reasoning is not None and reasoning.enabled
        self._fields = fields.known(self._app, effort=effort, calls=calls, budget=budget)
        self._model = recipe.id
        self._variables = template.Variables(path, recipe.engine.flags)
        self._cuts, self._strict = recipe.on_too_many_tokens == "cut", recipe.strict
        self._reasoning_field = recipe.reasoning_field
        self._traces = bool(arguments.otlp_traces_endpoint)  # otherwise vLLM warns about the header
        running = launch.processes(self._engine)
        self._children.watch(running, self._child_died, lambda: launch.cause(self._engine))
        guard_engine(self._engine)
        await self._warm_up(arguments, recipe, device)
        await self._checker.begin()
        await self._engine.reset_prefix_cache()
        accounting.count_from_now(self._engine)

    async def _warm_up(self, arguments: Namespace, recipe: Recipe, device: str) -> None:
        await warmup.warmup(self._app, recipe.id, warmup.REQUESTS)
        if device == "cpu":
            return
        if arguments.enable_lora and self._adapters is not None:
            config, swap = self._engine.vllm_config, settings.swap_tokens(recipe)
            lengths = warmup.prompt_lengths(config, await launch.tuned_sizes(self._engine))
            await warmup.warm_up_adapters(self._app, self._adapters, lengths, swap, warmup.crowd_lengths(config))
        await warmup.warm_up_logprobs(self._app, recipe.id)

    def _host_bytes(self) -> int:
        return processes.memory_of(launch.processes(self._engine))

    def _loaded(
        self, path: Path, seconds: dict[str, float], on_device: int, asleep: MemoryFootprint | None, *, prepares: bool
    ) -> LoadResult:
        """Build the result of a load. prepares: whether it pins host memory for its sleep while awake."""
        on_host = asleep.host_bytes if prepares and asleep is not None else self._host_bytes()
        return LoadResult(
            resident_bytes=on_device or on_host,
            host_bytes=on_host if on_device else 0,
            asleep=asleep,
            weights_bytes=bytes_of_files(path),
            kv_cache_bytes=self._kv_cache_bytes(),
            seconds=seconds,
            context_length=self._engine.model_config.max_model_len,
        )

    def _kv_cache_bytes(self) -> int:
        """Return the bytes of the KV cache of all workers together."""
        config = self._engine.vllm_config
        workers = config.parallel_config.world_size * config.parallel_config.data_parallel_size
        return int(config.cache_config.kv_cache_memory_bytes or 0) * int(workers)

    def _child_died(self, how: EngineFailed) -> None:
        self._cause = how
        if self._state in ("loaded", "changing", "asleep"):
            self._state = "broken"
            self.on_broken(how)
            if self._change is not None:
                self._change.cancel()  # vLLM would wait for an answer forever
            for exchange in list(self._running):
                exchange.fail(how)

    def _broken(self) -> EngineFailed:
        return self._cause if self._state == "broken" else EngineFailed(f"the engine is {self._state}")

    def _ready(self) -> EngineAdapters:
        if self._state != "loaded" or self._adapters is None:
            raise self._broken()
        return self._adapters

    async def sleep(self) -> MemoryFootprint:
        adapters = self._ready()
        if self._sleeper is None or not self._sleeper.able:
            raise EngineFailed("this engine cannot sleep: vLLM frees memory in a sleep on CUDA only")
        if self._running or adapters.calls:
            raise EngineFailed("requests still run on this engine")
        self._end_preparing()
        return await self._changed(self._sleeper.down(), "asleep")

    async def wake(self) -> MemoryFootprint:
        if self._state != "asleep" or self._sleeper is None:
            raise self._broken()
        return await self._changed(self._sleeper.up(), "loaded")

    async def _changed(self, work: Coroutine[Any, Any, MemoryFootprint], state: str) -> MemoryFootprint:
        self._state = "changing"
        self._change = change = asyncio.ensure_future(work)
        await asyncio.wait([change])
        if self._state != "changing":  # its process died, or it was closed in the meantime
            raise self._cause
        if error := change.exception():
            self._cause, self._state = EngineFailed("the engine did not sleep or wake well"), "broken"
            if isinstance(error, RoundhouseError):
                raise error
            raise EngineFailed(f"the engine failed: {type(error).__name__}: {error}") from error
        self._state = state
        return change.result()

    def _end_preparing(self) -> None:
        if self._preparing is not None:
            self._preparing.cancel()
            self._preparing = None

    async def ping(self) -> None:
        if self._state != "asleep":
            self._ready()
        waiting = asyncio.ensure_future(self._engine.is_paused())
        while not (await asyncio.wait([waiting], timeout=0.5))[0]:
            if self._state not in ("loaded", "asleep"):
                waiting.cancel()
                raise self._cause
        if error := waiting.exception():
            self._alive()
            raise EngineFailed("the engine does not answer") from error
        self._children.alive()

    async def metrics(self) -> bytes:
        return accounting.metrics_text(self._engine)

    async def close(self) -> None:
        self._state = "closed"
        self._children.unwatch()
        self._end_preparing()
        for exchange in list(self._running):
            exchange.fail(EngineFailed("the engine was closed"))
        running = launch.processes(self._engine)
        engine, self._engine, self._app = self._engine, None, None
        await self._checker.close()
        if engine is not None:
            await asyncio.to_thread(launch.stop_engine, engine, running, CLOSE_WITHIN)

    def call(self, request: HttpCall) -> ChatCall:
        meter = UsageMeter()
        events = self._count if request.path in COUNTING else self._events
        return ChatCall(events(request, meter), meter)

    async def _count(self, call: HttpCall, meter: UsageMeter) -> AsyncGenerator[Event, None]:
        """Answer a call that only counts tokens: one at a time, and for half of the time while others run.

        vLLM tokenises in one thread and writes long answers on the event loop that feeds all streams, and nothing in
        the engine slows such calls down.
        """
        clock = asyncio.get_running_loop().time
        async with self._counting.take(call.team):
            if self._running and (pause := self._pause_ends - clock()) > 0:
                await asyncio.sleep(pause)
            began = clock()
            try:
                async with aclosing(self._events(call, meter)) as events:
                    async for event in events:
                        yield event
            finally:
                self._pause_ends = 2 * clock() - began

    async def _events(self, call: HttpCall, meter: UsageMeter) -> AsyncGenerator[Event, None]:
        adapters = self._ready()
        read = self._read(call, adapters)
        request = read.request
        admission = GrammarAdmission(
            self._checker, partial(errors.locate, request), adapters.arrival(call.served), call.team,
            only_counts=call.path == INPUT_TOKENS,
        )  # fmt: skip
        await admission.check_tags(request)
        self._ready()  # it may have been closed in the meantime
        context = contextvars.copy_context()
        context.run(METER.set, meter)
        context.run(ADMISSION.set, admission)
        context.run(TEMPLATE.set, read.template)
        context.run(media.BUDGET.set, read.budget)
        rename = Renamer(call.served, call.display_name)

        def fault() -> BadRequest | None:
            return errors.explain_failure(reached_engine=bool(meter.request_ids), constrained=admission.constrained)

        def fitted(data: bytes) -> bytes:
            data = fit_answer(
                call.path, data, call.tier, rename, fault, read.echoed, call.request_id, self._reasoning_field
            )
            return data if read.client is None else read.client.restore(data)

        exchange = Exchange(self._app, request.path, request.body, context, self._headers(call))
        self._running.add(exchange)
        adapters.calls[call.served] += 1
        try:
            if not await exchange.start():
                raise EngineFailed("the engine gave no answer")
            await exchange.until(admission.decided)
            if admission.refusal is not None:
                raise admission.refusal
            self._alive()
            tokens = admission.prompt_tokens
            if tokens is None and exchange.status >= 500:
                raise fault() or EngineFailed("the engine could not answer this request")
            warnings = filter(None, (*read.warnings, limits.cut_warning(read.token_limits, admission.tokens)))
            status = exchange.status if tokens is None else 200
            yield ResponseStart(status, exchange.content_type, "; ".join(warnings))
            if tokens is not None:
                yield Chunk(msgspec.json.encode({"object": "response.input_tokens", "input_tokens": tokens}))
            while tokens is None and (data := await exchange.part()) is not None:
                self._alive()
                is_error = exchange.status >= 400
                yield Chunk(rename(errors.add_param(errors.shorten(data), request)) if is_error else fitted(data))
        except RoundhouseError:
            raise
        except Exception as error:
            self._alive()
            raise admission.refusal or fault() or EngineFailed(f"the engine failed: {type(error).__name__}") from error
        finally:
            self._running.discard(exchange)
            admission.leave()
            ending = asyncio.ensure_future(self._end(exchange, meter, adapters, call.served))
            if self._state == "loaded":
                await asyncio.shield(ending)
        yield ResponseEnd(meter.usage())

    def _read(self, call: HttpCall, adapters: EngineAdapters) -> ReadCall:
        """Read and check a call's request, and turn it into one that vLLM takes."""
        request = ChatRequest(RESPONSES if call.path == INPUT_TOKENS else call.path, call.body)
        if call.path == INPUT_TOKENS:
            request.keep_prompt()
        request.drop_nulls()
        request.write_integers()
        strict = self._strict or call.strict
        given_tools = allowed_tools.restrict(request)
        not_stored = "" if strict else request.drop_store()
        left_out = self._check(call, request, adapters, strict=strict)
        config = self._engine.model_config
        budget = media.budget(request, self._bounds) if config.is_multimodal_model else None
        echoed = echo(request)
        client = client_tools.translate(request, given_tools)
        own = adapters.template(call.served)
        if self._variables is None or not self._variables.reads(documents.REFERENCE, own):
            documents.write_out_references(request)
        unread = template.describe_unread(self._variables, request, own, strict=strict)
        limits.allow_top_p_of_zero(request)
        token_limits = limits.token_limits(request)
        if self._cuts and not strict:
            limits.cut_tokens(request, config.max_model_len)
        return ReadCall(request, client, echoed, own, budget, token_limits, (not_stored, left_out, unread))

    def _headers(self, call: HttpCall) -> dict[str, str]:
        """Return the headers that vLLM's application reads."""
        headers = {"x-request-id": call.request_id} if call.request_id else {}
        if call.priority:
            headers[PRIORITY] = str(call.priority)
        return headers | (call.trace if self._traces else {})

    def _check(self, call: HttpCall, request: ChatRequest, adapters: EngineAdapters, *, strict: bool) -> str:
        """Check a request. Returns a warning about fields that were left out; '' if there were none."""
        if request.path not in PATHS:
            raise NotFound(f"no chat engine answers {request.path}", code="not_found")
        config = self._engine.model_config
        context, text_only = config.max_model_len, not config.is_multimodal_model
        limits.check_size(request, context, self._bounds, text_only=text_only)
        model = request.model
        left_out = fields.check(self._fields, request, strict=strict)
        if request.path == CHAT:
            turns.check(request)
        limits.check(request, context, self._bounds)
        if request.path == "/detokenize":
            limits.check_tokens(request, max(self._engine.get_tokenizer().max_token_id, config.get_vocab_size() - 1))
        base = call.adapter is None
        known = call.served == self._model if base else adapters.may_be_named(call.served)
        if not known or (model != call.served and not (base and model is None)):
            raise EngineFailed(f"{call.served} is not in the engine: the base never answers for it")
        return left_out

    def _alive(self) -> None:
        if self._engine is None:
            raise EngineFailed("the engine was closed")
        if self._engine.errored:  # vLLM may notice before our event loop does
            self._child_died(self._children.how_ended())
            raise self._cause

    async def _end(self, exchange: Exchange, meter: UsageMeter, adapters: EngineAdapters, served: str) -> None:
        """Remove a call from the engine. Its adapter counts as used until vLLM's part has ended."""
        meter.closed = True
        exchange.leave()
        try:
            if exchange.running and self._state == "loaded":
                await self._engine.abort(meter.request_ids, internal=True)
            await exchange.ended(LEAVE_WITHIN)
        finally:
            count_down(adapters.calls, served)

    async def stage(self, adapter: AdapterRef) -> None:
        await self._ready().stage(adapter)

    async def place(self, adapter: AdapterRef, evict: str | None, patience: float = 0.0) -> None:
        await self._ready().place(adapter, evict, patience)

    async def drop(self, digest: str) -> None:
        await self._ready().drop(digest)
