"""JSON that somebody else wrote: a client, a provider, a model's files."""

import msgspec

NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for it: another form than was asked for, no UTF-8, or nested deeper than a parser goes."""
