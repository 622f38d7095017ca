"""A policy sweep as a table of trade-offs and a sentence."""

from crucible.bench.ab_runs import Campaign
from crucible.bench.sweep import TRADED, Trade, reason, trades
from crucible.report.service_ab import envelopes, unmeasured
from crucible.report.tables import Table, table
from crucible.service.load.samples import FORMULAS


def tradeoffs(campaign: Campaign) -> Table:
    """A line a policy; in brackets the change against the same round's control, per cent."""
    found = trades(campaign)
    keys = [key for w in campaign.workloads for metric in TRADED if (key := (w.name, metric)) in found[0].own]
    heads = ("policy", *(f"{workload} {metric}" for workload, metric in keys))
    lines = [(trade.policy, *(_cell(trade, key) for key in keys)) for trade in found]
    caption = (
        "Median of the rounds (change against the same round's control, %; * resolved). Times at the client "
        "over HTTP: ms, throughput tok/s."
    )
    return table(heads, lines, caption)


def _cell(trade: Trade, key: tuple[str, str]) -> str:
    row, own = trade.rows.get(key), trade.own.get(key)
    if own is None:
        return "-"  # some burst of this policy left nothing to measure
    own = f"{own.median:.4g}"
    return own if row is None else f"{own} ({row.interval.estimate:+.1f}{'*' * row.resolved})"


def text(campaign: Campaign) -> str:
    """All that a person reads."""
    parts = [campaign.broken] if campaign.broken else []
    parts.append(f"{campaign.oracle.compared:,} tokens compared with the first run's, every round")
    if campaign.runs:
        parts += [tradeoffs(campaign).markdown(), reason(campaign, trades(campaign))]
        parts += [*unmeasured(campaign), envelopes(campaign).markdown()]
    parts.append("\n".join(f"{name}: {what}" for name, what in FORMULAS.items()))
    return "\n\n".join(parts)
