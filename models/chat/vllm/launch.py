"""The parts of vLLM that the chat engine uses, under names that stay the same between releases."""

import logging
import multiprocessing
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from importlib import import_module
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from jinja2 import TemplateSyntaxError

from models.chat.vllm import accounting, core, handlers, plugin, request_classes, source, token_bytes, variables
from registry.base.json import read_object
from registry.bounds import Bounds
from registry.errors import EngineFailed, Unfit

GONE_WITHIN = 60.0
"""Seconds in which the kernel frees what a killed process held; a driver that hangs may never let it."""
LOGPROBS_BYTES = {"cuda": 1 << 30, "cpu": 1 << 28}
"""Bytes for the logits of a step's tokens where a prompt's logprobs are requested, by device."""
LOGIT_BYTES = 12
"""Bytes of each logit as measured: itself, as float32, and its logprob. 2,000 tokens of a vocabulary of 131,072 took 3
GB.
"""


def parser() -> Any:
    """A fresh argument parser of `vllm serve`."""
    cli_args = import_module("vllm.entrypoints.launchers.cli_args")
    argparse_utils = import_module("vllm.utils.argparse_utils")
    return cli_args.make_arg_parser(argparse_utils.FlexibleArgumentParser())


def server() -> Any:
    """The module that holds `build_app` and `init_app_state`."""
    return import_module("vllm.entrypoints.launchers.api_server.entry")


async def application(engine: Any, arguments: Namespace) -> Any:
    """vLLM's own HTTP application on top of `engine`."""
    entry = server()
    tasks = await engine.get_supported_tasks()
    app = entry.build_app(arguments, tasks, engine.model_config)
    await entry.init_app_state(engine, app.state, arguments, tasks)
    handlers.patch_messages(app.state.anthropic_serving_messages)
    handlers.patch_parsers(app.state, "" if arguments.tool_parser_plugin else arguments.tool_call_parser or "")
    handlers.patch_templates(app.state.online_renderer)
    token_bytes.patch(app.state)
    request_classes.patch_errors(app)
    logging.getLogger("vllm.entrypoints.anthropic.api_router").addFilter(_is_ours)
    return app


def _is_ours(record: logging.LogRecord) -> bool:
    """vLLM logs a prompt that is too long for the context as its own failure, with a traceback, on this route only."""
    from vllm.exceptions import VLLMClientError

    return not (record.exc_info and isinstance(record.exc_info[1], VLLMClientError | ValueError))


def adapter_names(app: Any) -> dict[str, Any]:
    """The adapters that vLLM's application knows by name."""
    names: dict[str, Any] = app.state.openai_serving_models.lora_requests
    return names


def reads_calls(app: Any) -> bool:
    """Whether Responses of vLLM's application parses calls of tools."""
    responses = app.state.openai_serving_responses
    if responses is None or responses.use_harmony:
        return True
    return responses.parser is not None and responses.parser.tool_parser_cls is not None


def processes(engine: Any) -> list[BaseProcess]:
    """EngineCore's processes, of an engine that `start_engine` gave, or None."""
    return list(engine.roundhouse_processes) if engine else []


def _know_architecture(path: Path) -> None:
    """Register the model's class with vLLM, which would else start a Python process to inspect it.

    Off the CPU only what `prewarm` has imported: another model's file may touch CUDA when it is imported, and a process
    with CUDA cannot be forked. Plug-ins of others are loaded afterwards, and win.
    """
    registry = import_module("vllm.model_executor.models").ModelRegistry
    any_file = import_module("vllm.platforms").current_platform.is_cpu()
    for architecture in read_object(path / "config.json").get("architectures") or ():
        module, name = source.class_of(architecture) or ("", "")
        if module and (any_file or module in sys.modules):
            registry.register_model(architecture, getattr(import_module(module), name))


def workers(arguments: Namespace) -> int:
    """The number of processes that compute for one EngineCore."""
    return int(arguments.tensor_parallel_size) * int(arguments.pipeline_parallel_size)


def cores_of_workers(count: int) -> str:
    """An equal part of this process's cores for each worker, as `variables.CORES` says it; '': there are too few."""
    cores = sorted(os.sched_getaffinity(0))
    share = len(cores) // count
    parts = [cores[number * share : (number + 1) * share] for number in range(count)]
    return "|".join(",".join(map(str, part)) for part in parts) if count > 1 and share else ""


