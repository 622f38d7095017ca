"""`crucible ab`: two services under the same requests; a candidate is accepted or refused."""

import difflib
import math
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from crucible.cli.outputs import Json, spared

EXAMPLE = """
Examples:

  crucible ab --baseline reference --candidate auto --json ab.json

  crucible ab --candidate auto --quick --model smollm2 --mode int8

  crucible ab --baseline-env ../crucible-before --workload 4x512 --workload arrival
"""
_ENV = "Another build for this side: a virtual environment, its python, or a checkout."
Baseline = Annotated[str, typer.Option(help="Attention of the baseline.")]
Model = Annotated[str, typer.Option(help="A known name, a .gguf file or a folder.")]
Mode = Annotated[str, typer.Option(help="f32 or int8.")]
Device = Annotated[str, typer.Option(help="cpu, simt, cuda or auto.")]
Names = Annotated[
    list[str] | None, typer.Option("--workload", help="Of the set, by name or its beginning; or NxL.")
]
Quick = Annotated[bool, typer.Option("--quick", help="The small set, for a machine of few cores.")]
Tokens = Annotated[int | None, typer.Option(min=1, help="Tokens of each request; 64, quick 8.")]
Bursts = Annotated[int | None, typer.Option(min=1, help="Timed bursts a workload; 6, quick 3.")]
Warmups = Annotated[int | None, typer.Option(min=1, help="Untimed bursts before those; 4, quick 1.")]
Rounds = Annotated[int, typer.Option(min=1, help="Rounds: A B, B A, A B; a fresh process each.")]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @app.command(epilog=EXAMPLE)
    def ab(
        baseline: Baseline = "reference",
        candidate: Annotated[
            str, typer.Option(help="Attention of the candidate: an exact variant, auto, or file.cu:entry.")
        ] = "auto",
        baseline_env: Annotated[Path | None, typer.Option(help=_ENV)] = None,
        candidate_env: Annotated[Path | None, typer.Option(help=_ENV)] = None,
        model: Model = "smollm2",
        mode: Mode = "f32",
        device: Device = "auto",
        workload: Names = None,
        quick: Quick = False,
        tokens: Tokens = None,
        bursts: Bursts = None,
        warmups: Warmups = None,
        rounds: Rounds = 3,
        demand: Annotated[
            list[str] | None,
            typer.Option(help="WORKLOAD:METRIC:PERCENT that every pair must gain, as 4x512:TTFT:35."),
        ] = None,
        tolerance: Annotated[
            float, typer.Option(min=0, help="Per cent that a metric may be worse by.")
        ] = 2.0,
        json: Json = None,
    ) -> None:
        """Compare two attentions, or two builds, by what clients of the service see; outputs must be equal.

        Raw samples are written beside --json. Exit code 0: accepted; 1: refused, with the reason; 130:
        interrupted (complete rounds are printed and written).
        """
        from crucible.bench import ab_record
        from crucible.bench.ab_statistics import rows
        from crucible.bench.ab_verdict import Demand, verdict
        from crucible.errors import InputError
        from crucible.evidence import record
        from crucible.report.service_ab import text
        from crucible.service.started import Side, arguments, build_at

        if not math.isfinite(tolerance):
            raise InputError(f"tolerance {tolerance} is no number of per cent; give one such as 2")
        check_raw(json)
        demands = [Demand.parse(one) for one in demand or ()]
        chosen = choose(quick, workload, tokens, bursts, warmups)
        refuse_unrun(demands, chosen)
        names = [short(baseline), short(candidate)]
        if names[0] == names[1]:
            names = [f"{names[0]}, baseline", f"{names[1]}, candidate"]
        sides = [
            Side(name, build_at(env), arguments(model, mode, device, ("--attention", whole_path(attention))))
            for name, env, attention in zip(
                names, (baseline_env, candidate_env), (baseline, candidate), strict=True
            )
        ]
        refuse_too_long(chosen, have_model(model))
        campaign = run(sides, chosen, rounds)
        found = rows(campaign.of(names[0]), campaign.of(names[1])) if campaign.runs else []
        said = verdict(campaign, found, rounds, demands, tolerance)
        typer.echo(text(campaign, found, said, tolerance))
        if json is not None:
            json = spared(json, campaign.stopped)
            facts = {"model": model, "mode": mode, "set": "quick" if quick else "standard"}
            made = ab_record.to_record(campaign, found, rounds, device_of(device), demands, tolerance, facts)
            typer.echo(f"record: {record.save(json, [made])}")
            typer.echo(f"raw samples: {ab_record.save_raw(raw_path(json), campaign)}")
        raise typer.Exit(130 if campaign.stopped else int(not said.accepted))


