"""`crucible generate`: stream text from a prompt, or print tokens and digests as JSON."""

import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import Any

import typer

EXAMPLE = (
    'Example: crucible generate --model smollm2 --prompt "The capital of France is" --max-tokens 20 --json'
)


def load_model(name: str, device: str, mode: str) -> Any:
    """Load a model with a progress bar on stderr; one with a known source is fetched first, with a notice."""
    from tqdm import tqdm

    from crucible import device as devices
    from crucible.cli.fetch import fetch_if_known
    from crucible.model.model import Model

    devices.get(device)  # refused before anything is fetched
    fetch_if_known(name)
    with tqdm(desc=f"load {name}", unit="block", leave=False, disable=None) as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        return Model.load(name, device, mode, progress)


def as_json(model: Any, request: dict[str, Any], options: Any, result: Any) -> dict[str, Any]:
    """What `--json` prints: the model and its files, the request (the model as asked for, prompt, chat and
    system), tokens, digests and random state, with times kept apart."""
    from crucible.numerics.contract import CONTRACT_VERSION

    found = dataclasses.asdict(result)
    timings = found.pop("timings")
    rates = {
        "prefill_tokens_per_second": len(result.prompt_tokens) / timings["prefill_seconds"],
        "decode_tokens_per_second": (len(result.tokens) - 1) / timings["decode_seconds"],
    }
    return {
        "model": model.name,
        "model_files": model.file_digests(),
        "request": request,
        "mode": model.mode,
        "device": model.device.name,
        "contract_version": int(CONTRACT_VERSION),
        "options": dataclasses.asdict(options),
        **found,
        "prompt_logits_digest": result.prompt_logits_digest,
        "timings": {**timings, **rates},
    }


def unused(
    temperature: float,
    seed: int | None,
    top_k: int,
    top_p: float,
    sampler: str,
    chat: bool,
    system: str | None,
) -> Sequence[str]:
    """A sentence for every option that this request would pass over in silence."""
    asked = {
        "--seed": seed is not None,
        "--top-k": top_k != 0,
        "--top-p": top_p != 1.0,
        "--sampler": sampler != "inverse-cdf",
    }
    lines = []
    if temperature == 0:  # greedy draws nothing
        for option in (name for name, given in asked.items() if given):
            lines.append(f"{option} has no effect at temperature 0 (greedy); add --temperature 1")
    if system is not None and not chat:
        lines.append("--system has no effect without --chat")
    return lines


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @app.command(epilog=EXAMPLE)
    def generate(
        prompt: str = typer.Option(
            ..., "--prompt", "-p", help="The text to continue; - reads it from stdin."
        ),
        model: str = typer.Option(
            "smollm2", help="smollm2, synthetic-12x768, a .gguf file or a checkpoint folder."
        ),
        max_tokens: int = typer.Option(128, help="Tokens to generate at most."),
        temperature: float = typer.Option(0.0, help="0 takes the largest logit (greedy)."),
        top_k: int = typer.Option(0, help="Keep this many ranks; 0 keeps all."),
        top_p: float = typer.Option(1.0, help="Keep the ranks up to this share of the probability."),
        seed: int | None = typer.Option(None, help="64-bit seed; drawn and reported when absent."),
        sampler: str = typer.Option("inverse-cdf", help="inverse-cdf or gumbel-id."),
        device: str = typer.Option("auto", help="cpu, cuda or auto: cuda where there is a GPU."),
        mode: str = typer.Option("f32", help="f32 or int8 (8-bit weights, 16-bit activations)."),
        attention: str | None = typer.Option(
            None, help="Demand an attention variant; default: CRUCIBLE_PREFILL_ATTN, else auto."
        ),
        chunk: int | None = typer.Option(None, help="Prompt tokens that run at a time; moves no bit."),
        page_seed: int | None = typer.Option(
            None, help="Shuffle the physical pages by this seed; moves no bit."
        ),
        chat: bool = typer.Option(
            False, "--chat", help="Wrap the prompt as a user message by the chat template."
        ),
        system: str | None = typer.Option(None, help="System message in front, with --chat."),
        ignore_eos: bool = typer.Option(False, "--ignore-eos", help="Go on after an end-of-text token."),
        json_output: bool = typer.Option(
            False, "--json", help="Print one JSON object with tokens and digests."
        ),
    ) -> None:
        """Generate text from a prompt; the same request gives the same bits however it is run."""
        from crucible.attention.variants import default, find
        from crucible.model.generate import Generation, Options, check_request, stream

        options = Options(
            max_tokens=max_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
            sampler=sampler,
            chunk=chunk,
            page_seed=page_seed,
            variant=attention,
            ignore_eos=ignore_eos,
            digests=json_output,
        )
        options.sampling()  # refuse bad values before a model loads
        find(attention) if attention else default()
        for line in unused(temperature, seed, top_k, top_p, sampler, chat, system):
            print(f"warning: {line}", file=sys.stderr)
        text = sys.stdin.read() if prompt == "-" else prompt
        loaded = load_model(model, device, mode)
        request = {"model": model, "prompt": text, "chat": chat, "system": system if chat else None}
        if chat:
            text = loaded.chat(text, system)
        _, params = check_request(loaded, text, options)
        options = dataclasses.replace(options, seed=None if params.greedy else params.seed)
        try:
            for event in stream(loaded, text, options):
                if isinstance(event, Generation):
                    result = event
                elif not json_output:
                    print(event.text, end="", flush=True)
        except KeyboardInterrupt:
            print()
            print("interrupted", file=sys.stderr)
            raise typer.Exit(130) from None
        if json_output:
            print(json.dumps(as_json(loaded, request, options, result), ensure_ascii=False))
        else:
            print()
            for launch in result.attention:
                if launch.reason:
                    text = f"attention: {launch.variant} for {launch.asked} ({launch.reason})"
                    print(text, file=sys.stderr)
            if options.seed is not None and seed is None:
                print(f"seed {options.seed}", file=sys.stderr)
