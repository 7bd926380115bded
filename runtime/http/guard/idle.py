"""Connections that wait for a request, oldest first, bounded in total and per address.

Over a bound the longest idle one is closed, not the new one refused: who floods the server, from the address of
others too, must not keep their next requests out.
"""

from typing import Protocol


class Closable(Protocol):
    def leave(self) -> None: ...


class IdleConnections:
    def __init__(self, most: int, per_address: int) -> None:
        self._most, self._per_address = most, per_address
        self._all: dict[Closable, str] = {}
        self._by_address: dict[str, dict[Closable, None]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def add(self, connection: Closable, address: str) -> None:
        """It waits from now on. Another one may have to leave."""
        self.remove(connection)
        self._all[connection] = address
        here = self._by_address.setdefault(address, {})
        here[connection] = None
        if len(here) > self._per_address:
            self._close(next(iter(here)))
        elif len(self._all) > self._most:
            self._close(next(iter(self._all)))

    def remove(self, connection: Closable) -> None:
        """It waits no longer; nothing happens if it did not."""
        address = self._all.pop(connection, None)
        if address is not None:
            here = self._by_address[address]
            del here[connection]
            if not here:
                del self._by_address[address]

    def _close(self, connection: Closable) -> None:
        self.remove(connection)
        connection.leave()
