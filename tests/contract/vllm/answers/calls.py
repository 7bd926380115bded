"""Two calls, `set_light(state="on")` and `set_fan(speed=2)`, in the syntax of each of vLLM's tool parsers."""

LIGHT, FAN = ("set_light", '{"state": "on"}'), ("set_fan", '{"speed": 2}')
_ARGUMENTS = '{"name": "set_light", "arguments": {"state": "on"}}', '{"name": "set_fan", "arguments": {"speed": 2}}'
_LIST = f"[{', '.join(_ARGUMENTS)}]"
_PYTHON = "[set_light(state='on'), set_fan(speed=2)]"
_GLM = (
    "<tool_call>set_light\n<arg_key>state</arg_key>\n<arg_value>on</arg_value>\n</tool_call>\n"
    "<tool_call>set_fan\n<arg_key>speed</arg_key>\n<arg_value>2</arg_value>\n</tool_call>"
)
_QWEN = (
    "<tool_call>\n<function=set_light>\n<parameter=state>\non\n</parameter>\n</function>\n</tool_call>\n"
    "<tool_call>\n<function=set_fan>\n<parameter=speed>\n2\n</parameter>\n</function>\n</tool_call>"
)
_INVOKE = (
    '<invoke name="set_light">\n<parameter name="state">on</parameter>\n</invoke>\n'
    '<invoke name="set_fan">\n<parameter name="speed">2</parameter>\n</invoke>'
)
_STEP = (
    '<steptml:invoke name="set_light"><steptml:parameter name="state">on</steptml:parameter></steptml:invoke>',
    '<steptml:invoke name="set_fan"><steptml:parameter name="speed">2</steptml:parameter></steptml:invoke>',
)


def _each(begin: str, end: str, calls: tuple[str, ...] = _ARGUMENTS, between: str = "\n") -> str:
    return between.join(f"{begin}{call}{end}" for call in calls)


def _dsml(name: str, blank: str = "") -> str:
    invokes = (
        '<*invoke name="set_light">\n<*parameter name="state" string="true">on</*parameter>\n</*invoke>\n'
        '<*invoke name="set_fan">\n<*parameter name="speed" string="false">2</*parameter>\n</*invoke>\n'
    )
    return f"<*{name}>\n{invokes}</*{name}>".replace("*", f"｜DSML｜{blank}")


def _deepseek(call: str, end: str, kind: str) -> str:
    calls = _each("<｜tool▁call▁begin｜>", f"{end}<｜tool▁call▁end｜>", (
        f'{kind}set_light{call}{{"state": "on"}}', f'{kind}set_fan{call}{{"speed": 2}}',
    ), "")  # fmt: skip
    return f"<｜tool▁calls▁begin｜>{calls}<｜tool▁calls▁end｜>"


