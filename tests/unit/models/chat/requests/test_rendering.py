"""Adapters' templates are rendered in threads that always end."""

import asyncio
import threading
import time
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from models.chat.requests import rendering
from models.chat.requests.rendering import TemplateThreads
from models.chat.vllm import handlers
from registry.errors import BadRequest

ENDLESS = 3 * "{% for i in range(99999) %}" + 3 * "{% endfor %}"


def render(template: str, threads: list[threading.Thread] | None = None) -> str:
    """Render the template; first add this thread to `threads`."""
    if threads is not None:
        threads.append(threading.current_thread())
    return ImmutableSandboxedEnvironment().from_string(template).render()


async def test_prompts_and_errors_are_returned() -> None:
    threads = TemplateThreads()
    assert await threads.render("a", lambda: render("{{ 1 + 1 }}")) == "2"
    with pytest.raises(ZeroDivisionError):
        await threads.render("a", lambda: render("{{ 1 / 0 }}"))


async def test_a_prompt_does_not_wait_for_the_end_of_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = list[threading.Thread]()
    monkeypatch.setattr(rendering, "_end", ended.append)
    assert await TemplateThreads().render("a", lambda: render("fine")) == "fine"
    assert not ended


async def test_a_template_that_loops_is_stopped_and_its_thread_ends() -> None:
    threads, used = TemplateThreads(0.05), list[threading.Thread]()
    with pytest.raises(BadRequest, match="chat template of this adapter computed for more than") as refused:
        await threads.render("a", lambda: render(ENDLESS, used))
    assert refused.value.code == "template_too_slow"
    assert [thread.is_alive() for thread in used] == [False]
    assert await threads.render("b", lambda: render("fine")) == "fine"
    again = list[str]()
    with pytest.raises(BadRequest, match="refused for a minute"):
        await threads.render("a", lambda: again.append("rendered"))
    assert not again


async def test_a_client_that_disconnects_stops_its_template() -> None:
    threads, used = TemplateThreads(), list[threading.Thread]()
    task = asyncio.create_task(threads.render("a", lambda: render(ENDLESS, used)))
    while not used:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not used[0].is_alive()


async def test_templates_take_turns_and_one_runs_at_a_time() -> None:
    threads, order, running = TemplateThreads(), list[str](), list[str]()

    def work(name: str) -> None:
        running.append(name)
        assert len(running) == 1
        order.append(name)
        time.sleep(0)
        running.remove(name)

    calls = [threads.render(name, lambda name=name: work(name)) for name in ("a", "a", "a", "b")]  # type: ignore[misc]
    await asyncio.gather(*calls)
    assert order == ["a", "a", "b", "a"]


async def test_prompts_with_an_adapters_template_do_not_use_the_shared_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used = list[str]()

    async def stock(*_: object, **__: object) -> None:
        used.append("stock")

    def apply(*_: object, chat_template: str) -> None:
        used.append(threading.current_thread().name)

    hugging_face = SimpleNamespace(_apply_chat_template_async=stock)
    library = SimpleNamespace(
        safe_apply_chat_template=apply,
        _compile_jinja_template=None,
        _cached_compile_jinja_template=SimpleNamespace(__wrapped__=None),
    )
    monkeypatch.setattr(handlers, "import_module", lambda _: library)
    handlers.patch_templates(SimpleNamespace(preprocess_chat=None, renderer=hugging_face))
    await hugging_face._apply_chat_template_async("config", chat_template="the base's")
    token = handlers.TEMPLATE.set("its own")
    await hugging_face._apply_chat_template_async("config", chat_template="its own")
    handlers.TEMPLATE.reset(token)
    assert used == ["stock", "template"]


async def test_a_template_that_only_waits_for_the_processor_is_not_stopped() -> None:
    threads = TemplateThreads(0.05)
    assert await threads.render("a", lambda: time.sleep(0.12) or "late") == "late"
    assert await threads.render("a", lambda: "again") == "again"


async def test_only_templates_of_adapters_are_compiled_for_the_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    library: Any = import_module("transformers.utils.chat_template_utils")

    monkeypatch.setattr(library, "_compile_jinja_template", library._compile_jinja_template)
    handlers._bound_templates()
    handlers._bound_templates()
    source = "{% generation %}{{ 'x' * 20000 }}{% endgeneration %}{{ 'y' | center(20000) | length }}"
    assert len(library._compile_jinja_template(source).render()) == 20005
    token = handlers.TEMPLATE.set("its own")
    own = library._compile_jinja_template(source)
    assert own is library._compile_jinja_template(source)
    fine = library._compile_jinja_template("{% generation %}{{ [1] | tojson }}{% endgeneration %}").render()
    handlers.TEMPLATE.reset(token)
    assert fine == "[1]"
    with pytest.raises(SecurityError, match="width or number of up to"):
        own.render()
    assert len(library._compile_jinja_template(source).render()) == 20005
