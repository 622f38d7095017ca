"""Posts to the native face."""

import httpx
import pytest


@pytest.fixture(scope="session")
def client(tiny_server):
    """An HTTP client of the shared tiny server."""
    with httpx.Client(base_url=tiny_server.url, timeout=30, verify=False) as client:
        yield client


@pytest.fixture
def generate(client):
    """generate(**fields) -> the reply of /v1/generate."""
    return lambda **fields: client.post("/v1/generate", json=fields)
