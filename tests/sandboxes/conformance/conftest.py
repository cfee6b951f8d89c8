"""Every check runs on every back-end; asynchronous ones in an event loop of their own."""

import asyncio
import inspect

import pytest

from tests.sandboxes.conformance.backends import Backend, find, names, required
from tests.sandboxes.conformance.weaknesses import WEAKNESSES

SLOW = ("gvisor", "remote", "subprocess-rlimits", "bubblewrap-image")  # minutes together; CI runs them too


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend" in metafunc.fixturenames:
        about_the_image = metafunc.definition.path.stem in ("test_exec", "test_isolation", "test_warm")
        here = [name for name in names() if about_the_image or name != "bubblewrap-image"]
        metafunc.parametrize("backend", here, indirect=True, scope="session")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec") and "backend" in item.callspec.params:
            name = item.callspec.params["backend"]
            if name in SLOW:
                item.add_marker(pytest.mark.slow)
            check = item.name.replace(f"[{name}]", "").replace(f"[{name}-", "[")
            reason = WEAKNESSES.get((name, check)) or WEAKNESSES.get((name, item.originalname))
            if reason is not None:
                item.add_marker(pytest.mark.xfail(strict=True, reason=reason))


@pytest.fixture(scope="session")
def backend(request: pytest.FixtureRequest) -> Backend:
    """The back-end under test. One that cannot run here is skipped with the reason, unless it is required."""
    found = find(request.param)
    if isinstance(found, str):
        (pytest.fail if request.param in required() else pytest.skip)(found)
    return found


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in wanted}))
    return True