def choose(
    quick: bool,
    names: list[str] | None,
    tokens: int | None,
    bursts: int | None,
    warmups: int | None = None,
) -> list:
    """The workloads asked for."""
    from crucible.bench import ab_workloads

    made = ab_workloads.quick if quick else ab_workloads.standard
    given = {"tokens": tokens, "bursts": bursts, "warmups": warmups}
    return ab_workloads.choose(made(**{k: v for k, v in given.items() if v is not None}), names or ())


def refuse_unrun(demands: list, workloads: list) -> None:
    """InputError for a demand of a workload that is not among those asked for."""
    from crucible.errors import InputError

    names = [workload.name for workload in workloads]
    for demand in demands:
        if demand.workload not in names:
            raise InputError(
                f"workload {demand.workload!r} of a demand is not run; "
                f"demand of {', '.join(names)}, or ask for it with --workload"
            )


def run(sides: list, workloads: list, rounds: int) -> Any:
    """The campaign of all rounds, with a progress bar of bursts on stderr; SIGTERM ends it as Ctrl-C does."""
    from tqdm import tqdm

    from crucible.bench.ab_runs import Campaign
    from crucible.cli.signals import term_is_interrupt

    total = len(sides) * rounds * sum(w.all_bursts for w in workloads)
    bars = tqdm(total=total, unit="burst", leave=False, disable=None, file=sys.stderr)
    with term_is_interrupt(), bars as bar:
        return Campaign(sides, workloads).run(rounds, bar.set_description, bar.update)


def have_model(name: str) -> int:
    """Fetch a known model that is not here; its context. InputError for one that no service could open."""
    from crucible.cli.fetch import fetch_if_known
    from crucible.model.model import open_checkpoint

    fetch_if_known(name)
    return open_checkpoint(name).config.context


def refuse_too_long(workloads: list, context: int) -> None:
    """InputError for a workload that the model has no room for, prompts and generated tokens together."""
    from crucible.errors import InputError

    for workload in workloads:
        if max(workload.lengths) > context:
            raise InputError(
                f"workload {workload.name} has a prompt of {max(workload.lengths)} tokens and the model's "
                f"context is {context}; choose shorter ones with --workload or --quick"
            )
        if workload.positions > context:
            raise InputError(
                f"workload {workload.name} reaches {workload.positions} positions with what it generates "
                f"and the model's context is {context}; give fewer --tokens, or shorter prompts by --workload"
            )


def short(attention: str) -> str:
    """A variant's name, or that of a user's file."""
    from crucible.attention import user

    return f"{Path(attention).name} (user's)" if user.is_file(attention) else attention


def whole_path(attention: str) -> str:
    """A variant's name as it is; a file's path made absolute, since services run in other folders.

    InputError for an unknown name, one that is not exact, a file that is not there, or a Python function.
    """
    from crucible.attention import user, variants
    from crucible.cli.serve import exact_variant
    from crucible.errors import InputError
    from crucible.files import brief

    if attention.partition(":")[0].endswith(".py"):
        raise InputError(
            f"{attention} cannot run in the engine, which records and replays its passes; "
            "give a .cu file, or hold it to the reference with crucible diagnose"
        )
    if user.is_file(attention):
        return exact_variant(attention)
    served = [variants.AUTO, *(name for name, v in variants.VARIANTS.items() if v.exact)]
    if attention not in served:
        why = "does not keep the contract's bits" if attention in variants.names() else "is unknown"
        near = difflib.get_close_matches(attention, served, n=4, cutoff=0.4) or ("auto", "reference", "exact")
        raise InputError(f"attention variant {brief(attention)} {why}; a service takes {', '.join(near)}")
    return attention


def device_of(name: str) -> str:
    """The device that `auto` is here."""
    from crucible import device as devices

    return devices.get(name).name


def raw_path(json: Path) -> Path:
    """Where the raw samples of a record lie."""
    return json.with_suffix(".raw.json.gz")


def check_raw(json: Path | None) -> None:
    """InputError where the raw samples beside a record could not be written."""
    from crucible.files import check_writable

    if json is not None:
        check_writable(raw_path(json))
