"""The least part of the work that a class gets while it waits, whatever the classes above it want."""

from collections.abc import Collection

from tenants.classes import ServiceClass


class Floors:
    """A class that waits earns `share` of all the work that starts; while it has earned some, it goes before those
    above it, and pays for what it starts. It may start more than it earned once, and then earns that first: so
    it gets its share to within one request, and one that comes rarely does not get ahead of others each time.
    """

    def __init__(self, share: float) -> None:
        """Raises ValueError for a share that leaves nothing for the highest class."""
        if not 0 <= share < 0.5:
            raise ValueError("a floor is at least 0 and less than a half")
        self.share = share
        self._earned = dict.fromkeys(ServiceClass, 0.0)

    def owed(self, service_class: ServiceClass) -> bool:
        return self._earned[service_class] > 0

    def order(self, waiting: Collection[ServiceClass]) -> list[ServiceClass]:
        """The classes that wait, by who goes first."""
        return sorted(waiting, key=lambda one: one if self._earned[one] <= 0 else one - len(self._earned))

    def done(self, service_class: ServiceClass, work: float, waiting: Collection[ServiceClass], *, pays: bool) -> None:
        """Work began, or turned out to be so much more; `pays`: it went before others by its floor."""
        if pays:
            self._earned[service_class] -= work
        for one in waiting:
            if one is not ServiceClass.CRITICAL:
                self._earned[one] += self.share * work

    def clear_credit(self, service_class: ServiceClass) -> None:
        """Nothing of it waits any more: what it earned is gone, what it owes is not."""
        self._earned[service_class] = min(0.0, self._earned[service_class])
