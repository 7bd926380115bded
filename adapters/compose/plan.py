"""Which of peft's ways of combining LoRA adapters answers what was asked for. Pure."""

from collections.abc import Sequence
from typing import Literal

from registry.errors import BadRequest

Method = Literal["linear", "ties", "dare"]
MOST_PARTS = 8
_PEFT = {"linear": "linear", "ties": "ties", "dare": "dare_linear"}


def plan(method: Method, ranks: Sequence[int], max_rank: int, *, halves: bool = False) -> tuple[str, int]:
    """peft's `combination_type`, and the rank of the result.

    The change that an adapter makes to a layer is the product B·A. What is meant is a combination of products:

    | method     | peft's way                                | result                                        |
    |------------|-------------------------------------------|-----------------------------------------------|
    | linear     | `cat` while the ranks add up to max_rank  | the weighted sum, exactly                     |
    | linear     | `svd` above                               | the nearest to it that has max_rank           |
    | ties, dare | `ties_svd`, `dare_linear_svd`             | the nearest of the ranks' sum, or of max_rank |
    | halves     | `linear`, `ties`, `dare_linear`           | A from all A, B from all B: fast and rough    |

    Raises BadRequest for halves of unequal ranks, which cannot be added.
    """
    if halves:
        if len(set(ranks)) > 1:
            raise BadRequest(
                f"Halves of ranks {', '.join(map(str, ranks))} cannot be combined: leave 'halves' out, or choose "
                "adapters of one rank.",
                param="halves",
            )
        return _PEFT[method], ranks[0]
    rank = min(sum(ranks), max_rank)
    if method == "linear":
        return ("cat" if sum(ranks) <= max_rank else "svd"), rank
    return f"{_PEFT[method]}_svd", rank