_PLAMO = "<|plamo:{}:plamo|>".format
_MINIMAX = "]<]minimax[>["
SAMPLES: dict[str, str] = {
    "apertus": '<|tools_prefix|>[{"set_light": {"state": "on"}}, {"set_fan": {"speed": 2}}]<|tools_suffix|>',
    "deepseek_v3": _deepseek("\n```json\n", "\n```", "function<｜tool▁sep｜>"),
    "deepseek_v31": _deepseek("<｜tool▁sep｜>", "", ""),
    "deepseek_v32": _dsml("function_calls"),
    "deepseek_v4": _dsml("tool_calls"),
    "deepseek_v41": _dsml("calls", " "),
    "dots": f"<dots_function_call>{_INVOKE}</dots_function_call>",
    "ernie45": _each("<tool_call>\n", "\n</tool_call>"),
    "functiongemma": "<start_function_call>call:set_light{state:<escape>on<escape>}<end_function_call>"
    "<start_function_call>call:set_fan{speed:<escape>2<escape>}<end_function_call>",
    "gemma4": '<|tool_call>call:set_light{state:<|"|>on<|"|>}<tool_call|><|tool_call>call:set_fan{speed:2}<tool_call|>',
    "gigachat3": f"<|function_call|>{_ARGUMENTS[0]}",
    "glm45": _GLM,
    "glm47": _GLM,
    "granite": f"<|tool_call|>{_LIST}",
    "granite-20b-fc": _each("<function_call> ", "", between=" "),
    "granite4": _each("<tool_call>\n", "\n</tool_call>"),
    "hermes": _each("<tool_call>\n", "\n</tool_call>"),
    "hunyuan_a13b": f"<tool_calls>{_LIST}</tool_calls>",
    "hy_v3": "<tool_calls><tool_call>set_light<tool_sep>\n<arg_key>state</arg_key>\n<arg_value>on</arg_value>\n"
    "</tool_call>\n<tool_call>set_fan<tool_sep>\n<arg_key>speed</arg_key>\n<arg_value>2</arg_value>\n</tool_call>"
    "</tool_calls>",
    "hy_v4": "<tool_calls><tool_call>set_light<arg_key>state</arg_key><arg_value>on</arg_value></tool_call>"
    "<tool_call>set_fan<arg_key>speed</arg_key><arg_value>2</arg_value></tool_call></tool_calls>",
    "internlm": _each("<|action_start|><|plugin|>\n", "<|action_end|>"),
    "jamba": f"<tool_calls>{_LIST}</tool_calls>",
    "k2_horizon": "<ifm|tool_calls><ifm|tool_call>set_light<ifm|arg_key>state</ifm|arg_key><ifm|arg_value>on"
    "</ifm|arg_value></ifm|tool_call><ifm|tool_call>set_fan<ifm|arg_key>speed</ifm|arg_key><ifm|arg_value>2"
    "</ifm|arg_value></ifm|tool_call></ifm|tool_calls>",
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.set_light:0<|tool_call_argument_begin|>"
    '{"state": "on"}<|tool_call_end|><|tool_call_begin|>functions.set_fan:1<|tool_call_argument_begin|>{"speed": 2}'
    "<|tool_call_end|><|tool_calls_section_end|>",
    "lfm2": f"<|tool_call_start|>{_PYTHON}<|tool_call_end|>",
    "ling3": _GLM,
    "llama3_json": _each("", "", between="; "),
    "llama4_json": _each("<|python_tag|>", "", between="; "),
    "llama4_pythonic": f"<|python_start|>{_PYTHON}<|python_end|>",
    "longcat": _each("<longcat_tool_call>", "</longcat_tool_call>"),
    "mimo": _QWEN.replace("\non\n", "on").replace("\n2\n", "2"),
    "minicpm5": '<function name="set_light"><param name="state">on</param></function>\n'
    '<function name="set_fan"><param name="speed">2</param></function>',
    "minimax_m2": f"<minimax:tool_call>\n{_INVOKE}\n</minimax:tool_call>",
    "minimax_m3": f'{_MINIMAX}<tool_call>\n{_MINIMAX}<invoke name="set_light">{_MINIMAX}<state>on{_MINIMAX}</state>'
    f'{_MINIMAX}</invoke>\n{_MINIMAX}<invoke name="set_fan">{_MINIMAX}<speed>2{_MINIMAX}</speed>{_MINIMAX}</invoke>\n'
    f"{_MINIMAX}</tool_call>",
    "mistral": '[TOOL_CALLS]set_light{"state": "on"}[TOOL_CALLS]set_fan{"speed": 2}',
    "olmo3": "<function_calls>set_light(state='on')\nset_fan(speed=2)</function_calls>",
    "phi4_mini_json": f"functools{_LIST}",
    "plamo3": "".join((
        _PLAMO("begin_tool_requests"),
        *(f"{_PLAMO('begin_tool_request')}{_PLAMO('begin_tool_name')}{name}{_PLAMO('end_tool_name')}"
          f"{_PLAMO('begin_tool_arguments')}<|plamo:constrain|>json<|plamo:msg|>{arguments}{_PLAMO('end_tool_arguments')}"
          f"{_PLAMO('end_tool_request')}" for name, arguments in (LIGHT, FAN)),
        _PLAMO("end_tool_requests"),
    )),
    "poolside_v1": _GLM,
    "pythonic": _PYTHON,
    "qwen3_coder": _QWEN,
    "qwen3_json": _each("<tool_call>\n", "\n</tool_call>"),
    "qwen3_xml": _QWEN,
    "seed_oss": _QWEN.replace("tool_call>", "seed:tool_call>"),
    "step3": "<｜tool_calls_begin｜>"
    + _each("<｜tool_call_begin｜>function<｜tool_sep｜>", "<｜tool_call_end｜>", _STEP)
    + "<｜tool_calls_end｜>",
    "step3p5": _QWEN,
    "xlam": _LIST,
}  # fmt: skip
