"""OpenAI's chat completions to and from Anthropic's messages; Responses to both.

Bytes and values only; no I/O, no clock but `created`.

A request is read field by field: what the other dialect has no word for is a 400 that names the field. What may be left
out without a change of the answer is: hints for caches, and the thinking of earlier turns. `*_fields.py` are tables of
a dialect's fields, and what becomes of each.
"""
