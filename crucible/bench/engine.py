"""Tokens per second of many requests at once: the engine beside one request alone and beside transformers."""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from crucible.bench.engines import Transformers
from crucible.bench.outcome import Contender, Outcome
from crucible.bench.rounds import WARMUPS, interleave
from crucible.engine.engine import Engine
from crucible.engine.request import Request
from crucible.engine.scheduler import Limits, pages_for
from crucible.errors import InputError, UnavailableError
from crucible.evidence.statistics import bracket, paired_ratios
from crucible.files import brief
from crucible.model.model import Model
from crucible.numerics import inputs

PEERS = ("transformers",)
SHAPES = {"cpu": ("8x32",), "cuda": ("16x16", "4x256", "8x512")}  # requests x prompt tokens
_ARITHMETIC = {"f32": "f32, contract order", "int8": "int8 weights, 16-bit activations"}


def parse(shape: str) -> tuple[int, int]:
    """(requests, prompt tokens) of "16x256"."""
    found = re.fullmatch("([1-9][0-9]{0,8})x([1-9][0-9]{0,8})", shape)
    if found is None:
        raise InputError(f"shape {brief(shape)} is not REQUESTSxTOKENS, such as 16x256")
    requests, length = map(int, found.groups())
    return requests, length


def check(model: Model, shapes: Sequence[str], tokens: int) -> None:
    """InputError for a shape whose requests, with `tokens` each, do not fit the model's context."""
    context = model.config.context
    for shape in shapes:
        _, length = parse(shape)
        if length + tokens > context:
            raise InputError(
                f"shape {shape} with {tokens} tokens each exceeds the context of {context}; shorten either"
            )


def prompts(requests: int, length: int, vocab: int) -> list[list[int]]:
    """Token ids by the counter-based generator; no two prompts begin alike."""
    ids = inputs.bits(11, 0, requests * length) % vocab
    return ids.reshape(requests, length).tolist()


def engine_rate(engine: Engine, ids: Sequence[Sequence[int]], tokens: int) -> float:
    """Tokens per second of all requests together, greedy, from submission to the last result."""
    work = [Request(prompt, tokens, ignore_eos=True) for prompt in ids]
    start = time.perf_counter()
    engine.generate(work)
    return len(ids) * tokens / (time.perf_counter() - start)


def transformers_rate(peer: Any, device: str, ids: Sequence[Sequence[int]], tokens: int) -> float:
    """Tokens per second of transformers' own generate on the same prompts as one batch."""
    torch = peer._torch
    given = torch.tensor(ids, device=device)
    start = time.perf_counter()
    with torch.inference_mode():
        out = peer._model.generate(
            given,
            attention_mask=torch.ones_like(given),
            min_new_tokens=tokens,
            max_new_tokens=tokens,
            do_sample=False,
            pad_token_id=0,
        )
    made = out[:, given.shape[1] :].cpu()
    return made.numel() / (time.perf_counter() - start)


def run(
    models: Sequence[Model],
    shapes: Sequence[str],
    tokens: int,
    rounds: int,
    against: Sequence[str] = (),
    alone: bool = True,
    threads: int = 2,
    say: Callable[[str], None] = lambda text: None,
) -> list[Outcome]:
    """One outcome a shape; the models are one checkpoint in several modes on one device.

    Prefix sharing is off: the same prompts come again each round. `alone` adds the first request by
    itself through the same engine. Ctrl-C ends all: the rounds and shapes that are complete come back.
    """
    device, name = models[0].device.name, models[0].name
    peer, absent = _peer(models[0], threads, device) if "transformers" in against else (None, ())
    outcomes = []
    for shape in shapes:
        count, length = parse(shape)
        limits = Limits(pages=count * (pages_for(length + tokens) + 1))
        engines = {model.mode: Engine(model, limits, share_prefixes=False) for model in models}
        try:
            ids = prompts(count, length, models[0].config.vocab)  # now that the pages for them are there
            contenders = {}
            for mode, engine in engines.items():
                contenders[f"crucible {mode}"] = partial(engine_rate, engine, ids, tokens)
                if alone:
                    contenders[f"crucible {mode}, one alone"] = partial(engine_rate, engine, ids[:1], tokens)
            if peer is not None:
                contenders["transformers"] = partial(transformers_rate, peer, device, ids, tokens)
            say(f"{rounds} interleaved rounds of {shape}: {', '.join(contenders)}")
            samples = interleave(contenders, rounds, warmups=WARMUPS[device])
        except KeyboardInterrupt:
            if not outcomes:
                raise
            outcomes[-1] = replace(outcomes[-1], stopped=True)
            break
        finally:
            for engine in engines.values():
                engine.close()
        outcomes.append(_outcome(shape, name, device, tokens, samples, engines, absent, peer, rounds))
        if outcomes[-1].stopped:
            break
    return outcomes


def _outcome(shape, name, device, tokens, samples, engines, absent, peer, rounds) -> Outcome:
    found = []
    for label, taken in samples.items():
        ours = label != "transformers"
        mode = label.split()[1].rstrip(",") if ours else "f32"
        facts = {}
        if ours and not label.endswith("alone"):
            totals = engines[mode].stats().totals
            facts["host us a step"] = round(totals.host_seconds / max(totals.steps, 1) * 1e6, 1)
            alone = samples.get(f"{label}, one alone")
            if alone:
                facts["times one alone"] = round(bracket(paired_ratios(taken, alone)).median, 2)
        elif not ours:
            facts["version"] = peer.version
        arithmetic = _ARITHMETIC[mode] if ours else peer.arithmetic
        found.append(Contender(label, arithmetic, "tok/s", tuple(taken), ours, facts))
    title = f"{shape} on {device}, {name}, {tokens} tokens each"
    return Outcome(title, tuple(found), absent=absent, stopped=len(found[0].samples) < rounds)


def _peer(model: Model, threads: int, device: str):
    try:
        peer = Transformers(model.source or model.name, "f32", threads)
    except UnavailableError as error:
        return None, (("transformers", str(error)),)
    peer._model.to(device)
    return peer, ()
