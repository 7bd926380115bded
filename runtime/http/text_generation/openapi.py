"""Text generation in the OpenAPI document. Schemas come from the structs that check bodies and write answers."""

from runtime.http.errors import Dialect
from runtime.http.openapi_parts import (
    INFERENCE,
    STREAM,
    Json,
    Operations,
    array,
    json_of,
    model_call,
    ref,
    structs,
)
from runtime.http.text_generation.answers import GeneratedText
from runtime.http.text_generation.bodies import GenerateBody

TAG = "Generate"
_ERRORS = (*INFERENCE, 422)
_PARAMETERS = ("Prefer", "Progress", "Model")
_PROMPT = "<|user|>turn on the lamp<|end|><|assistant|>"
_GREEDY: Json = {"inputs": _PROMPT, "model": "starter-chat", "parameters": {"max_new_tokens": 64}}
_TEXT = (
    "`inputs` is given to the model as it is: no chat template is applied. `model` may be left out where there is one "
    "chat model; `parameters.adapter_id` names an adapter of it."
)


SCHEMAS: dict[str, Json] = structs(GenerateBody, GeneratedText)

OPERATIONS: Operations = {
    ("post", "/generate"): model_call(
        "generate", TAG, "Generate text (Text Generation Inference, LoRAX)", {**json_of("GeneratedText"), **STREAM},
        body=json_of("GenerateBody"), parameters=_PARAMETERS, dialects=(Dialect.TGI,),
        errors=_ERRORS, description=_TEXT,
        examples={
            "greedy": _GREEDY,
            "adapter": {**_GREEDY, "parameters": {"max_new_tokens": 64, "adapter_id": "uppercase", "details": True}},
        },
    ),
    ("post", "/generate_stream"): model_call(
        "generateStream", TAG, "Generate text as a stream (Text Generation Inference, LoRAX)", STREAM,
        body=json_of("GenerateBody"), parameters=_PARAMETERS, dialects=(Dialect.TGI,),
        errors=_ERRORS, description=_TEXT, examples={"greedy": _GREEDY},
    ),
    ("post", "/"): model_call(
        "generateCompatible", TAG, "Generate text, as a list of one or a stream (Text Generation Inference, LoRAX)",
        {"application/json": array(ref("GeneratedText")), **STREAM},
        body=json_of("GenerateBody"), parameters=_PARAMETERS, dialects=(Dialect.TGI,),
        errors=_ERRORS, description=f"{_TEXT} `return_full_text` is true by default.", examples={"greedy": _GREEDY},
    ),
}  # fmt: skip
