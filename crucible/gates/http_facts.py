"""What is known of a service that answers: its own word, and its build where it was started here."""

from pathlib import Path

from crucible.errors import UnavailableError
from crucible.gates import service_traffic as traffic
from crucible.service.load.plan import first_model
from crucible.service.load.target import Target

UNKNOWN = "unknown build"
# Where both sides name one of these, it must be the same: other models and contracts owe other bits.
HELD = ("model", "context", "mode", "contract_version")
# Equal ones promise equal tokens; others promise nothing, which is worth a line.
TOLD = ("fingerprint",)
_MODEL = {"model": "id", "context": "context", "fingerprint": "system_fingerprint"}


async def served(to: Target) -> dict[str, object]:
    """Model, context, fingerprint and limits as the service itself says them, what it says of these.

    UnavailableError where it names no model.
    """
    status, card = await first_model(to)
    if not card:
        raise UnavailableError(f"{to.url} names no model at /v1/models (status {status})")
    said = {fact: card[name] for fact, name in _MODEL.items() if isinstance(card.get(name), (str, int))}
    said["model"] = str(card["id"])
    stats = await traffic.stats(to)
    limits = stats.get("limits") if isinstance(stats, dict) else None
    if isinstance(limits, dict):
        said |= {f"limit {name}": "none" if value is None else value for name, value in limits.items()}
    return said


def started(model: str, mode: str, device: str, build: Path | None) -> dict[str, object]:
    """Facts of a service that was started here: what it was told, and the build that ran it."""
    from crucible.service.started import build_at

    return {"started with": model, "mode": mode, "device": device, **build_at(build).identity()}


def unlike(recorded: dict[str, object], answering: dict[str, object], names: tuple[str, ...]) -> list[str]:
    """A sentence for each of `names` that both sides know and that differs."""
    both = [name for name in names if name in recorded and name in answering]
    return [
        f"{name.replace('_', ' ')}: {recorded[name]} was recorded, {answering[name]} answers"
        for name in both
        if recorded[name] != answering[name]
    ]
