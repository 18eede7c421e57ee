"""Backends by entry point, and observers. Distributions are faked: a dist-info folder and a module on sys.path."""

import logging
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.observing import Listener, hearing
from twopc import Coordinator, create_sink, hookimpl, open_store, register_observer, unregister_observer
from twopc.errors import ConfigurationError
from twopc.events import BatchFinished, Event
from twopc.plugins import sink_class
from twopc.testing import MemorySink, MemoryTarget

Install = Callable[..., str]

GOOD = """
from twopc import hookimpl
from twopc.testing import MemorySink

class Sink(MemorySink):
    def __init__(self, options):
        self.options = options

@hookimpl
def twopc_sink():
    return Sink
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Make a distribution with one entry point, of a backend unless told, and return the name of its module."""
    modules: list[str] = []

    def make(
        distribution: str, backend: str, source: str = GOOD, module: str | None = None, group: str = "twopc"
    ) -> str:
        site = tmp_path / distribution
        info = site / f"{distribution.replace('-', '_')}-1.2.dist-info"
        info.mkdir(parents=True)
        name = module or f"backend_{uuid.uuid4().hex}"
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(f"[{group}]\n{backend} = {name}\n")
        if module is None:
            (site / f"{name}.py").write_text(source)
        monkeypatch.syspath_prepend(str(site))
        modules.append(name)
        return name

    yield make
    for name in modules:
        sys.modules.pop(name, None)


def test_a_backend_is_made_by_its_name_with_the_users_options(install: Install) -> None:
    install("twopc-tea", "tea")
    sink: Any = create_sink("tea", {"strength": "3"})
    assert type(sink).__name__ == "Sink"
    assert sink.options == {"strength": "3"}


def test_only_the_backend_asked_for_is_imported(install: Install) -> None:
    tea, coffee = install("twopc-tea", "tea"), install("twopc-coffee", "coffee", "raise ImportError('never')")
    sink_class("tea")
    assert tea in sys.modules
    assert coffee not in sys.modules


@pytest.mark.parametrize(
    ("asked", "refusal", "unsaid"),
    [
        ("cocoa", r"no backend is named 'cocoa'. Installed: .*coffee.*tea.*twopc-cocoa", None),
        ("twopc-coffee", r"Did you mean 'coffee'\?", "is its distribution"),
        *((written, rf"no backend is named '{written}'\. Did you mean 'tea'\?", None)
          for written in ("twopc-tea", "twopc_tea", "twopc-te")),
        ("twopc-cocoa", r"Is its distribution, such as twopc-cocoa, installed here\? See ", None),
        ("cofee", r"no backend is named 'cofee'\. Did you mean 'coffee'\?", "twopc-cofee"),
    ],
)  # fmt: skip
def test_an_unknown_backend_gets_the_nearest_one_or_how_to_get_it(
    install: Install, asked: str, refusal: str, unsaid: str | None
) -> None:
    install("twopc-tea", "tea")
    install("twopc-coffee", "coffee")
    with pytest.raises(ConfigurationError, match=refusal) as refused:
        create_sink(asked, {})
    assert unsaid is None or unsaid not in str(refused.value).lower()


@pytest.mark.parametrize("form", ["{0}", "{0}:twopc_sink", "./{0}", "../{0}.py", "/{0}.py", "{0}\0", "tea/../{0}"])
def test_a_name_is_looked_up_and_never_imported_or_opened(install: Install, form: str) -> None:
    install("twopc-tea", "tea")
    module = install("elsewhere", "unregistered")
    backend = form.format(module)
    with pytest.raises(ConfigurationError, match="no backend is named") as refused:
        create_sink(backend, {})
    assert module not in sys.modules
    assert repr(backend) in str(refused.value)


@pytest.mark.parametrize(
    ("source", "group", "ask", "refusal"),
    [
        (GOOD, "twopc", lambda: create_sink("tea", {}), "two backends are named 'tea'"),
        ("", "twopc.log_stores", lambda: open_store("tea://pot/log"), "two log stores are named 'tea'"),
    ],
)
def test_two_plugins_of_one_name_are_refused_naming_both(
    install: Install, source: str, group: str, ask: Callable[[], object], refusal: str
) -> None:
    for distribution in ("twopc-tea", "other-tea"):
        install(distribution, "tea", source, group=group)
    with pytest.raises(ConfigurationError, match=rf"{refusal}: other-tea 1\.2.* and twopc-tea 1\.2"):
        ask()


def test_one_module_found_twice_is_one_backend(install: Install) -> None:
    module = install("twopc-tea", "tea")
    install("twopc-tea-editable", "tea", module=module)
    assert issubclass(sink_class("tea"), MemorySink)


RETURNING = "from twopc import hookimpl\n@hookimpl\ndef {0}():\n    return {1}\n"


@pytest.mark.parametrize(
    ("source", "refusal"),
    [
        *((source, r"can't be loaded") for source in ("import a_module_that_is_not_there", "1 / 0", "def (")),
        *((RETURNING.format("twopc_sink", returned), "no TwoPhaseCommitSink class")
          for returned in ("None", "42", "int", "object()")),
        ("", r"gives None.*needs a hook implementation twopc_sink"),
    ],
)  # fmt: skip
def test_a_backend_that_gives_no_sink_class_is_named_with_its_distribution(
    install: Install, source: str, refusal: str
) -> None:
    install("twopc-tea", "tea", source)
    with pytest.raises(ConfigurationError, match=rf"'tea' \(twopc-tea 1\.2: .*{refusal}"):
        create_sink("tea", {})


