"""`crucible eval`: cross-entropy and perplexity of a text under a model."""

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from crucible.cli.outputs import spared

WINDOWS = "windows"  # dense: every token of a window but its first
TEXT_HELP = "A UTF-8 text file. Without one: the docstrings of a pinned NumPy."
PROTOCOL_HELP = (
    "windows, decode, prefill-32, prefill-256 or prefill-941; may be given again. Default: windows for a "
    "file, else the four others."
)
ATTENTION_HELP = "Variants whose bits are compared, but in windows. Default: reference and exact."
_ENOUGH = 1 << 18  # characters that hold the tokens of every protocol but windows


@dataclass(frozen=True)
class Asked:
    """What the command line asks for, beside model and mode."""

    name: str
    text: str
    protocols: Sequence[str]
    attention: Sequence[str]
    window: int
    max_tokens: int | None

    @property
    def sha256(self) -> str:
        """Of the text's UTF-8 bytes."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @app.command("eval", epilog="Example: crucible eval tests/model/english.txt --model smollm2 --mode int8")
    def evaluate(
        text_file: Annotated[Path | None, typer.Argument(help=TEXT_HELP, show_default=False)] = None,
        model: str = typer.Option(
            "smollm2", help="smollm2, synthetic-12x768, a .gguf file or a checkpoint folder."
        ),
        mode: str = typer.Option("f32", help="f32, int8, or both, one beside the other."),
        device: str = typer.Option("auto", help="cpu, cuda or auto: cuda where there is a GPU."),
        protocol: Annotated[list[str] | None, typer.Option(help=PROTOCOL_HELP)] = None,
        attention: Annotated[list[str] | None, typer.Option(help=ATTENTION_HELP)] = None,
        window: int | None = typer.Option(
            None, help="Positions scored with one another's context, in windows; 1024."
        ),
        max_tokens: int | None = typer.Option(None, help="Read only this many tokens, in windows."),
        json_output: bool = typer.Option(False, "--json", help="Print JSON: one object, or a list of them."),
        record: Annotated[Path | None, typer.Option(help="Evidence file to write, but for windows.")] = None,
    ) -> None:
        """Teacher-forced cross-entropy (nats per token) and perplexity of a text.

        Plain English gives a working SmolLM2 1.6 to 2.5 in windows; a wrong weight layout gives far more.
        Exit code 1: two attention variants give different bits; 130: interrupted (what was done is kept).
        """
        from crucible.errors import InputError
        from crucible.model.evaluate import PROTOCOLS
        from crucible.numerics.checks import whole

        for option, given in (("window", window), ("max_tokens", max_tokens)):
            if given is not None:
                whole(option, given, 2)
        protocols = protocol or ([WINDOWS] if text_file else list(PROTOCOLS))
        for one in protocols:
            if one not in (WINDOWS, *PROTOCOLS):
                known = ", ".join((WINDOWS, *PROTOCOLS))
                raise InputError(f"unknown protocol {one!r}; choose one of {known}")
        _check_used(protocols, attention, {"--window": window, "--max-tokens": max_tokens}, record)
        name, text = _text(text_file)
        asked = Asked(name, text, protocols, attention or ("reference", "exact"), window or 1024, max_tokens)
        found, records, interrupted = [], [], False
        try:
            for each in ("f32", "int8") if mode == "both" else (mode,):
                for result, evidence in _results(asked, model, device, each):
                    found.append(result)
                    records += evidence
        except KeyboardInterrupt:
            if not found:
                raise
            interrupted = True
        if json_output:
            print(json.dumps(found[0] if len(found) == 1 else found, ensure_ascii=False))
        else:
            print(*map(_line, found), sep="\n")
        if record is not None:
            from crucible.evidence.record import save

            typer.echo(f"record: {save(spared(record, interrupted), records)}", err=json_output)
        if interrupted:
            typer.echo("interrupted; what is printed was done", err=True)
            raise typer.Exit(130)
        if any(r.verdict == "fail" for r in records):
            raise typer.Exit(1)


def _check_used(protocols, attention, of_windows: dict[str, int | None], record: Path | None) -> None:
    """InputError for an option that none of the protocols would read."""
    from crucible.attention.variants import find
    from crucible.errors import InputError
    from crucible.model.evaluate import PROTOCOLS

    for variant in attention or ():
        find(variant)
    if set(protocols) == {WINDOWS}:
        for option, given in (("--attention", attention), ("--record", record)):
            if given:
                known = ", ".join(PROTOCOLS)
                raise InputError(
                    f"windows takes no {option}; leave it out, or add --protocol with one of {known}"
                )
    for option, given in of_windows.items():
        if given is not None and WINDOWS not in protocols:
            raise InputError(
                f"{option} {given} is for windows alone, and {protocols[0]} has a length of its own; "
                "leave it out"
            )


def _text(text_file: Path | None) -> tuple[str, str]:
    """(what to call the text, the text)."""
    if text_file is None:
        from crucible.model import heldout

        return heldout.FILE.name, heldout.text()
    from crucible.files import read_text

    return str(text_file), read_text(text_file)


def _results(asked: Asked, model: str, device: str, mode: str) -> Iterator[tuple[dict[str, Any], list]]:
    """(what JSON prints, evidence records) of every protocol."""
    from tqdm import tqdm

    from crucible.cli.generate import load_model
    from crucible.model.evaluate import nll, record_of, score, targets

    loaded = load_model(model, device, mode)
    base = {
        "model": loaded.name,
        "model_files": loaded.file_digests(),
        "request": {"model": model, "text_file": asked.name, "max_tokens": asked.max_tokens},
        "text_sha256": asked.sha256,
        "mode": mode,
        "device": loaded.device.name,
    }
    ids = loaded.encode(asked.text if WINDOWS in asked.protocols else asked.text[:_ENOUGH])
    for protocol in asked.protocols:
        if protocol == WINDOWS:
            value, tokens = nll(loaded, ids[: asked.max_tokens], asked.window)
            window = min(asked.window, loaded.config.context)
            yield {**base, "nll": value, "tokens": tokens, "window": window}, []
            continue
        scores = []
        for variant in asked.attention:
            what = f"{mode} {protocol} {variant}"
            with tqdm(total=targets(protocol), desc=what, unit="target", leave=False, disable=None) as bar:
                scores.append(score(loaded, ids, protocol, variant, bar.update))
        evidence = record_of(loaded, asked.name, asked.sha256, scores)
        first = scores[0]
        found = {
            "protocol": protocol,
            "tokens": first.scored,
            "fed": first.fed,
            "nll": first.cross_entropy,
            "perplexity": first.perplexity,
            "attention": {s.variant: s.digest for s in scores},
            "equal": evidence.verdict != "fail",
        }
        yield {**base, **found}, [evidence]


def _line(found: dict[str, Any]) -> str:
    tokens, model = found["tokens"], f"{found['model']}, {found['mode']}"
    counted = f"{tokens} token{'s' * (tokens != 1)}"
    if "protocol" not in found:
        return f"{found['nll']:.4f} nats/token over {counted} ({model})"
    names = list(found["attention"])
    bits = f", {' and '.join(names)} attention {'equal' if found['equal'] else 'DIFFER'}" * (len(names) > 1)
    return (
        f"{found['protocol']}: {found['nll']:.6f} nats/token, perplexity {math.exp(found['nll']):.4f} over "
        f"{counted} scored, {found['fed']} read ({model}{bits})"
    )
