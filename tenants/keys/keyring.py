"""Maps keys to callers in memory, without the database: one lookup and one HMAC.

| key of the request                  | no keys, loopback or --open | keys exist | keys exist, --open  |
|-------------------------------------|-----------------------------|------------|---------------------|
| none                                | everybody                   | 401        | a visitor: `infer`  |
| not in our format                   | everybody                   | 401        | a visitor           |
| an active key of ours               | -                           | its caller | its caller          |
| a wrong, expired or revoked key     | everybody                   | 401        | 401                 |
| several different keys              | everybody                   | 401        | 401, if one is ours |

If people sign in at a provider, the columns for existing keys apply.
"""

import hmac
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from registry.errors import Unauthorized
from tenants.caller import EVERYBODY, PERSON_MARK, VISITOR, Caller, Person, Scope, ServiceClass
from tenants.keys import secret
from tenants.keys.records import Key

LONGEST = 512
"""Most characters of a key that are inspected. Providers' keys have up to 200."""
HOW = "Send it as Authorization: Bearer, x-api-key or api-key."


@dataclass(frozen=True, slots=True)
class TeamEntry:
    """The fields of a team that its callers need."""

    salt: str = ""
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """A key in memory."""

    digest: bytes
    caller: Caller
    expires: float | None
    revoked: bool

    @classmethod
    def of(cls, key: Key, digest: bytes, salt: str, weight: float = 1.0, line: str | None = None) -> "KeyEntry":
        default, ceiling = key.classes
        caller = Caller(
            key.team, key.id, key.scopes, key.models, key.adapters, salt, weight, default, ceiling, key.timeout, line
        )
        return cls(digest, caller, key.expires, key.revoked is not None)


class Keyring:
    """A snapshot of all keys, replaced when they change.

    Args:
        is_open: accept requests without a key.
        archived: teams whose keys are refused.
        teams: the teams of people without a key.
        sign_in: people sign in at a provider.
    """

    def __init__(
        self,
        keys: Mapping[str, KeyEntry],
        pepper: bytes,
        *,
        is_open: bool,
        archived: Iterable[str] = (),
        teams: Mapping[str, TeamEntry] | None = None,
        sign_in: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._keys, self._pepper, self._clock = keys, pepper, clock
        self._archived = frozenset(archived)
        self.is_open, self._teams = is_open, teams or {}
        self._is_claimed = bool(keys) or sign_in
        self._chains: dict[str | None, list[KeyEntry]] = {}
        """Keys by the first key of their rotation chain."""
        for entry in keys.values():
            self._chains.setdefault(entry.caller.metered, []).append(entry)
        self._unknown_key = KeyEntry(bytes(32), EVERYBODY, None, True)  # an unknown id takes as long as a wrong secret

    @property
    def is_unclaimed(self) -> bool:
        """Whether everyone is an administrator, so that nobody is billed for usage."""
        return self.is_open and not self._is_claimed

    def identify(self, keys: Sequence[str]) -> Caller:
        """Return the caller with these keys. Raises Unauthorized."""
        if self.is_open and not any(text.startswith(secret.PREFIX) for text in keys):
            return VISITOR if self._is_claimed else EVERYBODY
        if not self._is_claimed and self.is_open:
            return EVERYBODY
        if not keys:
            raise Unauthorized(f"This server needs a key. {HOW}", code="missing_api_key")
        if len(set(keys)) > 1:
            raise Unauthorized("This request has several different keys. Send one.")
        return self._active(keys[0])

    def _active(self, text: str) -> Caller:
        id_ = secret.id_of(text) if len(text) <= LONGEST else None
        if id_ is None:
            raise Unauthorized("This is not a key of this server, or it is incomplete: keys begin with 'rh-'.")
        entry = self._keys.get(id_, self._unknown_key)
        right = hmac.compare_digest(secret.digest(self._pepper, text), entry.digest)
        if not right:  # more is revealed only to a holder of the whole key
            raise Unauthorized("This key is wrong. Make one with `roundhouse keys create`.")
        return self._checked(entry)

    def by_id(self, id_: str, team: str) -> Caller:
        """Return the caller of a key's id, for work that outlives its request. Raises Unauthorized.

        A rotated key stands for its successors; '' stands for requests without a key. A person's id stands for a member
        of `team` with the scope `infer`, because the groups of a person who signed out are unknown.
        """
        if not id_:
            return self.identify(())
        if id_.startswith(PERSON_MARK):
            return self.member(Person(id_, "", team, frozenset((Scope.INFER,))))
        entry = self._keys.get(id_)
        if entry is None:
            raise Unauthorized("The key does not exist any more.", code="api_key_revoked")
        try:
            return self._checked(entry)
        except Unauthorized:
            for other in self._chains[entry.caller.metered]:
                if other is not entry and self._is_active(other):
                    return other.caller
            raise

    def by_exact_id(self, id_: str) -> Caller:
        """Like `by_id`, without successors: for a browser that presented this key. Raises Unauthorized."""
        return self._checked(self._keys.get(id_, self._unknown_key))

    def member(self, person: Person) -> Caller:
        """Return the caller for a member of a team. Raises Unauthorized."""
        team = self._teams.get(person.team)
        if team is None:
            raise Unauthorized(
                f"Your groups belong to the team '{person.team}', which does not exist. Ask the server's operator: "
                f"`roundhouse teams create {person.team}`.",
                code="team_missing",
            )
        if person.team in self._archived:
            raise Unauthorized("The team of your groups is archived.", code="team_archived")
        return Caller(
            person.team,
            person.id,
            person.scopes,
            salt=team.salt,
            weight=team.weight,
            ceiling=ServiceClass.INTERACTIVE,
            person=person.name,
        )

    def _is_active(self, entry: KeyEntry) -> bool:
        try:
            self._checked(entry)
        except Unauthorized:
            return False
        return True

    def _checked(self, entry: KeyEntry) -> Caller:
        if entry.revoked:
            raise Unauthorized("This key was revoked. Ask for a new one.", code="api_key_revoked")
        if entry.expires is not None and entry.expires <= self._clock():
            raise Unauthorized("This key has expired. Ask for a new one.", code="api_key_expired")
        if entry.caller.team in self._archived:
            raise Unauthorized("The team of this key is archived.", code="team_archived")
        return entry.caller


OPEN = Keyring({}, bytes(32), is_open=True)
"""The keyring of a server without keys."""