# Log stores. ------------------------------------------------------------------------------------------------------

LOG_STORE = """
from twopc import ConfigurationError, hookimpl
from tests.support.memory_log import MemoryLog

class Store(MemoryLog):
    def __init__(self, url, **options):
        super().__init__()
        self.url, self.options = url, options
        if "wrong" in options:
            raise ConfigurationError("no such option: wrong")

@hookimpl
def twopc_log_store():
    return Store
"""


def test_a_log_store_is_made_for_its_scheme_with_the_users_options(install: Install) -> None:
    install("tea-log", "tea", LOG_STORE, group="twopc.log_stores")
    store: Any = open_store("tea://pot/log", strength=3)
    assert (store.url, store.options) == ("tea://pot/log", {"strength": 3})
    with pytest.raises(ConfigurationError, match="no such option: wrong"):
        open_store("tea://pot/log", wrong=1)


def test_a_coordinator_takes_the_url_of_a_plugins_store(install: Install) -> None:
    install("tea-log", "tea", LOG_STORE, group="twopc.log_stores")
    coordinator = Coordinator({"a": MemorySink(MemoryTarget())}, "tea://pot/log", owner="query")
    assert coordinator.run(0, lambda _: []).batch_id == 0


def test_a_password_is_refused_before_a_plugin_sees_it(install: Install) -> None:
    install("tea-log", "tea", LOG_STORE, group="twopc.log_stores")
    with pytest.raises(ConfigurationError, match="holds a password") as refused:
        open_store("tea://user:hunter2@pot/log")
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "refusal"),
    [
        ("cocoa://pot/log", r"can't be kept at cocoa://.*installed here: .*tea://"),
        ("coffee://pot/log", r"can't be kept at coffee://.*installed here: .*tea://"),
        ("te://pot/log", "Did you mean 'tea'"),
    ],
)
def test_an_unknown_scheme_gets_the_nearest_one_or_the_log_stores_that_are_installed(
    install: Install, url: str, refusal: str
) -> None:
    install("tea-log", "tea", LOG_STORE, group="twopc.log_stores")
    install("twopc-coffee", "coffee")
    with pytest.raises(ConfigurationError, match=refusal):
        open_store(url)
    with pytest.raises(ConfigurationError, match="no backend is named 'tea'"):
        create_sink("tea", {})


@pytest.mark.parametrize(
    ("source", "refusal"),
    [
        *((RETURNING.format("twopc_log_store", returned), "")
          for returned in ("lambda url: None", "lambda url: int(url)",
                           "lambda url, **options: type('Store', (), {'url': url})()")),
        *((source, ".*(can't be loaded|gives None)") for source in ("import a_module_that_is_not_there", "1 / 0", "")),
    ],
)  # fmt: skip
def test_a_log_store_that_takes_no_such_url_or_options_lacks_methods_or_can_not_be_loaded_is_refused(
    source: str, refusal: str, install: Install
) -> None:
    install("tea-log", "tea", source, group="twopc.log_stores")
    for options in ({}, {"strength": "hunter2"}):
        with pytest.raises(ConfigurationError, match=rf"store for tea:// \(tea-log 1\.2: {refusal}") as refused:
            open_store("tea://pot/log", **options)
        assert "hunter2" not in str(refused.value)


# Observers. -------------------------------------------------------------------------------------------------------


class Failing:
    @hookimpl
    def twopc_event(self, event: Event) -> None:
        raise RuntimeError(f"no room for {type(event).__name__}")


@pytest.fixture
def observe() -> Iterator[Callable[[object], None]]:
    registered: list[object] = []

    def register(observer: object) -> None:
        register_observer(observer)
        registered.append(observer)

    yield register
    for observer in registered:
        unregister_observer(observer)


def test_an_observer_that_raises_does_not_disturb_a_batch(
    observe: Callable[[object], None], caplog: pytest.LogCaptureFixture
) -> None:
    observe(Failing())
    coordinator = Coordinator({"a": MemorySink(MemoryTarget())}, f"memory://{uuid.uuid4().hex}", owner="query")
    with caplog.at_level(logging.ERROR):
        assert coordinator.run(0, lambda _: []).batch_id == 0
    assert "no room for BatchFinished" in caplog.text


@pytest.mark.parametrize("failing_is_first", [True, False])
def test_an_observer_that_raises_keeps_nothing_from_the_others(
    observe: Callable[[object], None], failing_is_first: bool
) -> None:
    events: list[Event] = []
    listener = Listener(events.append)
    for observer in (Failing(), listener) if failing_is_first else (listener, Failing()):
        observe(observer)
    Coordinator({"a": MemorySink(MemoryTarget())}, f"memory://{uuid.uuid4().hex}", owner="query").run(0, lambda _: [])
    assert isinstance(events[-1], BatchFinished)


def test_an_observer_that_is_unregistered_hears_nothing_more() -> None:
    events: list[Event] = []
    with hearing(events.append):
        pass
    Coordinator({"a": MemorySink(MemoryTarget())}, f"memory://{uuid.uuid4().hex}", owner="query").run(0, lambda _: [])
    assert events == []
