"""Bodies of the chat engine's requests: their fields, tools, templates and errors."""
