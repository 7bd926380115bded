"""What a request tells a router. Made from its body before anything is sent anywhere."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Features:
    """Nothing in it depends on the router, or on what is resident."""

    text: str = ""
    """The last thing that the user said; of a request without messages its prompt, input or query."""
    endpoint: str = "/v1/chat/completions"
    characters: int = 0
    """Characters of the whole prompt."""
    tools: bool = False
    images: bool = False
    json_schema: bool = False
    """The answer is to follow a JSON schema or grammar."""
    team: str = ""
    service_class: str = "interactive"
    language: str | None = None
    """As the request names it, in two letters; None: the text tells."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Names in lower case."""
    vector: Vector | None = None
    """The text's embedding by the model that the router names, of length 1; None: that model is not resident."""
