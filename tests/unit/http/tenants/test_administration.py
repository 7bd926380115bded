"""`client.admin.organization` of OpenAI's SDK against our administration; answers are validated by its types."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence, Set
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from fastapi.responses import Response
from openai.types.admin.organization import (
    AdminAPIKey,
    AdminAPIKeyCreateResponse,
    AdminAPIKeyDeleteResponse,
    Project,
    UsageCostsResponse,
)
from openai.types.admin.organization.projects import (
    APIKeyDeleteResponse,
    ProjectAPIKey,
    ProjectServiceAccount,
    ProjectSpendLimit,
    ProjectSpendLimitDeleted,
    ServiceAccountCreateResponse,
    ServiceAccountDeleteResponse,
)
from openai.types.admin.organization.projects.service_accounts import APIKeyCreateResponse

from runtime.http.organization import keys, projects
from runtime.http.organization.pages import Row, page
from tenants.key_settings import KeySettings
from tenants.ledger.ledger import Ledger
from tenants.ledger.rows import Entry, Settlement
from tenants.limits.limiter import Limiter
from tenants.limits.loader import LimitLoader
from tenants.watch import KeyWatch
from tests.system.vendor.strict import faults
from tests.unit.http.fakes import FakeGateway, application


class Served:
    """An open server without keys. `raw` has the bodies of its answers."""

    def __init__(self, folder: Path, **more: Any) -> None:
        self.limiter, self.ledger = Limiter(), Ledger(folder / "data")
        self.watch = KeyWatch(
            KeySettings(folder / "data"), self.ledger.enable, LimitLoader(self.limiter, self.ledger).read
        )
        self.gateway = FakeGateway(folder, ledger=self.ledger, limiter=self.limiter, watch=self.watch, **more)
        self.raw: list[Any] = []
        http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=application(self.gateway)))
        http.event_hooks["response"].append(self._keep)
        self.client = openai.AsyncOpenAI(
            admin_api_key="x", api_key="x", base_url="http://test/v1", http_client=http, max_retries=0
        )
        self.organization = self.client.admin.organization

    async def _keep(self, answer: httpx2.Response) -> None:
        await answer.aread()
        self.raw.append(answer.json())

    def check(self, *kinds: Any) -> None:
        """Validate the last answers, or the rows of lists, strictly as these kinds."""
        for kind, value in zip(kinds, self.raw[-len(kinds) :], strict=True):
            for row in value["data"] if value.get("object") == "list" else [value]:
                assert faults(kind, row) == []


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    made = Served(tmp_path)
    yield made
    await made.client.close()
    await made.ledger.close()
    await made.watch.close()


async def test_lists_do_not_stop_the_event_loop(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 20,000 keys, most of them revoked, a list of what to leave out took seconds."""
    calls: list[tuple[int, object]] = []

    def watched(rows: Sequence[Row], after: str | None, limit: int, gone: Set[str]) -> Response:
        calls.append((threading.get_ident(), gone))
        return page(rows, after, limit, gone)

    for module in (keys, projects):
        monkeypatch.setattr(module, "page", watched)
    ours = served.organization.projects
    for listed in (
        ours.list(), ours.api_keys.list("default"), ours.service_accounts.list("default"),
        served.organization.admin_api_keys.list(),
    ):  # fmt: skip
        await listed
    assert len(calls) == 4
    assert threading.get_ident() not in {thread for thread, _ in calls}
    assert all(isinstance(gone, Set) for _, gone in calls)


async def test_projects_are_teams(served: Served) -> None:
    projects = served.organization.projects
    made = await projects.create(name="Search & ranking")
    assert (made.id, made.name, made.status) == ("search-ranking", "Search & ranking", "active")
    assert (await projects.create(name="search ranking")).id == "search-ranking-2"
    served.check(Project, Project)
    assert (await projects.retrieve(made.id)).name == "Search & ranking"
    assert (await projects.update(made.id, name="Other")).name == "Other"
    assert (await projects.archive(made.id)).status == "archived"
    served.check(Project, Project, Project)
    assert [one.id async for one in projects.list(limit=1)] == ["default", "search-ranking-2"]
    assert len([one async for one in projects.list(include_archived=True)]) == 3
    served.check(Project)
    with pytest.raises(openai.NotFoundError) as error:
        await projects.retrieve("nobody")
    assert error.value.code == "team_not_found"
    with pytest.raises(openai.BadRequestError):
        await projects.create(name="???")


async def test_a_project_may_have_any_name(served: Served) -> None:
    """A name without a letter of a-z was refused, although the SDK sends no id."""
    made = [await served.organization.projects.create(name=name) for name in ("\u6771\u4eac", "\u5927\u962a")]
    assert [(one.id, one.name) for one in made] == [("project", "\u6771\u4eac"), ("project-2", "\u5927\u962a")]


