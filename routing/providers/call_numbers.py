"""Numbers of the calls of tools in a stream, where a server gives none, or one number to several calls."""


class CallNumbers:
    """Call numbers of one choice. Gemini's calls have no number, or all have 0, which clients take for one call.

    | a piece has                                       | it is of                    |
    |---------------------------------------------------|-----------------------------|
    | a number                                          | the call with this number   |
    | a number, a name, and another id than its call    | a new call, and so are those that follow with that number |
    | no number, and an id that is known                | the call with this id       |
    | no number, and a name                             | a new call                  |
    | no number, no name                                | the call before             |
    """

    def __init__(self) -> None:
        self._ids: dict[int, str] = {}
        """Call ids by the number given here."""
        self._moved: dict[int, int] = {}
        """From the number that was given, where that was another call's."""
        self._last = 0

    def number(self, sent: int | None, call_id: str, *, named: bool) -> int:
        """Return the number of the call that a piece belongs to."""
        if sent is None:
            by_id = next((number for number, one in self._ids.items() if call_id and one == call_id), None)
            number_here = by_id if by_id is not None else self._new if named else self._last
        else:
            number_here = self._moved.get(sent, sent)
            if named and call_id and self._ids.get(number_here, call_id) != call_id:
                number_here = self._moved[sent] = self._new
        self._ids.setdefault(number_here, call_id)
        self._last = number_here
        return number_here

    @property
    def _new(self) -> int:
        return max(self._ids, default=-1) + 1
