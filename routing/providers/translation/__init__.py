"""OpenAI's chat completions to and from Anthropic's messages; Responses to both.

Works on bytes and values only; no I/O, and no clock except for `created`.

Requests are read field by field. A field that the other dialect cannot express is a 400 that names it. Fields that do
not change the answer are omitted: hints for caches, and reasoning of earlier turns. `FIELDS` are tables of a dialect's
fields, and what happens to each.
"""