def configuration(arguments: Namespace, device: str) -> Any:
    """vLLM's configuration for the arguments; nothing is started, the device is not touched."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    _know_architecture(Path(arguments.model))
    settings = AsyncEngineArgs.from_cli_args(arguments)
    settings.worker_extension_cls = "models.chat.vllm.adapters.stage.StagedAdapters" if arguments.enable_lora else ""
    if workers(arguments) > 1:
        settings.distributed_executor_backend = "mp"
    elif device == "cpu":
        # the class, not "uni": vLLM turns the word into a worker process of its own, which costs a start and a copy
        settings.distributed_executor_backend = UniProcExecutor
    config = settings.create_engine_config(UsageContext.ENGINE_CONTEXT)
    if arguments.specialize_active_lora and device != "cpu" and not config.use_v2_model_runner:
        raise Unfit(
            "specialize_active_lora gives wrong answers with vLLM's first model runner (adapters.active_counts): leave "
            "it out, or VLLM_USE_V2_MODEL_RUNNER.",
            ["specialize_active_lora: needs the second model runner"],
            param="engine.flags",
        )
    return config


def start_engine(
    arguments: Namespace,
    device: str,
    threads: int,
    bounds: Bounds,
    swap_tokens: int | None = None,
    critical_tokens: int | None = None,
    *,
    has_arena: bool = False,
) -> Any:
    """An AsyncLLM with its EngineCore running. Blocks for seconds. For a thread of its own (`models.chat.processes`).

    swap_tokens, critical_tokens: most of a step while adapters or critical requests come. has_arena: stage adapters in
    one piece of pinned memory.
    """
    from vllm.v1.engine.async_llm import AsyncLLM

    config = configuration(arguments, device)
    # On the CPU vLLM asks for 'spawn' to bind OpenMP threads in a worker process, of which there is none here.
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
    os.environ[variables.THREADS] = str(threads)
    if device == "cpu" and workers(arguments) > 1:
        # vLLM would bind each worker to a NUMA node of its own, and ends where there are too few
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        os.environ[variables.CORES] = cores_of_workers(workers(arguments))
    os.environ[variables.SWAP_TOKENS] = str(swap_tokens or "")
    os.environ[variables.CRITICAL_TOKENS] = str(critical_tokens or "")
    os.environ[variables.ARENA] = "1" if has_arena else ""
    os.environ[variables.LOGPROBS_TOKENS] = str(_logprobs_tokens(config, device))
    os.environ[variables.FOLLOW] = f"{bounds.follow_seconds} {bounds.follow_token_seconds}"
    os.environ.setdefault("VLLM_XGRAMMAR_CACHE_MB", str(max(1, bounds.grammar_cache >> 20)))
    cause = plugin.CauseFile()
    try:
        others = set(multiprocessing.active_children())
        logger = accounting.stat_logger()
        engine = AsyncLLM.from_vllm_config(config, stat_loggers=[logger], disable_log_stats=arguments.disable_log_stats)
        engine.roundhouse_logger = logger
        engine.roundhouse_processes = [child for child in multiprocessing.active_children() if child not in others]
        engine.roundhouse_cause = cause
        return engine
    except Exception as error:
        recorded_error = cause.recorded_error()
        cause.close()
        if recorded_error is None:
            raise
        raise EngineFailed(
            f"vLLM's engine did not start: {recorded_error.message}", code=recorded_error.code
        ) from error


def _logprobs_tokens(config: Any, device: str) -> int:
    """Tokens of a step whose prompt logprobs fit; at least one for each request, or those that answer would wait."""
    fits = LOGPROBS_BYTES["cpu" if device == "cpu" else "cuda"] // (LOGIT_BYTES * config.model_config.get_vocab_size())
    return max(int(fits), int(config.scheduler_config.max_num_seqs))


def describe_failure(error: Exception) -> str:
    """The cause of a failed load in words."""
    return f"its chat template is no Jinja template: {error}" if isinstance(error, TemplateSyntaxError) else str(error)


def cause(engine: Any) -> EngineFailed | None:
    """The cause that EngineCore left of its end; None: it left none, or there is no engine."""
    error: EngineFailed | None = engine.roundhouse_cause.recorded_error() if engine else None
    return error


def stop_engine(engine: Any, children: Sequence[BaseProcess], within: float) -> None:
    """End the engine's processes, by force after `within` seconds. Blocks until nothing is left of them: the end of one
    with much memory may take seconds, and nobody else would ask for it."""
    engine.shutdown(within)
    for child in children:
        if child.is_alive():
            child.kill()
        child.join(GONE_WITHIN)
    engine.roundhouse_cause.close()


def sleep_mode_available() -> bool:
    """Whether this vLLM has the allocator for sleep: on CUDA, if its extension was built."""
    try:
        return bool(import_module("vllm.device_allocator.cumem").cumem_available)
    except ImportError:
        return False


async def ask(engine: Any, call: Callable[..., Any], *arguments: str | int) -> Any:
    """The answer of EngineCore to one of `core.CALLS`."""
    return await engine.engine_core.call_utility_async(core.METHOD, call.__name__, list(arguments))


async def device_bytes(engine: Any) -> int:
    """Bytes that the engine holds on CUDA devices; 0 on the CPU.

    Raises EngineFailed when EngineCore runs without Roundhouse's patches: adapters would be wrong there.
    """
    try:
        facts: list[int] = await ask(engine, core.process_facts)
        return facts[2] * int(engine.vllm_config.parallel_config.data_parallel_size)
    except Exception as error:
        raise EngineFailed(
            "vLLM runs without Roundhouse's plug-in (entry point vllm.general_plugins): install the package again, "
            "and let VLLM_PLUGINS name 'roundhouse' if it is set"
        ) from error
