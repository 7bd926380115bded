"""Predict a model's memory from what earlier loads of it took. Pure.

    expected   = after load + margin
    after load   rises at once to what the newest load held; falls by FALL of the difference at each load
    margin       the most that was seen beyond it while the model served, never above `most`; half of it is forgotten
                 in each HALF_LIFE in which it was not seen again
    most       = the larger of the working margin (a setting) and MOST_SHARE of what is held after the load
    allowance  = after load + most: a model that holds more has run away. Nothing is learnt from that; it is restarted.

So no request can teach the server more than `most`, and what one has taught fades.
"""

MIB = 2**20
FALL = 0.3
MOST_SHARE = 0.5
"""Measured: 0.15 to 0.25 of what embeddings hold after their load."""
WORKING_MARGIN = 1024 * MIB
"""Measured: under a flood of 200 requests a small chat model comes to 550 MiB more than after its load, as its KV cache
is touched bit by bit. Speech with word times takes 310 MiB more, all others less."""
HALF_LIFE = 7 * 24 * 3600.0
"""Seconds. A job of every week keeps its margin, what happened once is forgotten in a month or two."""


def after_load(before: int, measured: int) -> int:
    """The value to expect after a load that held `measured`. before: the old value, 0 if none."""
    return max(measured, int(before - FALL * (before - measured)))


def most(after: int, working_margin: int = WORKING_MARGIN) -> int:
    """The largest margin of a model that holds `after` bytes after its load."""
    return max(working_margin, int(after * MOST_SHARE))


def learn_margin(margin: int, after: int, measured: int, working_margin: int = WORKING_MARGIN) -> int:
    """The margin once `measured` bytes were seen."""
    return min(max(margin, measured - after), most(after, working_margin))


def decayed_margin(margin: int, age: float) -> int:
    """The rest of a margin seen `age` seconds ago; a clock set back counts as 0."""
    return int(margin * 0.5 ** (max(0.0, age) / HALF_LIFE))
