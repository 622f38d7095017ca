"""The record of a build that was held to another one's answers."""

from collections.abc import Sequence

from crucible.evidence.environment import capture
from crucible.evidence.record import Record
from crucible.gates.http_oracle import Difference, Exchange, tokens

KIND = "http-oracle"


def to_record(
    facts: dict[str, object],
    found: list[Exchange],
    differing: list[Difference],
    device: str,
    about: dict[str, object],
    unlike: Sequence[str] = (),
    told: Sequence[str] = (),
) -> Record:
    """`facts` are the recording's, `found` the answers that came, `about` what answered them.

    `unlike` says what makes the two sides incomparable, `told` what else differs between them.
    """
    about = {
        name: value if isinstance(value, str | int | float) else str(value) for name, value in about.items()
    }
    said = {f"recorded: {name}": str(value) for name, value in facts.items()}
    said |= {f"differs: {d.name}": str(d) for d in differing[:20]}
    said |= {f"unlike {number}": what for number, what in enumerate((*unlike, *told))}
    return Record(
        kind=KIND,
        claim="one build answers over HTTP as another did, token for token",
        compared="status, tokens, texts, log-probabilities, digests and random states of every face",
        verdict="fail" if differing or unlike else "pass",
        elements=len(found),
        finite=len(found),
        nonzero=sum(tokens(exchange) > 0 for exchange in found),
        differing=len(differing),
        facts={**about, "tokens": sum(map(tokens, found)), **said},
        not_claimed=("answers to other requests",),
        environment=capture("cpu" if device == "auto" else device),
    )
