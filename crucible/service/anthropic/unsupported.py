"""What of Anthropic's API this service lacks: taken at the value that changes nothing, else refused."""

import json
from typing import Any

from crucible.files import brief
from crucible.service.body import Body
from crucible.service.failure import Refusal

# Field -> values that change nothing, the plainest first; null, and an object of nulls, always are.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "tools": ([],),
    "tool_choice": ({"type": "none"}, {"type": "auto"}),
    "thinking": ({"type": "disabled"},),
    "output_config": (),
    "output_format": (),
    "context_management": (),
    "mcp_servers": ([],),
    "speed": ("standard",),
    "container": (),
    "diagnostics": (),
    "inference_geo": (),
    "service_tier": ("auto", "standard_only"),
    "user_profile_id": (),
    "citations": ([],),
}
# Alike in all that is served here. The newer one has no temperature, top_p and top_k any more; they are
# this service's own fields there, as no answer could be repeated without them.
VERSIONS = ("2026-10-21", "2023-06-01")


def refuse_unsupported(body: Body, where: str = "") -> None:
    """Refusal 400 naming the first field of `body` whose value would have to change the reply."""
    given = vars(body)
    for name, neutral in _NEUTRAL.items():
        value = given.get(name)
        empty = isinstance(value, dict) and all(one is None for one in value.values())
        if value is None or empty or value in neutral:
            continue
        instead = f" or send {json.dumps(neutral[0])}" if neutral else ""
        message = f"{brief(value, 60)} is not supported here; leave it out{instead}"
        raise Refusal(400, message, f"{where}{name}", "unsupported_parameter")


def refuse_other_version(version: str | None) -> None:
    """Refusal 400 for a version of the API with other shapes; a request may do without one."""
    if version is not None and version not in VERSIONS:
        message = f"{version[:40]!r} is not served; send {' or '.join(VERSIONS)}"
        raise Refusal(400, message, "anthropic-version", "unsupported_version")
