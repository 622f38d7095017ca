"""`crucible eval`: negative log-likelihood of a text file under a model."""

import hashlib
import json
from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @app.command("eval", epilog="Example: crucible eval tests/model/english.txt --model smollm2 --mode int8")
    def evaluate(
        text_file: Annotated[Path, typer.Argument(help="A UTF-8 text file.")],
        model: str = typer.Option(
            "smollm2", help="smollm2, synthetic-12x768, a .gguf file or a checkpoint folder."
        ),
        mode: str = typer.Option("f32", help="f32 or int8."),
        device: str = typer.Option("auto", help="cpu, cuda or auto (cpu)."),
        window: int = typer.Option(1024, help="Positions scored with one another's context."),
        max_tokens: int | None = typer.Option(None, help="Read only this many tokens of the text."),
        json_output: bool = typer.Option(False, "--json", help="Print one JSON object."),
    ) -> None:
        """Mean negative log-likelihood (nats per token) of a text, teacher forced.

        Plain English gives a working SmolLM2 1.6 to 2.5; a wrong weight layout gives far more.
        """
        from crucible.cli.generate import load_model
        from crucible.files import read_text
        from crucible.model.evaluate import nll
        from crucible.numerics.checks import whole

        whole("window", window, 2)
        if max_tokens is not None:
            whole("max_tokens", max_tokens, 2)
        text = read_text(text_file)
        loaded = load_model(model, device, mode)
        value, tokens = nll(loaded, loaded.encode(text)[:max_tokens], window)
        if json_output:
            found = {
                "model": loaded.name,
                "model_files": loaded.file_digests(),
                "request": {"model": model, "text_file": str(text_file), "max_tokens": max_tokens},
                "text_sha256": hashlib.sha256(text.encode()).hexdigest(),
                "mode": mode,
                "device": loaded.device.name,
                "nll": value,
                "tokens": tokens,
                "window": min(window, loaded.config.context),
            }
            print(json.dumps(found, ensure_ascii=False))
        else:
            print(f"{value:.4f} nats/token over {tokens} token{'s' * (tokens != 1)} ({loaded.name}, {mode})")
