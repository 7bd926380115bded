"""Predict a model's memory from its earlier loads. Pure.

    expected   = after load + margin
    after load   rises at once to the memory after the newest load; falls by FALL of the difference at each load
    margin       peak memory beyond that while the model served, at most `most`; halves in each HALF_LIFE without a
                 new peak
    most       = the larger of the working margin (a setting) and MOST_SHARE of the memory after the load
    allowance  = after load + most; a model beyond it is out of control: it is restarted, and nothing is learnt from it

So no request can raise the prediction by more than `most`, and its effect fades.
"""

MIB = 2**20
FALL = 0.3
MOST_SHARE = 0.5
"""Measured: embedding models grow by 0.15 to 0.25 of their memory after the load."""
WORKING_MARGIN = 1024 * MIB
"""Measured: with 200 requests at once a small chat model grows by 550 MiB after its load, as its KV cache is first
written. Speech with word timestamps grows by 310 MiB, all others by less."""
HALF_LIFE = 7 * 24 * 3600.0
"""Seconds. A weekly job keeps its margin; a single peak is forgotten in a month or two."""


def after_load(before: int, measured: int) -> int:
    """Return the new expected bytes after a load that took `measured`. before: the old value, 0 if none."""
    return max(measured, int(before - FALL * (before - measured)))


def most(after: int, working_margin: int = WORKING_MARGIN) -> int:
    """Return the largest margin of a model with `after` bytes after its load."""
    return max(working_margin, int(after * MOST_SHARE))


def learn_margin(margin: int, after: int, measured: int, working_margin: int = WORKING_MARGIN) -> int:
    """Return the margin after `measured` bytes were observed."""
    return min(max(margin, measured - after), most(after, working_margin))


def decayed_margin(margin: int, age: float) -> int:
    """Return what is left of a margin observed `age` seconds ago; a negative age counts as 0."""
    return int(margin * 0.5 ** (max(0.0, age) / HALF_LIFE))