async def test_an_archived_team_gets_no_service_account(served: Served) -> None:
    """The account would exist without the key that is made with it."""
    projects = served.organization.projects
    await projects.create(name="search")
    await projects.archive("search")
    with pytest.raises(openai.ConflictError) as error:
        await projects.service_accounts.create("search", name="nightly")
    assert error.value.code == "team_archived"
    assert [one async for one in projects.service_accounts.list("search")] == []


async def test_an_account_without_a_key_has_nothing_that_expires(served: Served) -> None:
    accounts = served.organization.projects.service_accounts
    with pytest.raises(openai.BadRequestError) as error:
        await accounts.create("default", name="nightly", create_service_account_only=True, expires_in_seconds=60)
    assert error.value.param == "expires_in_seconds"
    assert [one async for one in accounts.list("default")] == []
    made = await accounts.create("default", name="nightly", create_service_account_only=True)
    assert made.api_key is None


async def test_keys_belong_to_service_accounts_of_their_team(served: Served) -> None:
    organization = served.organization
    await organization.projects.create(name="search")
    accounts, keys = organization.projects.service_accounts, organization.projects.api_keys
    made = await accounts.create("search", name="nightly")
    assert made.api_key is not None
    assert served.watch.keyring().identify([made.api_key.value]).team == "search", (
        "it is valid before its answer arrives"
    )
    served.check(ServiceAccountCreateResponse)
    second = await accounts.api_keys.create(made.id, project_id="search", name="b", expires_in_seconds=60)
    served.check(APIKeyCreateResponse)
    assert second.expires_at == second.created_at + 60
    listed = [one async for one in keys.list("search")]
    served.check(ProjectAPIKey)
    assert [(one.id, one.owner.service_account.name) for one in listed if one.owner.service_account] == [
        (made.api_key.id, "nightly"), (second.id, "nightly"),
    ]  # fmt: skip
    assert made.api_key.value[12:] not in str(served.raw[-1])
    with pytest.raises(openai.BadRequestError):
        await keys.update(second.id, project_id="search", scopes=[])
    with pytest.raises(openai.BadRequestError):
        await accounts.api_keys.create(made.id, project_id="search", scopes=[])
    changed = await keys.update(second.id, project_id="search", scopes=["infer", "usage"])
    assert served.watch.keyring().identify([second.value]).scopes == {"infer", "usage"}
    assert changed.id == second.id
    await keys.retrieve(second.id, project_id="search")
    await keys.delete(second.id, project_id="search")
    served.check(ProjectAPIKey, ProjectAPIKey, APIKeyDeleteResponse)
    with pytest.raises(openai.NotFoundError) as error:
        await keys.retrieve(second.id, project_id="search")
    assert error.value.code == "key_not_found"
    with pytest.raises(openai.NotFoundError):
        await keys.retrieve(made.api_key.id, project_id="default")
    renamed = await accounts.update(made.id, project_id="search", name="daily")
    assert renamed.name == "daily"
    assert [one.id async for one in accounts.list("search")] == [made.id]
    await accounts.retrieve(made.id, project_id="search")
    await accounts.delete(made.id, project_id="search")
    served.check(ProjectServiceAccount, ProjectServiceAccount, ProjectServiceAccount, ServiceAccountDeleteResponse)
    with pytest.raises(openai.NotFoundError) as error:
        await accounts.retrieve(made.id, project_id="search")
    assert error.value.code == "account_not_found"
    with pytest.raises(Exception, match="revoked"):
        served.watch.keyring().identify([made.api_key.value])


async def test_admin_keys_have_the_scope_admin(served: Served) -> None:
    keys = served.organization.admin_api_keys
    made = await keys.create(name="ops")
    served.check(AdminAPIKeyCreateResponse)
    assert served.watch.keyring().identify([made.value]).scopes == {"admin"}
    assert [one.id async for one in keys.list(order="desc")] == [made.id]
    assert (await keys.retrieve(made.id)).name == "ops"
    served.check(AdminAPIKey, AdminAPIKey)
    await keys.create(name="another")
    await keys.delete(made.id)
    served.check(AdminAPIKeyDeleteResponse)


async def test_the_last_admin_key_cannot_be_removed(served: Served) -> None:
    """Without it no key could be made over HTTP. Its account, team and scope cannot be removed either."""
    projects = served.organization.projects
    admins, keys, accounts = served.organization.admin_api_keys, projects.api_keys, projects.service_accounts
    first = await admins.create(name="ops")
    await projects.create(name="search")
    account = await accounts.create("search", name="nightly")
    last = await accounts.api_keys.create(account.id, project_id="search", scopes=["admin", "infer"])
    await admins.delete(first.id)
    assert account.api_key is not None
    await keys.delete(account.api_key.id, project_id="search")
    for refused in (
        admins.delete(last.id),
        keys.delete(last.id, project_id="search"),
        keys.update(last.id, project_id="search", scopes=["infer"]),
        accounts.delete(account.id, project_id="search"),
        projects.archive("search"),
    ):
        with pytest.raises(openai.ConflictError, match=f"Without the key {last.id} .* 'admin'. Make one") as error:
            await refused
        assert error.value.code == "last_admin_key"
    assert served.watch.keyring().identify([last.value]).scopes == {"admin", "infer"}
    await keys.update(last.id, project_id="search", scopes=["admin"])
    await admins.create(name="next")
    await projects.archive("search")


