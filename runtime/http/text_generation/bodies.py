"""TGI's request, and its translation for vLLM's completions.

The fields are those of TGI 2 and 3 and of its fork LoRAX. All accept null and values without effect; what vLLM cannot
do is refused. Unknown fields are ignored, as in TGI.
"""

import secrets
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from registry.base.json import NOT_JSON, Values
from registry.bounds import USUAL
from registry.errors import BadRequest, TooLarge

MOST_BY_DEFAULT = 1024
"""Default bound on an answer's tokens, as in TGI 3. Less if the context ends before."""
SOURCES = (None, "hub", "local", "s3")
"""Values of LoRAX's `adapter_source` for adapters that may be registered here."""

Share = Annotated[float, Meta(gt=0, le=1)]
_Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
_NotNegative = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class Grammar(msgspec.Struct, kw_only=True):
    type: Literal["json", "json_schema", "regex"]
    value: Annotated[str | dict[str, Any], Meta(description="A JSON schema, as an object or as text, or a pattern.")]


class ResponseFormat(msgspec.Struct, kw_only=True):
    """LoRAX's."""

    type: Literal["json_object"]
    schema: dict[str, Any] | None = None


class GenerateParameters(msgspec.Struct, kw_only=True):
    max_new_tokens: Annotated[
        _Count | None, Meta(description=f"The default is what the context has room for, {MOST_BY_DEFAULT} at most.")
    ] = None
    do_sample: Annotated[
        bool | None, Meta(description="Sampling also begins by temperature, top_k or top_p, as in TGI.")
    ] = None
    temperature: Annotated[float, Meta(ge=0)] | None = None
    top_k: _NotNegative | None = None
    top_p: Share | None = None
    typical_p: Annotated[Share | None, Meta(description="Only 1.")] = None
    repetition_penalty: Annotated[float, Meta(gt=0)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    seed: Annotated[int, Meta(ge=0)] | None = None
    stop: list[str] | None = None
    stop_sequences: Annotated[list[str] | None, Meta(description="The same as `stop`.")] = None
    ignore_eos_token: bool | None = None
    truncate: Annotated[_Count | None, Meta(description="Keep the last so many tokens of `inputs`.")] = None
    return_full_text: Annotated[
        bool | None, Meta(description="Put `inputs` before the answer. The default is false, and true on `POST /`.")
    ] = None
    details: bool | None = None
    decoder_input_details: Annotated[bool | None, Meta(description="The prompt's tokens; not in a stream.")] = None
    grammar: Grammar | None = None
    response_format: ResponseFormat | None = None
    adapter_id: Annotated[str | None, Meta(description="An adapter that is registered here.")] = None
    adapter_source: Annotated[str | None, Meta(description="hub or local; the adapter is registered already.")] = None
    api_token: Annotated[str | None, Meta(description="LoRAX's, for private adapters; not used, not kept.")] = None
    watermark: Annotated[bool | None, Meta(description="Only false.")] = None
    best_of: Annotated[_Count | None, Meta(description="Only 1.")] = None
    top_n_tokens: Annotated[_NotNegative | None, Meta(description="Only 0.")] = None
    return_k_alternatives: Annotated[_NotNegative | None, Meta(description="Only 0.")] = None
    merged_adapters: Annotated[dict[str, Any] | None, Meta(description="Only null.")] = None
    apply_chat_template: Annotated[bool | None, Meta(description="Only false.")] = None

    @property
    def is_sampled(self) -> bool:
        """Whether to sample, by TGI's rule: if requested or implied by another value. Temperature 0 is greedy."""
        shaped = self.temperature not in (None, 1) or self.top_k or self.top_p not in (None, 1)
        return self.temperature != 0 and bool(self.do_sample or shaped)

    @property
    def wants_details(self) -> bool:
        return bool(self.details or self.decoder_input_details)


class GenerateBody(msgspec.Struct, kw_only=True):
    """The request of Text Generation Inference and LoRAX. Unknown fields are ignored with a warning."""

    inputs: Annotated[
        str, Meta(description="The prompt as the model gets it: no chat template.", extra_json_schema={"minLength": 1})
    ]
    parameters: GenerateParameters | None = None
    stream: bool | None = None
    model: Annotated[
        str | None, Meta(description="Ours: a chat model or adapter; needed where there are several chat models.")
    ] = None


class Generation(msgspec.Struct, kw_only=True):
    """The parts of a validated request that are needed to write the answer."""

    inputs: str
    parameters: GenerateParameters
    stream: bool
    full_text: bool
    seed: int | None
    """The seed of a sampled answer, if one was requested or the details include it."""

    @property
    def prefill(self) -> bool:
        return bool(self.parameters.decoder_input_details)

    @property
    def is_constrained(self) -> bool:
        return self.parameters.grammar is not None or self.parameters.response_format is not None

    def completion(self, context: int | None) -> dict[str, Any]:
        """The body for /v1/completions without `model`. context: in tokens, if known.

        Includes default values, since vLLM would otherwise use those of the model's generation_config.json.
        """
        parameters = self.parameters
        sampled = parameters.is_sampled
        body: dict[str, Any] = {
            "prompt": self.inputs,
            "stream": self.stream,
            "max_tokens": parameters.max_new_tokens or min(MOST_BY_DEFAULT, context or MOST_BY_DEFAULT),
            "temperature": (1.0 if parameters.temperature is None else parameters.temperature) if sampled else 0.0,
            "top_k": (parameters.top_k or 0) if sampled else 0,
            "top_p": (parameters.top_p or 1.0) if sampled else 1.0,
            "min_p": 0.0,
            "repetition_penalty": parameters.repetition_penalty or 1.0,
            "frequency_penalty": parameters.frequency_penalty or 0.0,
            "presence_penalty": 0.0,
            "stop": [*(parameters.stop or ()), *(parameters.stop_sequences or ())],
            "include_stop_str_in_output": True,
            "ignore_eos": bool(parameters.ignore_eos_token),
        }
        if sampled and self.seed is not None:
            body["seed"] = self.seed % 2**63  # vLLM's seeds are signed, and -1 means none
        if parameters.truncate is not None:
            body |= {"truncate_prompt_tokens": parameters.truncate, "truncation_side": "left"}
        if (shape := _shape(parameters)) is not UNSET:
            body["structured_outputs"] = shape
        if self.stream or parameters.wants_details:
            body |= {"logprobs": 0, "return_token_ids": True, "echo": self.prefill}
        return body


def generation(body: GenerateBody, *, stream: bool, full_text: bool) -> Generation:
    """Validate a body. full_text: the path's default. Raises BadRequest."""
    parameters = body.parameters or GenerateParameters()
    if not body.inputs:
        raise BadRequest("'inputs' cannot be empty.", param="inputs")
    _refuse(parameters, stream=stream)
    _shape(parameters)
    seed = parameters.seed
    if seed is None and parameters.wants_details:
        seed = secrets.randbits(32)
    return Generation(
        inputs=body.inputs,
        parameters=parameters,
        stream=stream,
        full_text=full_text if parameters.return_full_text is None else parameters.return_full_text,
        seed=seed if parameters.is_sampled else None,
    )


def _refuse(parameters: GenerateParameters, *, stream: bool) -> None:
    """Raise BadRequest for everything that vLLM cannot do."""
    alternatives = (
        "The engine names alternative tokens without their ids. Send /v1/completions with 'logprobs' instead."
    )
    for name, refused, text in (
        (
            "typical_p",
            parameters.typical_p not in (None, 1),
            "Typical decoding is not available: leave 'typical_p' out, and set 'top_p' instead.",
        ),
        ("watermark", parameters.watermark, "This engine does not watermark: set 'watermark' to false."),
        ("best_of", (parameters.best_of or 1) > 1, "One answer is made per request: leave 'best_of' out."),
        ("top_n_tokens", parameters.top_n_tokens, alternatives),
        ("return_k_alternatives", parameters.return_k_alternatives, alternatives),
        (
            "merged_adapters",
            parameters.merged_adapters is not None,
            "Adapters are not merged for a request: make one of them with POST /v1/adapters/combine, and name that in "
            "'adapter_id'.",
        ),
        (
            "apply_chat_template",
            parameters.apply_chat_template,
            "'inputs' is given to the model as it is. Send /v1/chat/completions, which applies the chat template.",
        ),
        (
            "adapter_source",
            parameters.adapter_source not in SOURCES,
            "Adapters come from a hub, a folder or S3: register it with POST /v1/adapters, and leave this field out.",
        ),
        (
            "decoder_input_details",
            stream and parameters.decoder_input_details,
            "The prompt's tokens are not told in a stream: leave 'decoder_input_details' out.",
        ),
    ):
        if refused:
            raise BadRequest(text, param=f"parameters.{name}", code="unsupported_value")


def _shape(parameters: GenerateParameters) -> dict[str, Any] | UnsetType:
    """vLLM's `structured_outputs`. Raises BadRequest for an invalid or a second constraint."""
    grammar, format_ = parameters.grammar, parameters.response_format
    if grammar is None:
        if format_ is None:
            return UNSET
        return {"json_object": True} if format_.schema is None else {"json": format_.schema}
    if format_ is not None:
        raise BadRequest("Send 'grammar' or 'response_format', not both.", param="parameters.grammar")
    value: Any = grammar.value
    if grammar.type == "regex":
        if not isinstance(value, str):
            raise BadRequest("The 'value' of a regex is a string.", param="parameters.grammar.value")
        return {"regex": value}
    if isinstance(value, str):
        try:
            Values(USUAL.json_values).add(value.encode())
            value = msgspec.json.decode(value)
        except TooLarge:
            raise BadRequest(
                f"The schema holds more than {USUAL.json_values} lists, objects and strings. Make it smaller.",
                param="parameters.grammar.value",
                code="grammar_too_large",
            ) from None
        except NOT_JSON as error:
            raise BadRequest(f"The schema is not valid JSON: {error}.", param="parameters.grammar.value") from None
    if isinstance(value, dict) and grammar.type == "json_schema":
        value = value.get("schema")
    if not isinstance(value, dict):
        raise BadRequest("A JSON schema is an object.", param="parameters.grammar.value")
    return {"json": value}
