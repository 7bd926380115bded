"""What a model's chat template says. It is a program of its makers: here it is read, and not run."""

import re

from launch.files.listing import Listing
from registry.errors import Unfit

WRITTEN = re.compile(r"\{%[-+]?\s*(?:end)?generation\s*[-+]?%\}")
"""transformers' own marks around what a model wrote, which Jinja does not know."""
MOST = 2**17
"""Characters, several times those of the longest that is known: to read more takes seconds."""


def shows_tools(template: str, listing: Listing) -> bool:
    """Whether it reads the tools of a request. Many speak of tools and show none: those of answers that were given.

    Raises Unfit for what is no Jinja: vLLM would refuse it at the load, and not say of what it speaks.
    """
    from jinja2 import Environment, TemplateSyntaxError, nodes

    try:
        if len(template) > MOST:
            raise ValueError(f"it has {len(template):,} characters")
        read = Environment(extensions=["jinja2.ext.loopcontrols"]).parse(WRITTEN.sub("", template))
        return any(name.name == "tools" and name.ctx == "load" for name in read.find_all(nodes.Name))
    except (TemplateSyntaxError, RecursionError, ValueError) as error:
        raise Unfit(
            f"The chat template of {listing.where} is not a Jinja template ({error}): mend it, or copy it anew.",
            code="bad_config",
            param="source",
        ) from None
