"""Sizes in bytes, as settings, bounds and recipes write them: 512MiB, 4GB, or a number."""

import re

import pydantic


class ByteSize(pydantic.ByteSize):
    """pydantic's, but the whole text counts. Of '1,5GiB' and '50%' it would read the beginning: 1 and 50 bytes."""

    byte_string_pattern = r"^\s*(\d*\.?\d+)\s*(\w+)?\s*$"
    byte_string_re = re.compile(byte_string_pattern)
