"""Shapes of public models from their config.json files, with the numbers of parameters that their makers publish.

Columns: name; kind; parameters; hidden; layers; heads; KV heads; head size (0: hidden / heads); feed-forward;
vocabulary; tied head; context; more settings of the kind.
"""

from dataclasses import dataclass, field
from typing import Any

ARCHITECTURES = {
    "llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "mixtral": "MixtralForCausalLM",
    "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM",
    "gemma": "GemmaForCausalLM", "gemma2": "Gemma2ForCausalLM", "gemma3_text": "Gemma3ForCausalLM",
    "phi": "PhiForCausalLM", "phi3": "Phi3ForCausalLM", "olmo": "OlmoForCausalLM", "olmo2": "Olmo2ForCausalLM",
    "olmoe": "OlmoeForCausalLM", "gpt_neox": "GPTNeoXForCausalLM", "starcoder2": "Starcoder2ForCausalLM",
    "stablelm": "StableLmForCausalLM", "cohere": "CohereForCausalLM", "cohere2": "Cohere2ForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM", "deepseek_v3": "DeepseekV3ForCausalLM", "smollm3": "SmolLM3ForCausalLM",
    "glm4": "Glm4ForCausalLM", "granite": "GraniteForCausalLM", "seed_oss": "SeedOssForCausalLM",
    "gpt2": "GPT2LMHeadModel", "phimoe": "PhiMoEForCausalLM",
}  # fmt: skip
E8 = {"num_local_experts": 8, "num_experts_per_tok": 2}
MLA = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
NO_Q = {"q_lora_rank": None}


