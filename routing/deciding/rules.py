"""Which of a router's rules hold for a request."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache

from registry.recipes.router import Rule, When, compiled
from routing.decision import Features

LONGEST_VALUE = 1024
"""Characters of a header's value that a pattern is held against."""


class Rules:
    """A router's rules, their patterns compiled once."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = tuple(rules)
        self._patterns = {
            pattern: compiled(pattern) for rule in self.rules for pattern in rule.when.headers.values()
        }  # one object per pattern, however many rules have it

    def matching(self, features: Features) -> tuple[Rule | None, bool]:
        """The first that names targets; and whether any one says 'stay inside', wherever it stands: what must not leave
        the machine does not leave it because another rule was written before.
        """
        first: Rule | None = None
        inside = False
        spoken = cache(lambda: features.language or language(features.text))
        for rule in self.rules:
            decides, bounds = first is None and bool(rule.to), rule.stay_inside and not inside
            if (decides or bounds) and self._holds(rule.when, features, spoken):
                first = rule if decides else first
                inside = inside or rule.stay_inside
        return first, inside

    def _holds(self, when: When, features: Features, spoken: Callable[[], str]) -> bool:
        return (
            (not when.endpoint or features.endpoint in when.endpoint)
            and when.tools in (None, features.tools)
            and when.images in (None, features.images)
            and when.json_schema in (None, features.json_schema)
            and (when.longer_than is None or features.characters > when.longer_than)
            and (when.shorter_than is None or features.characters < when.shorter_than)
            and (not when.team or features.team in when.team)
            and (not when.service_class or features.service_class in when.service_class)
            and self._headers(when.headers, features.headers)
            and (not when.language or spoken() in when.language)
        )

    def _headers(self, patterns: Mapping[str, str], sent: Mapping[str, str]) -> bool:
        return all(
            name in sent and self._patterns[pattern].search(sent[name][:LONGEST_VALUE]) is not None
            for name, pattern in patterns.items()
        )


def language(text: str) -> str:
    """Two letters, as ISO 639-1 has them; a guess where the text is short, '' where there is none."""
    if not text:
        return ""
    import py3langid  # 0.1 s and 30 MB, which only routers with such a rule need

    return str(py3langid.classify(text[:2000])[0])
