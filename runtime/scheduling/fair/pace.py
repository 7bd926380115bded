"""How fast an engine works, for predictions of waiting."""

LEARNING_RATE = 0.1


class Pace:
    """Running means of a request's seconds in the engine and of its work."""

    def __init__(self) -> None:
        self.is_known = False
        self._seconds, self._work = 0.5, 1.0

    def ended(self, seconds: float, work: float) -> None:
        part = LEARNING_RATE if self.is_known else 1.0
        self._seconds += part * (seconds - self._seconds)
        self._work += part * (work - self._work)
        self.is_known = True

    def seconds(self, work: float, at_once: int) -> float:
        """Until so much work that waits has begun, and one more request can: so many run at once."""
        return self._seconds * (1 + work / self._work) / max(1, at_once)

    def work(self, seconds: float) -> float:
        """That an engine with one request does in so long; 0 before anything was measured."""
        return self._work * seconds / self._seconds if self.is_known and self._seconds else 0.0
