"""`crucible diagnose`: which token an attention flips on one request, and why."""

import typer

EXAMPLE = "Example: crucible diagnose --candidate q2-k32"


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @app.command(epilog=EXAMPLE)
    def diagnose(
        candidate: str = typer.Option(
            ...,
            help="q2-k32, split-sum, sdpa-math, flex, defect-nan, file.py:function or file.cu:entry.",
        ),
        request: int | None = typer.Option(
            None, min=0, help="Number of a request of the corpus; none: the recorded one."
        ),
        seed: int | None = typer.Option(
            None, min=0, max=2**64 - 1, help="Seed of the request, instead of its own."
        ),
        steps: int = typer.Option(16, min=1, help="Tokens of the sequence."),
        model: str = typer.Option("smollm2", help="smollm2, a .gguf file or a checkpoint folder."),
        mode: str = typer.Option("f32", help="f32 or int8."),
        device: str = typer.Option("auto", help="cpu, simt, cuda or auto."),
    ) -> None:
        """Compare a candidate attention with the reference on one seeded request, and end with a verdict."""
        from dataclasses import replace

        from crucible import device as devices
        from crucible.cli.generate import load_model
        from crucible.drift.candidates import open_candidate
        from crucible.drift.corpus import Corpus, prompts_of, recorded
        from crucible.drift.diagnose import diagnose as run
        from crucible.drift.diagnose import lines

        chosen = open_candidate(candidate, devices.get(device))  # refused before a model loads
        loaded = load_model(model, device, mode)
        corpus = Corpus(prompts_of(loaded))
        plain = request is None and loaded.source is not None
        asked = recorded(loaded) if plain else corpus.request(request or 0)
        if seed is not None:
            asked = replace(asked, sampling=replace(asked.sampling, seed=seed))
        company = [replace(corpus.request(i), steps=steps) for i in (2, 7)]
        found = run(loaded, replace(asked, steps=steps), chosen, company)
        for line in [f"candidate: {chosen.name}: {chosen.summary}", *lines(loaded, found)]:
            typer.echo(line)