async def test_a_project_has_one_spend_limit(served: Served) -> None:
    await served.organization.projects.create(name="search")
    spend = served.organization.projects.spend_limit
    with pytest.raises(openai.NotFoundError) as missing:
        await spend.retrieve("search")
    assert missing.value.code == "limit_not_found"
    await spend.update("search", threshold_amount=25_000, currency="USD", interval="month")
    found = await spend.retrieve("search")
    assert (found.threshold_amount, found.enforcement.status) == (25_000, "enforcing")
    served.check(ProjectSpendLimit, ProjectSpendLimit)
    await spend.delete("search")
    served.check(ProjectSpendLimitDeleted)
    with pytest.raises(openai.BadRequestError) as error:
        await spend.update("search", threshold_amount=1, currency="EUR", interval="month")  # type: ignore[arg-type]
    assert error.value.param == "currency"


async def test_costs_are_grouped_by_project_and_line_item(served: Served) -> None:
    await served.organization.projects.create(name="search")
    entry = Entry("a", "a", 1, 5.0, "search", "key00001", "/v1/chat/completions", "chat", "r", "sql@sha256:1",
                  "interactive", "api")  # fmt: skip
    await served.ledger.begin(entry)
    served.ledger.end(Settlement(entry, "done", 200, None, 100, 0, 20, cost_micro=2_500_000))
    await served.ledger.flush()
    page = await served.organization.usage.costs(start_time=0, end_time=86_400, group_by=["project_id", "line_item"])
    assert faults(UsageCostsResponse, served.raw[-1]) == []
    (found,) = page.data[0].results
    assert found.object == "organization.costs.result"
    assert found.amount is not None
    assert (found.amount.value, found.amount.currency) == (2.5, "usd")
    assert (found.project_id, found.line_item, found.quantity) == ("search", "chat:sql@sha256:1", 120)
    with pytest.raises(openai.BadRequestError):
        await served.organization.usage.costs(start_time=0, group_by=["user_id"])


async def test_costs_include_a_request_that_has_just_ended(served: Served) -> None:
    entry = Entry("a", "a", 1, 5.0, "default", "", "/v1/chat/completions", "chat", "r", "", "interactive", "api")
    await served.organization.projects.create(name="search")
    served.ledger.note(entry)  # its row is gathered with others before it is committed
    served.ledger.end(Settlement(entry, "done", 200, None, 100, cost_micro=2_500_000), soon=True)
    page = await served.organization.usage.costs(start_time=0, end_time=86_400)
    assert [found.quantity for found in page.data[0].results] == [100]


async def test_projects_of_one_name_created_at_once_get_ids_of_their_own(served: Served) -> None:
    made = await asyncio.gather(*(served.organization.projects.create(name="search") for _ in range(8)))
    assert {one.id for one in made} == {"search", *(f"search-{n}" for n in range(2, 9))}


async def test_a_list_continues_after_an_entry_that_has_been_deleted(served: Served) -> None:
    """A client that deletes entries as it reads them would get the first page forever."""
    projects = served.organization.projects
    ids = [(await projects.create(name=f"team {n}")).id for n in range(4)]
    seen = []
    async for one in projects.list(limit=2):
        seen.append(one.id)
        if one.id != "default":
            await projects.archive(one.id)
    assert seen == ["default", *ids]
    accounts, keys = projects.service_accounts, projects.api_keys
    made = [await accounts.create("default", name=f"nightly {n}") for n in range(3)]
    seen = []
    async for key in keys.list("default", limit=1):
        seen.append(key.id)
        await keys.delete(key.id, project_id="default")
    assert seen == [one.api_key.id for one in made if one.api_key is not None]
    seen = []
    async for account in accounts.list("default", limit=1):
        seen.append(account.id)
        await accounts.delete(account.id, project_id="default")
    assert seen == [one.id for one in made]
    admin = served.organization.admin_api_keys
    admins = [(await admin.create(name=f"admin {n}")).id for n in range(3)]
    seen = []
    async for one in admin.list(limit=1):
        seen.append(one.id)
        if one.id != admins[-1]:
            await admin.delete(one.id)
    assert seen == admins
    with pytest.raises(openai.BadRequestError, match="first page") as error:
        await projects.list(after="nobody")
    assert error.value.param == "after"
