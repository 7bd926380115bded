"""Check a request's grammar and token ids before it enters the engine."""

import asyncio
from collections.abc import Coroutine
from contextvars import ContextVar
from typing import Any

import msgspec

from models.chat.grammars.checker import GrammarChecker, Locate
from models.chat.requests.request import ChatRequest
from models.chat.vllm import grammars
from models.vocabulary import check_known
from registry.base.json import NOT_JSON
from registry.errors import BadRequest, RoundhouseError


class KnownTokens:
    """Refuses tokens for which the network has no row, but which vLLM accepts because the tokenizer has them."""

    def __init__(self, engine: Any) -> None:
        self._tokenizer: Any = engine.get_tokenizer()
        self._tokens = int(engine.model_config.get_vocab_size())
        self._has_more = self._tokenizer.max_token_id >= self._tokens
        end_tokens = engine.model_config.try_get_generation_config().get("eos_token_id")
        ends = [self._tokenizer.eos_token_id, *(end_tokens if isinstance(end_tokens, list) else [end_tokens])]
        self._end = max((end for end in ends if isinstance(end, int)), default=0)

    def check(self, prompt: Any, params: Any) -> None:
        """Raise BadRequest for such tokens."""
        if self._end >= self._tokens and bool(getattr(params, "min_tokens", None)):
            raise BadRequest(
                f"The end-of-text token {self._end} of this model is beyond the {self._tokens} tokens of its network: "
                "its answers end by max_tokens or stop only. Leave min_tokens out.",
                param="min_tokens",
            )
        if self._has_more and isinstance(prompt, dict) and prompt.get("type") == "token":
            ids = prompt["prompt_token_ids"]
            word = self._tokenizer.convert_ids_to_tokens([max(ids, default=0)])[0]
            check_known(ids, self._tokens, str(word or ""))


ADMISSION: ContextVar["GrammarAdmission | None"] = ContextVar("roundhouse_admission", default=None)


def refusal(error: RoundhouseError) -> Exception:
    """Refuse the current call. Returns the error to raise, for which vLLM answers 400, which is not passed on."""
    if (admission := ADMISSION.get()) is not None:
        admission.refuse(error)
    return grammars.refused()


class GrammarAdmission:
    """One call's admission to the engine: whether it has entered, and why it was refused."""

    def __init__(
        self,
        checker: GrammarChecker,
        locate: Locate,
        arrival: asyncio.Future[None] | None,
        team: str,
        *,
        only_counts: bool,
    ) -> None:
        """arrival: ends when the call's adapter is in its place; None if it already is. team: of the call.

        only_counts: whether the call ends with `prompt_tokens`, without entering the engine.
        """
        self._locate, self._arrival, self._team, self._only_counts = locate, arrival, team, only_counts
        self.decided = asyncio.Event()
        self.refusal: RoundhouseError | None = None
        self.constrained = False
        """Whether a grammar or schema constrains the answer, including that of a forced tool call."""
        self.tokens: int | None = None
        """Maximum tokens of the answer, as decided by vLLM."""
        self.prompt_tokens: int | None = None
        """Tokens of the prompt, if the call only counts."""
        self._checker = checker
        self._checks: set[asyncio.Task[None]] = set()
        self._has_left = False

    def count(self, prompt: Any) -> None:
        """Note the tokens of a prompt and end its call, if that only counts."""
        if self._only_counts:
            self.prompt_tokens = len(prompt["prompt_token_ids"])
            self.decided.set()
            raise grammars.refused()

    async def admit(self, constraint: Any) -> None:
        """Check a constraint, and wait for the adapter.

        Raises an error of vLLM's, for which vLLM answers 400. That is not passed on; the answer is `refusal`.
        """
        try:
            if constraint is not None:
                await self._wait(self._checker.check(constraint, self._locate, self._team))
                self.constrained = bool(grammars.fields_of(constraint)[0])
            if self._arrival is not None:
                await self._wait(_arrived(self._arrival))
        except RoundhouseError as error:
            self.refuse(error)
            raise grammars.refused() from None
        finally:
            self.decided.set()

    def refuse(self, error: RoundhouseError) -> None:
        self.refusal = error
        self.decided.set()

    async def _wait(self, work: Coroutine[Any, Any, None]) -> None:
        check = asyncio.get_running_loop().create_task(work)
        self._checks.add(check)
        try:
            await check
        except asyncio.CancelledError:
            check.cancel()
            if self._has_left:
                raise grammars.refused() from None
            raise
        finally:
            self._checks.discard(check)

    async def check_tags(self, request: ChatRequest) -> None:
        """Check the structural tags that vLLM reads before it calls the engine. Raises BadRequest and others."""
        for tag in _tags(request):
            await self._checker.check(grammars.of_tag(tag), self._locate, self._team)

    def leave(self) -> None:
        """Give up a running check, because the client has left."""
        self._has_left = True
        for check in self._checks:
            check.cancel()


async def _arrived(arrival: asyncio.Future[None]) -> None:
    """Wait for an adapter, which other calls may be waiting for, too. Raises the error of its move."""
    await asyncio.shield(arrival)


class _Constraint(msgspec.Struct):
    structural_tag: msgspec.Raw | None = None


_CONSTRAINT = msgspec.json.Decoder(_Constraint | None)
"""Built once, because `json.decode` with such a type would build it for each request."""


def _tags(request: ChatRequest) -> list[str]:
    """Return the structural tags of a request as text. vLLM refuses malformed ones before reading them."""
    tags: list[str] = []
    try:
        constraint = _CONSTRAINT.decode(request.fields.get("structured_outputs", b"null"))
        tag = msgspec.json.decode(constraint.structural_tag) if constraint and constraint.structural_tag else ""
        if isinstance(tag, str) and tag:
            tags.append(tag)
        if request.object("response_format").get("type") == "structural_tag":
            tags.append(bytes(request.fields["response_format"]).decode())
    except (*NOT_JSON, BadRequest):
        return tags
    return tags


def guard_engine(engine: Any) -> None:
    """Make each request that enters `engine` pass its `GrammarAdmission`, and check that the network has its tokens."""
    add_request, known = engine.add_request, KnownTokens(engine)

    async def admitted(request_id: str, prompt: Any, params: Any, *arguments: Any, **named: Any) -> Any:
        try:
            known.check(prompt, params)
        except BadRequest as error:
            raise refusal(error) from None
        if (admission := ADMISSION.get()) is not None:
            admission.count(prompt)
            admission.tokens = getattr(params, "max_tokens", None)
            await admission.admit(getattr(params, "structured_outputs", None))
        return await add_request(request_id, prompt, params, *arguments, **named)

    engine.add_request = admitted
