"""All uses of vLLM's private parts, with their purpose and what would make them unnecessary.

tests/contract/vllm/test_touches.py fails if a place is gone or has other parameters, and if the product uses a name of
vLLM that no row has (`touch_scan` finds them by syntax tree). EngineCore also gets one utility method of ours
(`core.METHOD`), and attributes whose names begin with `roundhouse_`.
"""

from typing import NamedTuple

from models.chat.vllm import prewarm

CORE, LORA = "tests/contract/vllm/test_core.py", "tests/contract/vllm/adapters/test_staged.py"
ACTIVE = "tests/contract/vllm/adapters/test_active_counts.py"
METADATA = "tests/contract/vllm/test_gpu_metadata.py"
PUNICA, MESSAGES = "tests/contract/vllm/cpu/test_punica.py", "tests/contract/vllm/answers/test_messages.py"
PARTS, FILES = "tests/contract/chat/test_parts.py", "tests/contract/chat/test_files.py"
ENGINE, ANSWERS = "tests/contract/chat_engine/test_adapters.py", "tests/contract/chat_engine/test_answers.py"
GRAMMARS, SLEEP = "tests/contract/chat_engine/test_grammars.py", "tests/contract/test_sleep_gpu.py"
COUNTING, NUMBERS = "tests/contract/chat_engine/test_counting.py", "tests/contract/chat_engine/test_numbers.py"
WHOLE, BYTES = "tests/contract/vllm/answers/test_whole.py", "tests/contract/vllm/answers/test_token_bytes.py"
MEDIA = "tests/contract/vllm/test_media.py"
BATCH = "tests/contract/vllm/steps/test_batch_share.py"
PLUGIN, PREWARM = "tests/contract/vllm/test_plugin.py", "tests/contract/vllm/test_prewarm.py"
TENSOR = "tests/system/residency/test_tensor.py"
LIVE = "an upstream change that lets an adapter be loaded and placed while steps run"
PIN = "an upstream fix, and the next pin"
PUBLIC = "nothing: documented, or vLLM's own command line"
_PREWARMED = (
    "vllm.connections",
    *(name for name in (*prewarm.CORE, *prewarm.CPU, *prewarm.CUDA, *prewarm.SERVER) if name.startswith("vllm.")),
)


class VllmPatch(NamedTuple):
    """A place in vLLM: module:attribute or module:Class.attribute, where the class may set it in its own code.

    Attributes:
        where: the place; its module, class and attribute are used.
        gives: its purpose for Roundhouse.
        goes: what would make it unnecessary.
        test: the test file that fails without it, or uses it.
        takes: its first parameters, separated by spaces, if they matter.
        also: other names used with it, separated by spaces: modules, module:name, or attributes.
    """

    where: str
    gives: str
    goes: str
    test: str
    takes: str = ""
    also: str = ""


