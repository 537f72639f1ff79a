"""Fixtures of the end-to-end tests: one server that most tests share."""

import os

import openai
import pytest

from server import BINARY, MODEL, Server


def pytest_sessionstart(session):
    if not BINARY.exists():
        pytest.exit(f"{BINARY} is not there: run ./dev build first", returncode=2)
    if not (MODEL / "config.json").exists():
        print(f"\nALL END-TO-END TESTS ARE SKIPPED: no model in {MODEL}\n")


def pytest_collection_modifyitems(items):
    if (MODEL / "config.json").exists():
        return
    for item in items:
        item.add_marker(pytest.mark.skip(reason=f"no model in {MODEL}"))


@pytest.fixture(scope="session")
def server():
    with Server("--served-model-name", "expertplex-mini") as running:
        yield running
        assert running.process.poll() is None, f"the server died:\n{running.output}"
        assert running.stop() == 0, running.output


@pytest.fixture(autouse=True)
def nothing_left_behind(request):
    """After every test on the shared server, nothing is held."""
    yield
    if "server" in request.fixturenames:
        request.getfixturevalue("server").assert_drained()


@pytest.fixture(scope="session")
def client(server):
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", timeout=60,
                       max_retries=0) as made:
        yield made


@pytest.fixture(scope="session")
def model():
    return "expertplex-mini"


@pytest.fixture(scope="session")
def core_count():
    return len(os.sched_getaffinity(0))
