"""Policy sweep: prefill budgets and chunk caps, each against the same round's control."""

from collections.abc import Sequence
from dataclasses import dataclass

from crucible.bench import ab_workloads
from crucible.bench.ab_record import NOT_CLAIMED, asked, machine_facts, series
from crucible.bench.ab_runs import Campaign
from crucible.bench.ab_statistics import Row, rows
from crucible.bench.ab_verdict import marked
from crucible.bench.ab_workloads import Workload
from crucible.engine.scheduler import Limits
from crucible.errors import InputError
from crucible.evidence.environment import capture
from crucible.evidence.record import Record
from crucible.evidence.statistics import Bracket, bracket
from crucible.numerics.checks import whole
from crucible.service.load.samples import FORMULAS
from crucible.service.started import Build, Side

BUDGETS, CAPS = (1024, 512, 256), (256, 128, 64)
QUICK_BUDGETS, QUICK_CAPS = (128, 32), (16,)
# What a policy trades: how soon a newcomer's first token comes, how long a running stream stands still for
# it, and how much a burst gets through.
TRADED = ("TTFT p50", "stream gap p50", "stream gap p95", "stream gap worst", "throughput")


@dataclass(frozen=True)
class Policy:
    """Prompt rows of a step over all requests, and of one request (None: no cap)."""

    budget: int
    cap: int | None = None

    def __str__(self) -> str:
        return f"budget {self.budget}, " + (f"cap {self.cap}" if self.cap else "no cap")

    @property
    def arguments(self) -> tuple[str, ...]:
        """Of `crucible serve`."""
        cap = () if self.cap is None else ("--chunk-cap", str(self.cap))
        return ("--prefill-budget", str(self.budget), *cap)


def policies(budgets: Sequence[int] = BUDGETS, caps: Sequence[int] = CAPS) -> list[Policy]:
    """The control (the first budget, no cap), the other budgets, then the control's budget with caps.

    InputError for a policy that is named twice, and for a cap that the control's budget makes idle.
    """
    if not budgets or len(budgets) + len(caps) < 2:
        raise InputError("a sweep needs a control and one more policy; give two budgets, or one and a cap")
    budgets = [whole("budget", b, 1) for b in budgets]
    for cap in caps:
        if whole("cap", cap, 1) >= budgets[0]:
            raise InputError(
                f"cap {cap} caps nothing under the control's budget of {budgets[0]}; give caps below it"
            )
    made = [*map(Policy, budgets), *(Policy(budgets[0], cap) for cap in caps)]
    if twice := [policy for at, policy in enumerate(made) if policy in made[:at]]:
        raise InputError(f"{twice[0]} is named twice; leave one out")
    return made


def sides(found: Sequence[Policy], build: Build, arguments: Sequence[str]) -> list[Side]:
    """A side a policy, alike in all else."""
    return [Side(str(policy), build, (*arguments, *policy.arguments)) for policy in found]


def workloads(quick: bool, tokens: int, bursts: int, stream: int | None = None) -> list[Workload]:
    """Arrivals of several lengths in a running stream, and a burst of long prompts; `stream` as in quick."""
    if quick:
        known = [w for w in ab_workloads.quick(tokens, bursts, stream) if w.stream]
        return ab_workloads.choose(known, [*(w.name for w in known), "4x48"])
    return ab_workloads.choose(ab_workloads.standard(tokens, bursts), ["arrival-mixed", "8x512"])


@dataclass(frozen=True)
class Trade:
    """A policy beside the control: {(workload, metric): Row}, and its own medians of the rounds."""

    policy: str
    rows: dict[tuple[str, str], Row]
    own: dict[tuple[str, str], Bracket]


def trades(campaign: Campaign) -> list[Trade]:
    """All policies, the control first (its rows compare it with itself and are empty)."""
    control = campaign.of(campaign.sides[0].name)
    made = []
    for side in campaign.sides:
        compared = rows(control, campaign.of(side.name))
        keyed = {(r.workload, r.metric.name): r for r in compared if r.metric.name in TRADED}
        own = {key: bracket(row.candidate) for key, row in keyed.items()}
        made.append(Trade(side.name, {} if side is campaign.sides[0] else keyed, own))
    return made


def labelled(policy: str) -> str:
    """The policy's name, marked if it is the engine's default."""
    limits = Limits()
    return f"{policy} (default)" if policy == str(Policy(limits.prefill_budget, limits.chunk_cap)) else policy


def arrival(campaign: Campaign) -> str:
    """The workload whose arrivals are traded against gaps."""
    return next(w.name for w in campaign.workloads if w.stream)


def reason(campaign: Campaign, found: Sequence[Trade]) -> str:
    """What the control gives and which policy gives more of what, in a sentence of figures."""
    name = arrival(campaign)
    first, worst = (name, "TTFT p50"), (name, "stream gap worst")
    control, found = found[0], [trade for trade in found if first in trade.own and worst in trade.own]
    if control not in found:
        return "some burst left no gap to measure, so nothing can be said of the policies"
    calm = min(found, key=lambda t: t.own[worst].median)
    quick = min(found, key=lambda t: t.own[first].median)
    text = (
        f"{labelled(control.policy)}: arrivals wait {control.own[first].median:.4g} ms (TTFT p50) and the "
        f"stream stands still {control.own[worst].median:.4g} ms at worst"
    )
    if calm is not control:
        text += (
            f"; {calm.policy} has the shortest worst gap, {calm.own[worst].median:.4g} ms, and changes the "
            f"arrivals' TTFT by {calm.rows[first].interval.estimate:+.1f} %"
        )
    if quick is not control:
        row = quick.rows[first]
        text += (
            f"; {quick.policy} has the shortest TTFT, {quick.own[first].median:.4g} ms, in pairs "
            f"{row.interval.estimate:+.1f} %{'' if row.resolved else ', not resolved'}"
        )
    return text


def to_record(campaign: Campaign, rounds: int, device: str, facts: dict | None = None) -> Record:
    """Kind `policy-sweep`: a pass when every policy gave the same tokens; what it costs is measured."""
    found = trades(campaign) if campaign.runs else []
    changed, compared = bool(campaign.broken), campaign.oracle.compared
    own: dict[str, object] = {"rounds": len(campaign.runs) // len(campaign.sides)} | dict(facts or {})
    own |= asked(campaign)
    own |= {f"policy {i}": side.name for i, side in enumerate(campaign.sides)}
    if found:
        own["reason"] = reason(campaign, found)
    if campaign.broken:
        own["broken"] = campaign.broken
    for trade in found:
        for (workload, metric), row in trade.rows.items():
            name = f"{trade.policy}, {workload}, {metric}"
            own[f"{name}, change %"] = round(row.interval.estimate, 3)
            own[f"{name}, interval %"] = f"[{row.interval.low:.3f}, {row.interval.high:.3f}]"
    own |= machine_facts(campaign) | {f"formula of {name}": what for name, what in FORMULAS.items()}
    whole_run = not campaign.stopped and not marked(campaign) and own["rounds"] == rounds
    return Record(
        kind="policy-sweep",
        claim="tokens do not depend on budget and cap, and what each policy trades is measured",
        compared=f"{len(campaign.sides) - 1} policies with {campaign.sides[0].name} in the same round",
        verdict="fail" if changed else "pass" if whole_run else "measured",
        elements=compared + changed,
        finite=compared + changed,
        nonzero=compared + changed,
        differing=int(changed),
        facts=own,
        samples=series(campaign),
        not_claimed=NOT_CLAIMED,
        environment=capture(device),
    )
