"""The parts of vLLM that the chat engine uses, under names that are stable between releases."""

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

from models.chat.vllm import accounting, core, handlers, plugin, request_classes, source, tuned, variables
from models.chat.vllm.answers import token_bytes
from models.chat.vllm.cpu import shared_memory
from registry.base.json import read_object
from registry.bounds import Bounds
from registry.errors import EngineFailed, Unfit

GONE_WITHIN = 60.0
"""Seconds for the kernel to free a killed process; a hanging driver may prevent it forever."""
LOGPROBS_BYTES = {"cuda": 1 << 30, "cpu": 1 << 28}
"""Bytes for the logits of a step's tokens if prompt logprobs are requested, by device."""
LOGIT_BYTES = 12
"""Measured bytes per logit: itself, as float32, and its logprob."""


def parser() -> Any:
    """Return a new argument parser of `vllm serve`."""
    cli_args = import_module("vllm.entrypoints.launchers.cli_args")
    argparse_utils = import_module("vllm.utils.argparse_utils")
    return cli_args.make_arg_parser(argparse_utils.FlexibleArgumentParser())


def server() -> Any:
    """Return the module with `build_app` and `init_app_state`."""
    return import_module("vllm.entrypoints.launchers.api_server.entry")


async def application(engine: Any, arguments: Namespace) -> Any:
    """Return vLLM's own HTTP application on top of `engine`."""
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
    """Filter out the traceback that vLLM logs on this route for a prompt that is too long for the context."""
    from vllm.exceptions import VLLMClientError

    return not (record.exc_info and isinstance(record.exc_info[1], VLLMClientError | ValueError))


def adapter_names(app: Any) -> dict[str, Any]:
    """Return the adapters that vLLM's application knows by name."""
    names: dict[str, Any] = app.state.openai_serving_models.lora_requests
    return names


def reads_calls(app: Any) -> bool:
    """Return whether Responses of vLLM's application parses tool calls."""
    responses = app.state.openai_serving_responses
    if responses is None or responses.use_harmony:
        return True
    return responses.parser is not None and responses.parser.tool_parser_cls is not None


def processes(engine: Any) -> list[BaseProcess]:
    """Return EngineCore's processes, for an engine from `start_engine` or None."""
    return list(engine.roundhouse_processes) if engine else []


def _know_architecture(path: Path) -> None:
    """Register the model's class with vLLM, which would otherwise start a Python process to inspect it.

    On a GPU only classes imported by `prewarm`: importing another model's file may initialise CUDA, after which a
    process cannot be forked. Plug-ins of others are loaded afterwards and take precedence.
    """
    registry = import_module("vllm.model_executor.models").ModelRegistry
    any_file = import_module("vllm.platforms").current_platform.is_cpu()
    for architecture in read_object(path / "config.json").get("architectures") or ():
        module, name = source.class_of(architecture) or ("", "")
        if module and (any_file or module in sys.modules):
            registry.register_model(architecture, getattr(import_module(module), name))


def workers(arguments: Namespace) -> int:
    """Return the number of worker processes of one EngineCore."""
    return int(arguments.tensor_parallel_size) * int(arguments.pipeline_parallel_size)


def cores_of_workers(count: int) -> str:
    """Divide this process's cores equally among workers, in the form of `variables.CORES`; '' if there are too few."""
    cores = sorted(os.sched_getaffinity(0))
    share = len(cores) // count
    parts = [cores[number * share : (number + 1) * share] for number in range(count)]
    return "|".join(",".join(map(str, part)) for part in parts) if count > 1 and share else ""


