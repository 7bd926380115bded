"""Keeps processes that make training data from outliving the training."""

import multiprocessing

from models.process_control import die_with_parent


def end_with_parent() -> None:
    """Have the kernel kill this child of `multiprocessing` when its parent ends."""
    if (parent := multiprocessing.parent_process()) is not None:
        die_with_parent(int(parent.pid or 0))
