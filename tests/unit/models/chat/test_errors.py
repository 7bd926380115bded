"""What a failure of the engine means for a request."""

import pytest

from models.chat.requests import errors


@pytest.mark.parametrize(
    ("reached", "constrained", "code"),
    [(False, False, "unprocessable_request"), (True, True, "unsatisfiable_constraint"), (True, False, None)],
)
def test_what_a_failure_of_a_living_engine_means(reached: bool, constrained: bool, code: str | None) -> None:
    fault = errors.explain_failure(reached_engine=reached, constrained=constrained)
    assert (fault and fault.code) == code