def configuration(arguments: Namespace, device: str) -> Any:
    """Return vLLM's configuration for the arguments, without starting anything or using the device."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    _know_architecture(Path(arguments.model))
    settings = AsyncEngineArgs.from_cli_args(arguments)
    settings.worker_extension_cls = "models.chat.vllm.adapters.stage.StagedAdapters" if arguments.enable_lora else ""
    if workers(arguments) > 1:
        settings.distributed_executor_backend = "mp"
    elif device == "cpu":
        # the class instead of "uni", for which vLLM would start a separate worker process
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
    """Return an AsyncLLM with EngineCore running. Blocks for seconds. Must run in its own thread
    (`models.chat.processes`).

    swap_tokens, critical_tokens: maximum tokens of a step while adapters move or critical requests arrive. has_arena:
    whether to stage adapters in one piece of pinned memory.
    """
    from vllm.v1.engine.async_llm import AsyncLLM

    config = configuration(arguments, device)
    # On the CPU vLLM requires 'spawn' to bind OpenMP threads in a worker process, but there is none here.
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
    os.environ[variables.THREADS] = str(threads)
    if device == "cpu" and workers(arguments) > 1:
        # vLLM would bind each worker to its own NUMA node, and fails if there are too few
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        os.environ[variables.CORES] = cores_of_workers(workers(arguments))
    os.environ[variables.SWAP_TOKENS] = str(swap_tokens or "")
    os.environ[variables.CRITICAL_TOKENS] = str(critical_tokens or "")
    os.environ[variables.ARENA] = "1" if has_arena else ""
    os.environ[variables.LOGPROBS_TOKENS] = str(_logprobs_tokens(config, device))
    os.environ[variables.FOLLOW] = f"{bounds.follow_seconds} {bounds.follow_token_seconds}"
    os.environ.setdefault("VLLM_XGRAMMAR_CACHE_MB", str(max(1, bounds.grammar_cache >> 20)))
    cause = plugin.CauseFile()
    earlier = shared_memory.groups()
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
    finally:
        shared_memory.remove_names(shared_memory.groups() - earlier)


def _logprobs_tokens(config: Any, device: str) -> int:
    """Return the tokens of a step whose prompt logprobs fit; at least one per request, or answers would stall."""
    fits = LOGPROBS_BYTES["cpu" if device == "cpu" else "cuda"] // (LOGIT_BYTES * config.model_config.get_vocab_size())
    return max(int(fits), int(config.scheduler_config.max_num_seqs))


def describe_failure(error: Exception) -> str:
    """Describe the cause of a failed load."""
    if isinstance(error, TemplateSyntaxError):
        return f"its chat template is no Jinja template: {error}"
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"it needs the Python package {error.name}, which is not installed here"
    return str(error) or type(error).__name__


def cause(engine: Any) -> EngineFailed | None:
    """Return the cause that EngineCore recorded before its end; None if there is none or no engine."""
    error: EngineFailed | None = engine.roundhouse_cause.recorded_error() if engine else None
    return error


def stop_engine(engine: Any, children: Sequence[BaseProcess], within: float) -> None:
    """End the engine's processes, by force after `within` seconds.

    Blocks until they are gone. That may take seconds for a process with much memory, and nothing else waits for it.
    """
    engine.shutdown(within)
    for child in children:
        if child.is_alive():
            child.kill()
        child.join(GONE_WITHIN)
    engine.roundhouse_cause.close()


def sleep_mode_available() -> bool:
    """Return whether this vLLM has the allocator for sleep, which needs CUDA and its extension."""
    try:
        return bool(import_module("vllm.device_allocator.cumem").cumem_available)
    except ImportError:
        return False


async def ask(engine: Any, call: Callable[..., Any], *arguments: str | int) -> Any:
    """Return EngineCore's answer to one of `core.CALLS`."""
    return await engine.engine_core.call_utility_async(core.METHOD, call.__name__, list(arguments))


async def tuned_sizes(engine: Any) -> Sequence[int]:
    """Return the numbers of tokens of a step for which the engine's LoRA kernels have their own configuration."""
    return tuned.sizes(await ask(engine, core.card_name))


async def device_bytes(engine: Any) -> int:
    """Return the bytes that the engine holds on CUDA devices; 0 on the CPU.

    Raises EngineFailed if EngineCore runs without Roundhouse's patches, because adapters would be wrong there.
    """
    try:
        facts: list[int] = await ask(engine, core.process_facts)
        return facts[2] * int(engine.vllm_config.parallel_config.data_parallel_size)
    except Exception as error:
        raise EngineFailed(
            "vLLM runs without Roundhouse's plug-in (entry point vllm.general_plugins): install the package again"
        ) from error
