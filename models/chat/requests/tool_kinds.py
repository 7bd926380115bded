"""Kinds of tools that clients run, as functions for the model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]


def _schema(required: tuple[str, ...], **properties: Json) -> Json:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _text(description: str = "") -> Json:
    return {"type": "string", "description": description} if description else {"type": "string"}


def _texts(description: str) -> Json:
    return {"type": "array", "items": {"type": "string"}, "description": description}


_INTEGER = {"type": "integer"}


@dataclass(frozen=True, slots=True)
class ClientTool:
    """A kind of tool, with its function and the client's items for its calls."""

    description: str
    parameters: Json
    item: str
    """Type of a call's item."""
    read: Callable[[Json], Json]
    """Converts the function's arguments to the item's fields."""
    write: Callable[[Json], Json]
    """Converts such an item to the function's arguments."""


def _shell_action(arguments: Json) -> Json:
    commands = arguments.get("commands")
    return {
        "action": {
            "commands": commands if isinstance(commands, list) else [],
            "timeout_ms": arguments.get("timeout_ms"),
            "max_output_length": arguments.get("max_output_length"),
        }
    }


def _local_action(arguments: Json) -> Json:
    command, env = arguments.get("command"), arguments.get("env")
    return {
        "action": {
            "type": "exec",
            "command": command if isinstance(command, list) else [],
            "env": env if isinstance(env, dict) else {},
            "working_directory": arguments.get("working_directory"),
            "timeout_ms": arguments.get("timeout_ms"),
            "user": None,
        }
    }


def _given(fields: Any) -> Json:
    """Return the non-empty fields of an object, without its `type` and `user`."""
    if not isinstance(fields, dict):
        return {}
    return {name: value for name, value in fields.items() if value not in (None, {}) and name not in ("type", "user")}


def _operation(item: Json) -> Json:
    operation = item.get("operation")
    return operation if isinstance(operation, dict) else {}


KINDS: Mapping[str, ClientTool] = {
    "custom": ClientTool(
        "",
        _schema(("input",), input=_text("The whole input of the tool, as free text.")),
        "custom_tool_call",
        lambda arguments: {"input": str(arguments.get("input", ""))},
        lambda item: {"input": item.get("input", "")},
    ),
    "local_shell": ClientTool(
        "Run a command on the user's machine. Its output is returned.",
        _schema(
            ("command",),
            command=_texts("The program and its arguments."),
            working_directory=_text("Where to run it; by default where the client runs."),
            timeout_ms=_INTEGER,
            env={"type": "object", "additionalProperties": {"type": "string"}},
        ),
        "local_shell_call",
        _local_action,
        lambda item: _given(item.get("action")),
    ),
    "shell": ClientTool(
        "Run shell commands on the user's machine, one after the other. Their output is returned.",
        _schema(
            ("commands",),
            commands=_texts("Commands, each a line for the shell."),
            timeout_ms=_INTEGER,
            max_output_length=_INTEGER,
        ),
        "shell_call",
        _shell_action,
        lambda item: _given(item.get("action")),
    ),
    "apply_patch": ClientTool(
        "Create, change or delete one file on the user's machine by a diff.",
        _schema(
            ("type", "path"),
            type={"enum": ["create_file", "update_file", "delete_file"]},
            path=_text("The file, relative to the workspace."),
            diff=_text("A V4A diff of the file's lines; not for delete_file."),
        ),
        "apply_patch_call",
        lambda arguments: {"operation": arguments},
        _operation,
    ),
}
BY_ITEM = {kind.item: name for name, kind in KINDS.items()}
_PATH = _text("Absolute path of the file or directory.")
_FILE_COMMANDS: Json = {
    "path": _PATH,
    "file_text": _text("For create: the content of the file."),
    "old_str": _text("For str_replace: the text to replace; it must occur once."),
    "new_str": _text("For str_replace: its replacement."),
    "insert_line": {"type": "integer", "description": "For insert: the line after which to insert."},
    "insert_text": _text("For insert: the text."),
    "view_range": {"type": "array", "items": _INTEGER, "description": "For view: first and last line."},
}


def _commands(*names: str, **more: Json) -> Json:
    return _schema(("command",), command={"enum": list(names)}, **_FILE_COMMANDS, **more)


ANTHROPIC: Mapping[str, tuple[str, Json]] = {
    "bash_": (
        "Run a command in a bash session on the user's machine that stays open between calls.",
        _schema((), command=_text("The command to run."), restart={"type": "boolean"}),
    ),
    "text_editor_": (
        "View, create and edit text files on the user's machine.",
        _commands("view", "create", "str_replace", "insert"),
    ),
    "memory_": (
        "Read and write files below /memories that last between conversations.",
        _commands(
            "view", "create", "str_replace", "insert", "delete", "rename",
            old_path=_text("For rename: the present path."), new_path=_text("For rename: the new path."),
        ),
    ),
}  # fmt: skip
"""Tools of Messages by the prefix of their type, with description and input schema."""