REPLACED = (
    VllmPatch(
        "vllm.v1.engine.core:EngineCore.__init__",
        "prepares EngineCore's process first, and leaves the cause of a failed start for the slot",
        "an upstream hook in EngineCore's process, and an error that keeps its cause",
        CORE,
        takes="self vllm_config executor_class log_stats",
        also="vllm_config lora_config",
    ),
    VllmPatch(
        "vllm.v1.engine.core:EngineCore.preprocess_add_request",
        "refuses a request for an adapter that is in no place, which would end the engine",
        PIN,
        CORE,
        takes="self request",
        also="lora_request lora_int_id lora_name",
    ),
    VllmPatch(
        "vllm.v1.core.sched.scheduler:Scheduler._reserve_prefill_lookahead",
        "requests of the class batch take a small part of each step, or none, beside those of a higher class",
        "a bound on a request's part of a step by priority in vLLM",
        BATCH,
        takes="self request num_computed_tokens num_new_tokens",
        also="current_step need_mamba_block_aligned_split has_encoder_inputs scheduler_config enable_chunked_prefill",
    ),
    VllmPatch(
        "vllm.lora.worker_manager:LRUCacheWorkerLoRAManager.add_adapter",
        "keeps vLLM from loading from a path inside a step, and from listing all cached adapters for each of a step",
        LIVE,
        CORE,
        takes="self lora_request",
        also="get_adapter activate_adapter",
    ),
    VllmPatch(
        "vllm.lora.model_manager:get_supported_lora_modules",
        "leaves out the embedding, the head and experts; a layer has its adapter by each of its names",
        PIN,
        PUNICA,
        takes="model",
        also="named_modules embedding_modules vllm.model_executor.layers.linear:LinearBase",
    ),
    VllmPatch(
        "vllm.lora.lora_model:safetensors",
        "reads a file before it is used: a mapped file that is cut short ends the engine",
        "an upstream option to read adapters instead of mapping them",
        LORA,
    ),
    VllmPatch(
        "vllm.model_executor.model_loader.default_loader:DefaultModelLoader.load_weights",
        "refuses a model whose files lack weights of a linear layer, an embedding or an expert",
        "an upstream check of each weight (its own exempts these)",
        FILES,
        takes="self model model_config",
        also="quant_method named_modules named_parameters is_meta is_floating_point element_size numel dim select "
        "vllm.model_executor.layers.linear:UnquantizedLinearMethod "
        "vllm.model_executor.layers.vocab_parallel_embedding:UnquantizedEmbeddingMethod "
        "vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method:UnquantizedFusedMoEMethod",
    ),
    VllmPatch(
        "vllm.tool_parsers.utils:_get_json_schema_from_tools",
        "references in a tool's parameters lead into these, in the schema of required calls too",
        PIN,
        WHOLE,
        takes="tools parallel_tool_calls",
        also="vllm.tool_parsers.utils",
    ),
    VllmPatch(
        "vllm.tool_parsers.utils:_get_tool_schema_defs",
        "two tools may have definitions of the same name",
        PIN,
        WHOLE,
        takes="tools",
    ),
    VllmPatch(
        "vllm.multimodal.cache.factories:_get_cache_type",
        "a request does not fail because an earlier one with the same image never reached EngineCore",
        "an upstream cache that knows what EngineCore has",
        MEDIA,
        takes="vllm_config",
        also="vllm.multimodal.cache.factories",
    ),
    VllmPatch(
        "vllm.v1.engine.core_client:AsyncMPClient._send_input",
        "an image that EngineCore has for certain is not sent again: 36 MB for one of 6 megapixels",
        "an upstream cache that knows what EngineCore has",
        MEDIA,
        takes="self request_type request engine",
        also="vllm.v1.engine.core_client:AsyncMPClient ADD mm_features mm_hash identifier parallel_config "
        "data_parallel_size has_coordinator get_multimodal_config mm_processor_cache_gb",
    ),
    VllmPatch(
        "vllm.multimodal.image:ALLOWED_IMAGE_FORMATS",
        "an image is not larger than it seems: no formats that hold others, or are decoded when opened",
        "an upstream bound on the memory of all media of a request",
        MEDIA,
        also="vllm.multimodal.image",
    ),
    VllmPatch(
        "vllm.multimodal.media.connector:MediaConnector.load_from_url_async",
        "an unreadable file, or one too many, is a 400 that names the field, and a request takes few media threads",
        "an upstream bound on the memory of all media of a request",
        MEDIA,
        takes="self url media_io",
        also="vllm.multimodal.media.connector get_max_bytes",
    ),
    VllmPatch(
        "vllm.multimodal.media.connector:global_thread_pool",
        "the thread that decodes knows the request",
        "an upstream bound on the memory of all media of a request",
        MEDIA,
        also="submit",
    ),
    VllmPatch(
        "vllm.multimodal.media.image:open_image",
        "counts an image's pixels before it is decoded",
        "an upstream bound on the memory of all media of a request",
        MEDIA,
        takes="fp",
        also="vllm.multimodal.media.image width height",
    ),
    VllmPatch(
        "vllm.multimodal.media.image:normalize_image",
        "an image is not copied when it is turned upright, and its EXIF not written anew",
        "an upstream bound on the memory of all media of a request",
        MEDIA,
        takes="image",
    ),
    VllmPatch(
        "vllm.multimodal.media.audio:load_audio_pyav",
        "counts the sound of a video that a model's preprocessor reads by itself",
        "an upstream bound on the memory of all media of a request",
        MEDIA,
        takes="path",
        also="vllm.model_executor.models.nano_nemotron_vl",
    ),
    VllmPatch(
        "vllm.renderers.base:BaseRenderer.__init__",
        "the thread that preprocesses media knows the request",
        "an upstream bound on the memory of all media of a request",
        MEDIA,
        also="_mm_executor",
    ),
    VllmPatch(
        "vllm.multimodal.video_decoders.opencv:OpenCVVideoBackendMixin.open_video_capture",
        "a video whose header takes too long to read is refused",
        "an upstream bound on the time to open a video",
        MEDIA,
        takes="data",
    ),
    VllmPatch(
        "vllm.multimodal.video:VideoLoader.read_frames",
        "the decoding of a video ends when its client leaves",
        "an upstream end of decoding when a request is cancelled",
        MEDIA,
        takes="cap frame_idx",
        also="grab",
    ),
    VllmPatch(
        "vllm.multimodal.media.audio:load_audio",
        "counts a sound's samples while it is decoded; opens no other files; mixes channels, whatever is installed",
        "an upstream bound on the memory of all media of a request",
        MEDIA,
        takes="path",
        also="vllm.multimodal.media.audio",
    ),
    VllmPatch(
        "vllm.multimodal.video:decode_video",
        "counts the frames of a video that are to be read before they are decoded",
        "an upstream bound on the memory of all media of a request",
        MEDIA,
        takes="backend loader_cls data",
        also="vllm.multimodal.video total_frames_num",
    ),
    VllmPatch(
        "vllm.multimodal.video:VideoLoader.compute_frames_index_to_sample",
        "tells which frames of a video are to be read",
        "an upstream bound on the memory of all media of a request",
        MEDIA,
        takes="source target",
    ),
    VllmPatch(
        "vllm.multimodal.video_decoders.opencv:OpenCVVideoBackendMixin.get_video_metadata",
        "a video of a small file does not take an hour of computation",
        "an upstream bound on the frames that are decoded",
        MEDIA,
        takes="cap",
    ),
    VllmPatch(
        "vllm.multimodal.video_decoders.base:check_frame_pixel_limit",
        "tells the size of a video's frames",
        "an upstream bound on the memory of all media of a request",
        MEDIA,
        takes="width height",
        also="vllm.multimodal.video_decoders.base vllm.multimodal.video_decoders.opencv",
    ),
    VllmPatch(
        "vllm.renderers.base:BaseRenderer._process_tokens_async",
        "caches an image by its content and its team's salt, not by a name that any client may choose",
        "an upstream key of media that includes the salt, and an option to ignore a client's names of them",
        MEDIA,
        takes="self prompt",
        also="vllm.renderers.base:BaseRenderer",
    ),
    VllmPatch(
        "vllm.lora.punica_wrapper.punica_gpu:PunicaWrapperGPU.update_metadata",
        "GPU: which token has which adapter is worked out on the CPU, and sent in one copy that nothing waits for",
        "vLLM's PR 53309 (metadata on the CPU), and the next pin",
        METADATA,
        takes="self mapping lora_index_to_id max_loras vocab_size",
        also="index_mapping prompt_mapping indices_len _token_lora_indices _sampler_indices _sampler_indices_padded "
        "_embeddings_indices token_mapping_meta prompt_mapping_meta token_lora_mapping captured_lora_counts "
        "token_indices_sorted_by_lora_ids active_lora_ids num_tokens_per_lora lora_token_start_loc no_lora_flag_cpu "
        "num_active_loras_cpu",
    ),
    VllmPatch(
        "vllm.v1.worker.gpu.lora_utils:LoraState.make_lora_inputs",
        "GPU: the adapters of a step's tokens as numbers of Python, which compare five times as fast as numpy's",
        PIN,
        METADATA,
        takes="self req_ids idx_mapping num_scheduled_tokens",
        also="lora_ids get_activate_loras",
    ),
    VllmPatch(
        "vllm.v1.worker.gpu.model_runner:get_num_active_loras_for_dispatch",
        "GPU: with `specialize_active_lora` the last adapter beside the base's rows would get the base's answer",
        PIN,
        ACTIVE,
        takes="lora_config lora_state req_ids dummy_run",
        also="get_activate_loras max_loras vllm.v1.worker.gpu.model_runner vllm.v1.worker.gpu.lora_utils",
    ),
    VllmPatch(
        "vllm.platforms.interface:Platform.device_control_id_to_physical_device_id",
        "GPU: CUDA_VISIBLE_DEVICES may name a GPU by its UUID's beginning, or a part of one (MIG)",
        "vLLM's PRs 46132 and 51716, and the next pin",
        PLUGIN,
        takes="device_id",
        also="device_type",
    ),
    VllmPatch(
        "vllm.v1.worker.gpu_worker:Worker.sleep",
        "GPU: an engine falls asleep while another takes more memory on its device than the sleep frees",
        "an upstream sleep that measures its own process",
        PLUGIN,
        takes="self level",
        also="vllm.device_allocator.cumem:CuMemAllocator is_asleep",
    ),
    VllmPatch(
        "vllm.lora.utils:get_captured_lora_counts",
        "GPU: with `specialize_active_lora` graphs for four numbers of adapters, where vLLM captures each power of two",
        "vLLM's PR 36370, or an option for the numbers",
        ACTIVE,
        takes="max_loras specialize",
        also="vllm.lora.utils vllm.lora.punica_wrapper.punica_gpu vllm.v1.cudagraph_dispatcher use_v2_model_runner",
    ),
    VllmPatch(
        "vllm.platforms.cpu:CpuPlatform.get_punica_wrapper",
        "CPU: a base request in a mixed batch would get the last place's adapter, slowly",
        PIN,
        PUNICA,
        takes="",
        also="vllm.lora.punica_wrapper.punica_base:PunicaWrapperBase is_prefill index_mapping "
        "vllm.platforms:current_platform vllm.platforms current_platform is_cpu",
    ),
    VllmPatch(
        "vllm.model_executor.layers.fused_moe.config:FusedMoEConfig.is_lora_enabled",
        "CPU: a model with experts loads with adapter places; vLLM would compute its experts by Triton",
        PIN,
        "tests/contract/chat/test_experts.py",
        also="vllm.model_executor.layers.fused_moe:MoERunner register_oot "
        "vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method:UnquantizedFusedMoEMethod",
    ),
    VllmPatch(
        "vllm.v1.engine.output_processor:OutputProcessor.add_request",
        "exact token counts of every call, from `request_states`; what a failed request registered is undone",
        "usage in vLLM's answers to aborted requests, and an upstream fix for failed ones",
        ANSWERS,
        takes="self request",
        also="output_processor request_states request_id parent_req request_index prompt_len detokenizer "
        "num_output_tokens num_cached_tokens",
    ),
    VllmPatch(
        "vllm.v1.engine.async_llm:AsyncLLM.add_request",
        "checks grammars and tokens before anything enters the engine; undoes what a failed request registered",
        "an upstream hook before a request enters",
        NUMBERS,
        takes="self request_id prompt params",
        also="max_tokens structured_outputs abort",
    ),
    VllmPatch(
        "vllm.v1.engine.core_client:AsyncMPClient.get_output_async",
        "pauses between steps with many logprobs, or serialising them blocks the slot until its engine counts as hung",
        "an upstream pause in `output_handler` between steps, too",
        ANSWERS,
        takes="self",
        also="engine_core outputs new_logprobs logprob_token_ids",
    ),
    VllmPatch(
        "vllm.v1.structured_output:StructuredOutputManager._create_grammar",
        "compiles at a lower priority, and ends a request whose grammar takes too long in the steps",
        "bounds on grammars in vLLM",
        GRAMMARS,
        takes="self request",
        also="accept_tokens fill_bitmask",
    ),
    VllmPatch(
        "vllm.sampling_params:SamplingParams._validate_structured_outputs",
        "does not parse a checked grammar again on the loop that feeds all streams",
        "validation off the loop in vLLM",
        GRAMMARS,
        takes="self model_config structured_outputs_config tokenizer",
        also="vllm.sampling_params:StructuredOutputsParams _backend _backend_was_auto",
    ),
    VllmPatch(
        "vllm.entrypoints.openai.responses.protocol:ResponsesRequest.model_fields",
        "bounds the numbers of all request classes, and refuses a list at its first fault instead of after 30 s",
        PIN,
        "tests/contract/chat_engine/test_fail_fast.py",
        also="routes endpoint path vllm. __metadata__",
    ),
    VllmPatch(
        "starlette.applications:Starlette.middleware_stack",
        "describes in words what a request class refuses; vLLM has built its handlers by then",
        PIN,
        ANSWERS,
    ),
    VllmPatch(
        "vllm.entrypoints.anthropic.serving:AnthropicServingMessages.create_chat_completion",
        "Messages: tells what broke in a stream",
        PIN,
        MESSAGES,
        takes="self request",
    ),
    VllmPatch(
        "vllm.entrypoints.anthropic.serving:AnthropicServingMessages.render_chat_request",
        "Messages: counts the tokens of a begun answer as they are when it goes on",
        PIN,
        MESSAGES,
        takes="self request",
    ),
    VllmPatch(
        "vllm.entrypoints.anthropic.serving:AnthropicServingMessages.online_renderer",
        "Messages: goes on from a begun answer, and switches thinking on where it is requested",
        PIN,
        MESSAGES,
        also="messages chat_template_kwargs thinking_token_budget reasoning_effort add_generation_prompt "
        "continue_final_message use_harmony renderer tokenizer vllm.utils.mistral is_mistral_tokenizer",
    ),
    VllmPatch(
        "vllm.entrypoints.anthropic.serving:AnthropicServingMessages._get_disabled_thinking_effort",
        "Messages: each adapter's own chat template switches thinking off in its own way, not in the first call's",
        "a chat template for each adapter in vLLM",
        MESSAGES,
        takes="self",
        also="_disabled_thinking_effort _probe_disabled_thinking_effort",
    ),
    VllmPatch(
        "vllm.renderers.online_renderer:OnlineRenderer.preprocess_chat",
        "writes the prompts of an adapter with its own chat template",
        "a chat template for each adapter in vLLM",
        ENGINE,
        takes="self request messages default_template",
    ),
    VllmPatch(
        "vllm.renderers.hf:HfRenderer._apply_chat_template_async",
        "renders an adapter's own chat template in a thread that can be stopped, apart from all other prompts",
        "a chat template for each adapter in vLLM",
        "tests/unit/models/chat/requests/test_rendering.py",
        also="renderer vllm.renderers.hf safe_apply_chat_template",
    ),
    VllmPatch(
        "vllm.entrypoints.openai.chat_completion.serving:OpenAIServingChat.parser_cls",
        "one reader for answers in one piece and streamed, which loses nothing of them",
        "parsers of vLLM's that give all text, and the same in both forms",
        WHOLE,
        also="parser state openai_serving_responses reasoning_parser_cls engine_based_streaming vllm.tool_parsers "
        "vllm.parser.harmony HarmonyParser",
    ),
    VllmPatch(
        "vllm.entrypoints.openai.chat_completion.serving:OpenAIServingChat.chat_completion_full_generator",
        "an answer that `max_tokens` cut ends with `length`, also after calls, as its stream does",
        PIN,
        WHOLE,
        takes="self request result_generator",
        also="choices message tool_calls finish_reason outputs",
    ),
    VllmPatch(
        "vllm.entrypoints.openai.responses.serving:OpenAIServingResponses.responses_full_generator",
        "the item in which an answer was cut is incomplete, too",
        PIN,
        ANSWERS,
        also="output",
    ),
    VllmPatch(
        "vllm.entrypoints.openai.responses.serving:OpenAIServingResponses.responses_stream_generator",
        "the same in a stream",
        PIN,
        ANSWERS,
    ),
    VllmPatch(
        "vllm.sampling_params:SamplingParams._verify_greedy_sampling",
        "several answers at temperature 0, as at OpenAI; vLLM refuses them though it can give them",
        PIN,
        ANSWERS,
        takes="self",
    ),
    VllmPatch(
        "vllm.entrypoints.openai.chat_completion.serving:OpenAIServingChat._create_chat_logprobs",
        "the real bytes of a token that is a part of a character",
        PIN,
        BYTES,
        takes="self token_ids top_logprobs tokenizer",
        also="backend_tokenizer decoder added_tokens_decoder bytes content",
    ),
    VllmPatch(
        "vllm.entrypoints.openai.responses.serving:OpenAIServingResponses._create_response_logprobs",
        "the same in Responses",
        PIN,
        BYTES,
        takes="self token_ids logprobs tokenizer",
    ),
    VllmPatch(
        "vllm.v1.metrics.loggers:PrometheusStatLogger.record",
        "counts from the end of the warm-up on, without a series for each set of adapters",
        "an upstream option for the LoRA series",
        COUNTING,
        takes="self scheduler_stats iteration_stats",
        also="logger_manager has_unfinished_requests vllm.v1.metrics.stats SchedulerStats",
    ),
)
USED = (
    VllmPatch(
        "vllm.v1.engine.core_client:AsyncMPClient.call_utility_async",
        "calls of EngineCore by the slot (`launch.ask`)",
        "a public way to call a worker extension without a step's delay",
        CORE,
        takes="self method",
        also="engine_core",
    ),
    VllmPatch(
        "vllm.v1.engine.core:EngineCoreProc.input_queue",
        "begins to stage when the call arrives, not after the running step",
        LIVE,
        CORE,
        also="vllm.v1.engine:EngineCoreRequestType UTILITY put_nowait",
    ),
    VllmPatch(
        "vllm.v1.engine.core:EngineCoreProc._handle_client_request",
        "answers a call by a Future when staging has ended, without polls",
        LIVE,
        CORE,
        takes="self request_type request",
    ),
    VllmPatch(
        "vllm.v1.engine.core:EngineCoreProc.run_engine_core",
        "its name in the log tells the error that ends EngineCore from those of single requests and calls",
        "an error that keeps its cause",
        "tests/contract/chat/test_death.py",
    ),
    VllmPatch(
        "vllm.v1.engine.core:EngineCore.collective_rpc",
        "calls of the worker by EngineCore",
        "nothing: vLLM's way to a worker extension",
        CORE,
        takes="self method",
        also="model_executor",
    ),
    VllmPatch(
        "vllm.v1.core.sched.scheduler:Scheduler.requests",
        "whether a request uses an adapter",
        LIVE,
        ENGINE,
        also="scheduler",
    ),
    VllmPatch(
        "vllm.v1.core.sched.scheduler:Scheduler.max_num_scheduled_tokens",
        "shorter steps while adapters or critical requests wait, and where logprobs of a prompt take memory",
        "an upstream bound on a step; `long_prefill_token_threshold` bounds each prompt, and not a lone one",
        CORE,
        also="priority sampling_params prompt_logprobs num_computed_tokens num_prompt_tokens is_finished",
    ),
    VllmPatch(
        "vllm.v1.worker.lora_model_runner_mixin:LoRAModelRunnerMixin.lora_manager",
        "the way to the places",
        LIVE,
        ENGINE,
    ),
    VllmPatch("vllm.lora.worker_manager:WorkerLoRAManager._adapter_manager", "the way to the places", LIVE, LORA),
    VllmPatch(
        "vllm.lora.worker_manager:WorkerLoRAManager._load_adapter",
        "vLLM's own loader, in a thread",
        LIVE,
        LORA,
        takes="self lora_request",
        also="vllm.lora.request:LoRARequest loras lora_a lora_b lora_dtype type modules_to_save scaling",
    ),
    VllmPatch(
        "vllm.lora.model_manager:LoRAModelManager._create_merged_loras_inplace",
        "packs what was loaded, in the thread",
        LIVE,
        LORA,
        takes="self lora_model",
        also="packed_modules_mapping",
    ),
    VllmPatch(
        "vllm.lora.model_manager:LoRAModelManager.lora_index_to_id",
        "which adapter is in which place; writing it publishes a place",
        LIVE,
        LORA,
        also="modules list_adapters id capacity",
    ),
    VllmPatch(
        "vllm.lora.layers.base_linear:BaseLinearLayerWithLoRA.set_lora",
        "writes a place in the thread, which is published between two steps; on a GPU it is copied in one piece",
        LIVE,
        LORA,
        takes="self index lora_a lora_b",
        also="reset_lora lora_a_stacked lora_b_stacked tp_size max_lora_rank base_layer num_kv_head_replicas "
        "output_sizes output_size input_size vllm.lora:layers "
        "MergedColumnParallelLinearWithLoRA MergedColumnParallelLinearVariableSliceWithLoRA",
    ),
    VllmPatch(
        "vllm.entrypoints.openai.models.serving:OpenAIServingModels.lora_requests",
        "only placed adapters have a name in the application",
        LIVE,
        ENGINE,
        also="openai_serving_models",
    ),
    VllmPatch(
        "vllm.parser.abstract_parser:Parser.tool_parser_cls",
        "whether Responses has a parser of calls",
        PIN,
        ANSWERS,
    ),
    VllmPatch(
        "vllm.parser.abstract_parser:DelegatingParser.parse_delta",
        "the reasoning of an answer, by vLLM's parser without its parser of calls",
        PIN,
        WHOLE,
        takes="self delta_text delta_token_ids request prompt_token_ids",
        also="DelegatingParser reasoning_parser model_tokenizer reasoning include_reasoning model_copy "
        "vllm.entrypoints.generate.base.protocol DeltaMessage",
    ),
    VllmPatch(
        "vllm.parser.abstract_parser:StreamState.reasoning_ended",
        "whether reasoning has ended, which vLLM's parser does not tell otherwise",
        PIN,
        WHOLE,
        also="_stream_state",
    ),
    VllmPatch(
        "vllm.parser.abstract_parser:DelegatingParser.extract_tool_calls",
        "the calls in a block, by vLLM's parser without its parser of reasoning",
        PIN,
        WHOLE,
        takes="self model_output request",
        also="tools_called function arguments FunctionCall DeltaToolCall DeltaFunctionCall "
        "vllm.renderers.chat_utils make_tool_call_id",
    ),
    VllmPatch(
        "vllm.parser.abstract_parser:DelegatingParser.adjust_request",
        "a bound on the calls that a request requires: a model that knows no tools would call for ever",
        PIN,
        WHOLE,
        takes="self request",
        also="tool_choice tools text json schema_",
    ),
    VllmPatch(
        "vllm.parser.abstract_parser:Parser.tool_strict_level",
        "the arguments of calls that a request requires fit their tools' parameters",
        "an upstream default that constrains required calls",
        WHOLE,
        also="tool_choice vllm.tool_parsers.tool_strict_level ToolStrictLevel PARAMETER",
    ),
    VllmPatch(
        "vllm.v1.structured_output.request:get_structured_output_key",
        "compiles a grammar in a process of its own exactly as EngineCore does",
        "bounds on grammars in vLLM",
        GRAMMARS,
        also="vllm.v1.structured_output. structured_outputs_config backend all_special_ids",
    ),
    VllmPatch(
        "vllm.exceptions:VLLMValidationError",
        "a refusal that vLLM answers with a 400",
        "an upstream hook before a request enters",
        GRAMMARS,
        also="vllm.exceptions:VLLMClientError vllm.entrypoints.anthropic.api_router",
    ),
    VllmPatch(
        "vllm.config.model:ModelConfig.try_get_generation_config",
        "refuses tokens that the tokenizer has and the network has not",
        PIN,
        "tests/contract/chat_engine/test_bodies.py",
        also="get_tokenizer get_vocab_size max_token_id eos_token_id min_tokens convert_ids_to_tokens",
    ),
    VllmPatch(
        "vllm.device_allocator.cumem:CuMemAllocator.pointer_to_data",
        "bytes that a sleep keeps",
        "figures of a sleep in vLLM",
        SLEEP,
        also="instance vllm.device_allocator.cumem cumem_available",
    ),
    VllmPatch(
        "vllm.v1.engine.async_llm:AsyncLLM.from_vllm_config",
        "starts and asks the engine: AsyncLLM's documented methods, and its settings",
        PUBLIC,
        ENGINE,
        takes="vllm_config",
        also="shutdown sleep wake_up is_sleeping is_paused errored reset_prefix_cache get_supported_tasks "
        "model_config max_model_len is_multimodal_model cache_config kv_cache_memory_bytes scheduler_config "
        "max_num_seqs parallel_config world_size data_parallel_size reasoning_config enabled",
    ),
    VllmPatch(
        "vllm.v1.executor.multiproc_executor:WorkerProc.make_worker_process",
        "the name of each worker's process, a fork: by its number a CPU's worker takes its cores",
        "cores by worker for processes that are forks (vLLM binds through variables that OpenMP reads at its import)",
        TENSOR,
    ),
    VllmPatch(
        "vllm.utils.network_utils:get_file_store_init_method",
        "the name of the file through which a CPU's workers meet, with which the names of their shared memory begin",
        "shared memory that workers remove once all have opened it",
        TENSOR,
    ),
    VllmPatch(
        "vllm.config.compilation:CompilationConfig.cudagraph_capture_sizes",
        "lengths of the warm-up's prompts: beyond the largest CUDA graph, within a step",
        PUBLIC,
        "tests/unit/models/chat/test_cuda.py",
        also="compilation_config scheduler_config max_num_batched_tokens model_config max_model_len",
    ),
    VllmPatch(
        "vllm.engine.arg_utils:AsyncEngineArgs.from_cli_args",
        "settings of the engine from vLLM's own command line",
        PUBLIC,
        PARTS,
        takes="args",
        also="vllm.entrypoints.launchers.cli_args make_arg_parser vllm.utils.argparse_utils "
        "FlexibleArgumentParser parse_args error _option_string_actions default worker_extension_cls "
        "distributed_executor_backend create_engine_config vllm.usage.usage_lib:UsageContext ENGINE_CONTEXT "
        "vllm.v1.executor.uniproc_executor:UniProcExecutor",
    ),
    VllmPatch(
        "vllm.entrypoints.launchers.api_server.entry:build_app",
        "vLLM's HTTP application without a server",
        "nothing: the part that vLLM's own server uses",
        ANSWERS,
        takes="args supported_tasks model_config",
    ),
    VllmPatch(
        "vllm.model_executor.models:ModelRegistry.register_model",
        "gives vLLM a model's class, which it would look at in a process of its own",
        "a cache of vLLM's that comes with its package",
        FILES,
        also="vllm.model_executor.models ModelRegistry",
    ),
    VllmPatch(
        "vllm.version:__version__",
        "a version that was not checked is refused; patches are made from vLLM's plug-in entry point",
        PUBLIC,
        PLUGIN,
        also="vllm vllm.v1.engine.core:EngineCore vllm.v1.structured_output:StructuredOutputManager",
    ),
    VllmPatch(
        "vllm.connections:logger",
        "imports what a load needs before the model is known; silences warnings with the URLs of clients",
        "an import of vLLM's that takes less than a second",
        PREWARM,
        also=" ".join(_PREWARMED),
    ),
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
"""Tables that `source.py` reads from vLLM's source without importing it. If one is missing, only a load checks that."""
