"""`crucible gate service`: a service under load, and beyond what it can take."""

from typing import Annotated

import typer

from crucible.cli.gate import _finish, app
from crucible.cli.outputs import Json

EXAMPLE = "Example:\n\n  crucible gate service --quick --json service.json"
GPU = (35.0, 100.0)  # requests a second that a GPU is held to where nothing else is asked


@app.command(epilog=EXAMPLE)
def service(
    quick: Annotated[bool, typer.Option("--quick", help="A tiny model, seconds.")] = False,
    model: Annotated[
        str | None, typer.Option(help="A known name, a .gguf file or a folder; default: by the device.")
    ] = None,
    mode: Annotated[str, typer.Option(help="f32 or int8.")] = "int8",
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
    rate: Annotated[
        float | None,
        typer.Option(help="Requests a second below capacity; default: 35 on cuda, else half the capacity."),
    ] = None,
    overload: Annotated[
        float | None,
        typer.Option(help="Requests a second in overload; default: 100 on cuda, else three capacities."),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(min=1, max=600, help="Of the phase below capacity; the other has half.")
    ] = None,
    queue: Annotated[
        int | None,
        typer.Option(min=1, max=4096, help="Requests that may wait; 64 on cuda, else 8 (--quick: 32)."),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, max=(1 << 63) - 1, help="Of prompts, arrival times and draws.")
    ] = 20260908,
    json: Json = None,
) -> None:
    """Serve on loopback, below capacity and in overload, and hold every answer to its run alone.

    Clients leave on purpose; queue, pages and memory are watched. Exit code 0: all held; 1: something did
    not; 130: interrupted (what was done is printed and saved).
    """
    import asyncio

    from tqdm import tqdm

    from crucible import device as devices
    from crucible.cli.fetch import fetch_if_known
    from crucible.cli.signals import term_is_interrupt
    from crucible.errors import InputError
    from crucible.gates.service import BELOW, OVER, Load, ServiceGate
    from crucible.gates.service_record import record, summary
    from crucible.service.started import Side, arguments, own_build

    if (rate is None) != (overload is None):
        raise InputError("--rate and --overload belong together; give both or neither")
    target = devices.get(device)
    fast = target.name == "cuda"
    name = model or ("synthetic-2x64" if quick else "synthetic-12x768" if fast else "smollm2")
    lasting = seconds or (4.0 if quick else 60.0 if fast else 20.0)
    loads = None
    if rate is not None:
        refuse_rate("--rate", rate, lasting)
        refuse_rate("--overload", overload, lasting / 2)
        loads = (Load.lasting(BELOW, rate, lasting), Load.lasting(OVER, overload, lasting / 2))
    elif fast and not quick:
        loads = (Load.lasting(BELOW, GPU[0], lasting), Load.lasting(OVER, GPU[1], lasting / 2))
    fetch_if_known(name)
    # A tiny model is served faster than a busy machine gives turns: its queue must outlast a stall.
    most = queue or (64 if fast else 32 if quick else 8)
    more = ("--queue", str(most), "--decode-batch", str(64 if fast else 16), "--log-level", "error")
    side = Side("gate", own_build(), arguments(name, mode, device, more))
    interrupted = False
    with (
        term_is_interrupt(),
        side.running() as server,
        tqdm(desc="alone", unit="request", disable=None, leave=False) as bar,
    ):
        gate = ServiceGate(server.target, server.pid, loads, lasting, seed=seed)

        def tell(what: str, total: int) -> None:
            bar.total = len(gate.alone) + total if total else None
            bar.set_description(what)
            bar.update()

        try:
            asyncio.run(gate.run(tell))
        except KeyboardInterrupt:
            interrupted = True
    about = {"model": name, "mode": mode, "device": target.name, "queue": most}
    made = [record(gate, target.name, about)] if gate.phases else []
    _finish(gate.passed, summary(gate), made, json, interrupted)


def refuse_rate(name: str, rate: float, seconds: float) -> None:
    """InputError for a rate that is none, or of which more requests would come than a client holds."""
    from crucible.errors import InputError
    from crucible.service.load.asks import FIXED, check_arrivals
    from crucible.service.load.plan import MOST_ARRIVALS

    check_arrivals(FIXED, rate)
    if rate * seconds > MOST_ARRIVALS:
        raise InputError(
            f"{name} {rate:g} for {seconds:g} s is more than {MOST_ARRIVALS} requests; ask for fewer"
        )
