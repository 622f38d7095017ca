"""`crucible sweep`: prefill budgets and chunk caps of the service, each against the same round's control."""

from pathlib import Path
from typing import Annotated

import typer

from crucible.cli.ab import (
    Bursts,
    Device,
    Mode,
    Model,
    Quick,
    Rounds,
    Tokens,
    check_raw,
    device_of,
    have_model,
    raw_path,
    refuse_too_long,
    run,
)
from crucible.cli.outputs import Json, apart, spared, writable

EXAMPLE = """
Examples:

  crucible sweep --json sweep.json --plot sweep.svg

  crucible sweep --quick --model smollm2 --mode int8 --budget 128 --budget 32 --cap 16
"""


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @app.command(epilog=EXAMPLE)
    def sweep(
        model: Model = "smollm2",
        mode: Mode = "f32",
        device: Device = "auto",
        budget: Annotated[
            list[int] | None,
            typer.Option(min=1, help="Prefill budgets without a cap, the control first; 1024, 512, 256."),
        ] = None,
        cap: Annotated[
            list[int] | None,
            typer.Option(min=1, help="Chunk caps under the control's budget; 256, 128, 64."),
        ] = None,
        quick: Quick = False,
        tokens: Tokens = None,
        bursts: Bursts = None,
        rounds: Rounds = 3,
        plot: Annotated[
            Path | None, typer.Option(callback=writable, help="Picture to write, .svg or .png.")
        ] = None,
        json: Json = None,
    ) -> None:
        """Measure what policies trade: arrivals' TTFT, a running stream's gaps, throughput; never tokens.

        Exit code 0: every policy gave the same tokens; 1: one did not; 130: interrupted (complete rounds are
        printed and written).
        """
        from crucible.bench import ab_record, sweep
        from crucible.errors import InputError
        from crucible.evidence import record
        from crucible.report.service_sweep import text
        from crucible.service.started import arguments, own_build

        if plot is not None and plot.suffix not in (".svg", ".png"):
            raise InputError(f"--plot {plot.name} must end in .svg or .png")
        apart(json=json, plot=plot)
        check_raw(json)
        budgets = budget or (sweep.QUICK_BUDGETS if quick else sweep.BUDGETS)
        caps = cap or (sweep.QUICK_CAPS if quick else sweep.CAPS)
        chosen = sweep.workloads(quick, tokens or (8 if quick else 64), bursts or (3 if quick else 6))
        found = sweep.policies(budgets, caps)
        sides = sweep.sides(found, own_build(), arguments(model, mode, device))
        refuse_too_long(chosen, have_model(model))
        campaign = run(sides, chosen, rounds)
        typer.echo(text(campaign))
        if json is not None:
            json = spared(json, campaign.stopped)
            facts = {"model": model, "mode": mode, "set": "quick" if quick else "standard"}
            made = sweep.to_record(campaign, rounds, device_of(device), facts)
            typer.echo(f"record: {record.save(json, [made])}")
            typer.echo(f"raw samples: {ab_record.save_raw(raw_path(json), campaign)}")
        if plot is not None and campaign.runs:
            from crucible.report.plots.service import tradeoff
            from crucible.report.plots.style import save

            picture = tradeoff(sweep.trades(campaign), sweep.arrival(campaign))
            typer.echo(f"plot: {save(picture, spared(plot, campaign.stopped))}")
        raise typer.Exit(130 if campaign.stopped else int(bool(campaign.broken)))