@dataclass(frozen=True)
class KnownModel:
    name: str
    kind: str
    parameters: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    feed_forward: int
    vocabulary: int
    tied: bool
    context: int
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> dict[str, Any]:
        """Return the content of config.json."""
        if self.kind == "gpt2":  # it uses different names
            return {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": self.vocabulary, **GPT2}
        head = {"head_dim": self.head_size} if self.head_size else {}
        return {
            "architectures": [ARCHITECTURES[self.kind]], "model_type": self.kind, "dtype": "bfloat16",
            "hidden_size": self.hidden, "num_hidden_layers": self.layers, "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads, "intermediate_size": self.feed_forward,
            "vocab_size": self.vocabulary, "tie_word_embeddings": self.tied,
            "max_position_embeddings": self.context, **head, **self.more,
        }  # fmt: skip


GPT2 = {"n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "n_ctx": 1024}
V2_LITE = {
    **MLA, **NO_Q, "moe_intermediate_size": 1408, "n_routed_experts": 64, "n_shared_experts": 2,
    "first_k_dense_replace": 1, "num_experts_per_tok": 6, "mlp_layer_types": ["dense"] + ["sparse"] * 26,
}  # fmt: skip
V3 = {
    **MLA, "q_lora_rank": 1536, "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1,
    "first_k_dense_replace": 3, "num_experts_per_tok": 8, "mlp_layer_types": ["dense"] * 3 + ["sparse"] * 58,
}  # fmt: skip
Q3MOE = {"num_experts": 128, "num_experts_per_tok": 8}
T, F = True, False
CHAT = [
    KnownModel(*row)  # type: ignore[arg-type]
    for row in [
        ("Llama-3.1-8B-Instruct", "llama", 8_030_261_248, 4096, 32, 32, 8, 0, 14336, 128256, F, 131072),
        ("Llama-3.1-70B-Instruct", "llama", 70_553_706_496, 8192, 80, 64, 8, 0, 28672, 128256, F, 131072),
        ("Llama-3.1-405B-Instruct", "llama", 405_853_388_800, 16384, 126, 128, 8, 0, 53248, 128256, F, 131072),
        ("Llama-3.2-1B-Instruct", "llama", 1_235_814_400, 2048, 16, 32, 8, 64, 8192, 128256, T, 131072),
        ("Llama-3.2-3B-Instruct", "llama", 3_212_749_824, 3072, 28, 24, 8, 128, 8192, 128256, T, 131072),
        ("Meta-Llama-3-8B-Instruct", "llama", 8_030_261_248, 4096, 32, 32, 8, 0, 14336, 128256, F, 8192),
        ("Llama-3.3-70B-Instruct", "llama", 70_553_706_496, 8192, 80, 64, 8, 0, 28672, 128256, F, 131072),
        ("Llama-2-7b-chat-hf", "llama", 6_738_415_616, 4096, 32, 32, 32, 0, 11008, 32000, F, 4096),
        ("Llama-2-13b-chat-hf", "llama", 13_015_864_320, 5120, 40, 40, 40, 0, 13824, 32000, F, 4096),
        ("Llama-2-70b-chat-hf", "llama", 68_976_648_192, 8192, 80, 64, 8, 0, 28672, 32000, F, 4096),
        ("TinyLlama-1.1B-Chat-v1.0", "llama", 1_100_048_384, 2048, 22, 32, 4, 0, 5632, 32000, F, 2048),
        ("CodeLlama-7b-Instruct-hf", "llama", 6_738_546_688, 4096, 32, 32, 32, 0, 11008, 32016, F, 16384),
        ("CodeLlama-34b-Instruct-hf", "llama", 33_743_970_304, 8192, 48, 64, 8, 0, 22016, 32000, F, 16384),
        ("Yi-6B-Chat", "llama", 6_061_035_520, 4096, 32, 32, 4, 0, 11008, 64000, F, 4096),
        ("Yi-34B-Chat", "llama", 34_388_917_248, 7168, 60, 56, 8, 0, 20480, 64000, F, 4096),
        ("Yi-1.5-9B-Chat", "llama", 8_829_407_232, 4096, 48, 32, 4, 0, 11008, 64000, F, 4096),
        ("SmolLM2-135M-Instruct", "llama", 134_515_008, 576, 30, 9, 3, 0, 1536, 49152, T, 8192),
        ("SmolLM2-360M-Instruct", "llama", 361_821_120, 960, 32, 15, 5, 0, 2560, 49152, T, 8192),
        ("SmolLM2-1.7B-Instruct", "llama", 1_711_376_384, 2048, 24, 32, 32, 0, 8192, 49152, T, 8192),
        ("vicuna-7b-v1.5", "llama", 6_738_415_616, 4096, 32, 32, 32, 0, 11008, 32000, F, 4096),
        ("DeepSeek-R1-Distill-Llama-8B", "llama", 8_030_261_248, 4096, 32, 32, 8, 0, 14336, 128256, F, 131072),
        ("deepseek-coder-6.7b-instruct", "llama", 6_740_512_768, 4096, 32, 32, 32, 0, 11008, 32256, F, 16384),
        ("deepseek-llm-7b-chat", "llama", 6_910_365_696, 4096, 30, 32, 32, 0, 11008, 102400, F, 4096),
        ("Hermes-3-Llama-3.1-8B", "llama", 8_030_261_248, 4096, 32, 32, 8, 0, 14336, 128256, F, 131072),
        ("SOLAR-10.7B-Instruct-v1.0", "llama", 10_731_524_096, 4096, 48, 32, 8, 0, 14336, 32000, F, 4096),
        ("open_llama_3b", "llama", 3_426_473_600, 3200, 26, 32, 32, 0, 8640, 32000, F, 2048),
        ("Falcon3-1B-Instruct", "llama", 1_669_408_768, 2048, 18, 8, 4, 256, 8192, 131072, F, 8192),
        ("Falcon3-7B-Instruct", "llama", 7_455_550_464, 3072, 28, 12, 4, 256, 23040, 131072, F, 32768),
        ("Falcon3-10B-Instruct", "llama", 10_305_653_760, 3072, 40, 12, 4, 256, 23040, 131072, F, 32768),
        ("granite-3.1-2b-instruct", "granite", 2_533_531_648, 2048, 40, 32, 8, 0, 8192, 49155, T, 131072),
        ("granite-3.1-8b-instruct", "granite", 8_170_848_256, 4096, 40, 32, 8, 0, 12800, 49155, T, 131072),
        ("Mistral-7B-Instruct-v0.1", "mistral", 7_241_732_096, 4096, 32, 32, 8, 0, 14336, 32000, F, 32768),
        ("Mistral-7B-Instruct-v0.3", "mistral", 7_248_023_552, 4096, 32, 32, 8, 0, 14336, 32768, F, 32768),
        ("zephyr-7b-beta", "mistral", 7_241_732_096, 4096, 32, 32, 8, 0, 14336, 32000, F, 32768),
        ("OpenHermes-2.5-Mistral-7B", "mistral", 7_241_748_480, 4096, 32, 32, 8, 0, 14336, 32002, F, 32768),
        ("Mistral-Nemo-Instruct-2407", "mistral", 12_247_782_400, 5120, 40, 32, 8, 128, 14336, 131072, F, 131072),
        ("Ministral-8B-Instruct-2410", "mistral", 8_019_808_256, 4096, 36, 32, 8, 128, 12288, 131072, F, 32768),
        ("Mistral-Small-24B-Instruct-2501", "mistral", 23_572_403_200, 5120, 40, 32, 8, 128, 32768, 131072, F, 32768),
        ("Codestral-22B-v0.1", "mistral", 22_247_282_688, 6144, 56, 48, 8, 0, 16384, 32768, F, 32768),
        ("Mistral-Large-Instruct-2407", "mistral", 122_610_069_504, 12288, 88, 96, 8, 0, 28672, 32768, F, 131072),
        ("Mixtral-8x7B-Instruct-v0.1", "mixtral", 46_702_792_704, 4096, 32, 32, 8, 0, 14336, 32000, F, 32768, E8),
        ("Mixtral-8x22B-Instruct-v0.1", "mixtral", 140_630_071_296, 6144, 56, 48, 8, 0, 16384, 32768, F, 65536, E8),
        ("Qwen1.5-0.5B-Chat", "qwen2", 463_987_712, 1024, 24, 16, 16, 0, 2816, 151936, T, 32768),
        ("Qwen1.5-1.8B-Chat", "qwen2", 1_836_828_672, 2048, 24, 16, 16, 0, 5504, 151936, F, 32768),
        ("Qwen2-0.5B-Instruct", "qwen2", 494_032_768, 896, 24, 14, 2, 0, 4864, 151936, T, 32768),
        ("Qwen2-7B-Instruct", "qwen2", 7_615_616_512, 3584, 28, 28, 4, 0, 18944, 152064, F, 32768),
        ("Qwen2.5-0.5B-Instruct", "qwen2", 494_032_768, 896, 24, 14, 2, 0, 4864, 151936, T, 32768),
        ("Qwen2.5-1.5B-Instruct", "qwen2", 1_543_714_304, 1536, 28, 12, 2, 0, 8960, 151936, T, 32768),
        ("Qwen2.5-3B-Instruct", "qwen2", 3_085_938_688, 2048, 36, 16, 2, 0, 11008, 151936, T, 32768),
        ("Qwen2.5-7B-Instruct", "qwen2", 7_615_616_512, 3584, 28, 28, 4, 0, 18944, 152064, F, 32768),
        ("Qwen2.5-14B-Instruct", "qwen2", 14_770_033_664, 5120, 48, 40, 8, 0, 13824, 152064, F, 32768),
        ("Qwen2.5-32B-Instruct", "qwen2", 32_763_876_352, 5120, 64, 40, 8, 0, 27648, 152064, F, 32768),
        ("Qwen2.5-72B-Instruct", "qwen2", 72_706_203_648, 8192, 80, 64, 8, 0, 29568, 152064, F, 32768),
        ("Qwen2.5-Coder-7B-Instruct", "qwen2", 7_615_616_512, 3584, 28, 28, 4, 0, 18944, 152064, F, 32768),
        ("DeepSeek-R1-Distill-Qwen-1.5B", "qwen2", 1_777_088_000, 1536, 28, 12, 2, 0, 8960, 151936, F, 131072),
        ("DeepSeek-R1-Distill-Qwen-7B", "qwen2", 7_615_616_512, 3584, 28, 28, 4, 0, 18944, 152064, F, 131072),
        ("DeepSeek-R1-Distill-Qwen-32B", "qwen2", 32_763_876_352, 5120, 64, 40, 8, 0, 27648, 152064, F, 131072),
        ("QwQ-32B", "qwen2", 32_763_876_352, 5120, 64, 40, 8, 0, 27648, 152064, F, 40960),
        ("Qwen3-0.6B", "qwen3", 596_049_920, 1024, 28, 16, 8, 128, 3072, 151936, T, 40960),
        ("Qwen3-1.7B", "qwen3", 1_720_574_976, 2048, 28, 16, 8, 128, 6144, 151936, T, 40960),
        ("Qwen3-4B", "qwen3", 4_022_468_096, 2560, 36, 32, 8, 128, 9728, 151936, T, 40960),
        ("Qwen3-8B", "qwen3", 8_190_735_360, 4096, 36, 32, 8, 128, 12288, 151936, F, 40960),
        ("Qwen3-14B", "qwen3", 14_768_307_200, 5120, 40, 40, 8, 128, 17408, 151936, F, 40960),
        ("Qwen3-32B", "qwen3", 32_762_123_264, 5120, 64, 64, 8, 128, 25600, 151936, F, 40960),
        ("Qwen3-30B-A3B", "qwen3_moe", 30_532_122_624, 2048, 48, 32, 4, 128, 6144, 151936, F, 40960,
         {**Q3MOE, "moe_intermediate_size": 768}),
        ("Qwen3-Coder-30B-A3B-Instruct", "qwen3_moe", 30_532_122_624, 2048, 48, 32, 4, 128, 6144, 151936, F, 262144,
         {**Q3MOE, "moe_intermediate_size": 768}),
        ("Qwen3-235B-A22B", "qwen3_moe", 235_093_634_560, 4096, 94, 64, 4, 128, 12288, 151936, F, 40960,
         {**Q3MOE, "moe_intermediate_size": 1536}),
        ("gemma-2b-it", "gemma", 2_506_172_416, 2048, 18, 8, 1, 256, 16384, 256000, T, 8192),
        ("gemma-7b-it", "gemma", 8_537_680_896, 3072, 28, 16, 16, 256, 24576, 256000, T, 8192),
        ("gemma-2-2b-it", "gemma2", 2_614_341_888, 2304, 26, 8, 4, 256, 9216, 256000, T, 8192),
        ("gemma-2-9b-it", "gemma2", 9_241_705_984, 3584, 42, 16, 8, 256, 14336, 256000, T, 8192),
        ("gemma-2-27b-it", "gemma2", 27_227_128_320, 4608, 46, 32, 16, 128, 36864, 256000, T, 8192),
        ("gemma-3-270m-it", "gemma3_text", 268_098_176, 640, 18, 4, 1, 256, 2048, 262144, T, 32768),
        ("gemma-3-1b-it", "gemma3_text", 999_885_952, 1152, 26, 4, 1, 256, 6912, 262144, T, 32768),
        ("phi-1_5", "phi", 1_418_270_720, 2048, 24, 32, 32, 0, 8192, 51200, F, 2048),
        ("phi-2", "phi", 2_779_683_840, 2560, 32, 32, 32, 0, 10240, 51200, F, 2048),
        ("Phi-3-mini-4k-instruct", "phi3", 3_821_079_552, 3072, 32, 32, 32, 0, 8192, 32064, F, 4096),
        ("Phi-3-medium-4k-instruct", "phi3", 13_960_238_080, 5120, 40, 40, 10, 0, 17920, 32064, F, 4096),
        ("phi-4", "phi3", 14_659_507_200, 5120, 40, 40, 10, 0, 17920, 100352, F, 16384),
        ("Phi-4-mini-instruct", "phi3", 3_836_021_760, 3072, 32, 24, 8, 0, 8192, 200064, T, 131072),
        ("OLMo-1B-hf", "olmo", 1_176_764_416, 2048, 16, 16, 16, 0, 8192, 50304, T, 2048),
        ("OLMo-2-1124-7B-Instruct", "olmo2", 7_298_617_344, 4096, 32, 32, 32, 0, 11008, 100352, F, 4096),
        ("OLMo-2-1124-13B-Instruct", "olmo2", 13_716_198_400, 5120, 40, 40, 40, 0, 13824, 100352, F, 4096),
        ("OLMoE-1B-7B-0924-Instruct", "olmoe", 6_919_161_856, 2048, 16, 16, 16, 0, 1024, 50304, F, 4096,
         {"num_experts": 64, "num_experts_per_tok": 8}),
        ("pythia-1.4b", "gpt_neox", 1_414_647_808, 2048, 24, 16, 16, 0, 8192, 50304, F, 2048),
        ("pythia-6.9b", "gpt_neox", 6_857_302_016, 4096, 32, 32, 32, 0, 16384, 50432, F, 2048),
        ("gpt-neox-20b", "gpt_neox", 20_554_567_680, 6144, 44, 64, 64, 0, 24576, 50432, F, 2048),
        ("starcoder2-3b", "starcoder2", 3_030_371_328, 3072, 30, 24, 2, 0, 12288, 49152, T, 16384),
        ("starcoder2-7b", "starcoder2", 7_173_923_840, 4608, 32, 36, 4, 0, 18432, 49152, T, 16384),
        ("starcoder2-15b", "starcoder2", 15_957_889_024, 6144, 40, 48, 4, 0, 24576, 49152, F, 16384),
        ("stablelm-2-1_6b-chat", "stablelm", 1_644_515_328, 2048, 24, 32, 32, 0, 5632, 100352, F, 4096,
         {"use_qkv_bias": True}),
        ("stablelm-3b-4e1t", "stablelm", 2_795_443_200, 2560, 32, 32, 32, 0, 6912, 50304, F, 4096),
        ("c4ai-command-r-v01", "cohere", 34_980_831_232, 8192, 40, 64, 64, 0, 22528, 256000, T, 131072),
        ("c4ai-command-r7b-12-2024", "cohere2", 8_028_033_024, 4096, 32, 32, 8, 0, 14336, 256000, T, 131072),
        ("DeepSeek-V2-Lite-Chat", "deepseek_v2", 15_706_484_224, 2048, 27, 16, 16, 0, 10944, 102400, F, 163840,
         V2_LITE),
        ("DeepSeek-V3", "deepseek_v3", 671_026_419_200, 7168, 61, 128, 128, 0, 18432, 129280, F, 163840, V3),
        ("SmolLM3-3B", "smollm3", 3_075_098_624, 2048, 36, 16, 4, 0, 11008, 128256, T, 65536),
        ("GLM-4-9B-0414", "glm4", 9_400_279_040, 4096, 40, 32, 2, 128, 13696, 151552, F, 32768),
        ("Seed-OSS-36B-Instruct", "seed_oss", 36_151_104_512, 5120, 64, 80, 8, 128, 27648, 155136, F, 524288),
        ("gpt2", "gpt2", 124_439_808, 768, 12, 12, 12, 0, 3072, 50257, T, 1024, GPT2),
        ("Phi-3.5-MoE-instruct", "phimoe", 41_873_153_344, 4096, 32, 32, 8, 0, 6400, 32064, F, 131072,
         {"num_local_experts": 16, "attention_bias": True, "lm_head_bias": True}),
    ]
]  # fmt: skip
