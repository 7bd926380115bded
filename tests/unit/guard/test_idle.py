"""The idle connection that is closed when there are too many."""

from dataclasses import dataclass, field

from runtime.http.guard.protocol import IdleConnections


@dataclass(eq=False)
class Fake:
    name: str
    gone: list[str] = field(default_factory=list)

    def leave(self) -> None:
        self.gone.append(self.name)


def test_the_longest_idle_connection_of_an_address_is_closed_and_then_of_all() -> None:
    idle = IdleConnections(most=4, per_address=2)
    gone: list[str] = []
    a1, a2, a3, b1, b2, c1 = (Fake(name, gone) for name in ("a1", "a2", "a3", "b1", "b2", "c1"))
    for one in (a1, a2):
        idle.add(one, "a")
    idle.remove(a1)  # it sends a request
    idle.add(a1, "a")  # and waits again
    idle.add(a3, "a")
    assert gone == ["a2"]
    for one in (b1, b2):
        idle.add(one, "b")
    assert gone == ["a2"]
    idle.add(c1, "c")
    assert gone == ["a2", "a1"]
    assert len(idle) == 4
    for one in (a3, b1, b2, c1):
        idle.remove(one)
    assert not idle._by_address, "it keeps nothing of addresses without connections"


def test_removing_a_connection_that_is_not_idle_has_no_effect() -> None:
    idle = IdleConnections(most=1, per_address=1)
    idle.remove(Fake("x"))
    assert len(idle) == 0
