"""Contract attention on the processor beside torch's f32."""

import functools

from crucible.attention.plan import plan_of
from crucible.attention.run import attention
from crucible.attention.shapes import LAYER, Segments, case
from crucible.bench.attention_peers import contiguous, hold
from crucible.bench.outcome import Contender, Outcome
from crucible.bench.rounds import interleave, seconds_per_call

SHAPES = ("single-512", "4x256")
PEER = "f32, K/V dense, heads repeated"


def run(shapes: dict[str, Segments], rounds: int, threads: int, say=None) -> list[Outcome]:
    """Contract attention beside torch's f32 on the processor, milliseconds a call."""
    import torch

    from crucible import device as devices

    cpu = devices.get("cpu")
    cpu.call("crucible_set_threads", threads)
    torch.set_num_threads(threads)
    outcomes = []
    for title, segments in shapes.items():
        if say:
            say(title)
        c = case(segments)
        out, plan = cpu.empty(c.q.shape), plan_of(cpu, c.packed.desc, c.Hkv)
        paged = (c.kpool, c.vpool, c.tables, c.packed.desc, LAYER, c.Hkv, c.D)
        ours = functools.partial(attention, cpu, c.q, *paged, "auto", out, plan=plan)
        q, k, v = (torch.from_numpy(x) for x in contiguous(c, repeat=True))
        mask = (
            {"is_causal": True}
            if segments[0][0] == 0
            else {"attn_mask": torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(segments[0][0])}
        )

        def theirs(arrays=(q, k, v), mask=mask):
            with torch.inference_mode():
                return torch.nn.functional.scaled_dot_product_attention(*arrays, **mask)

        hold(theirs(), ours(), c, 1e-4, "torch SDPA")
        timed = {
            "crucible auto": lambda call=ours: 1e3 * seconds_per_call(call, 0.05),
            "torch SDPA": lambda call=theirs: 1e3 * seconds_per_call(call, 0.05),
        }
        samples = interleave(timed, rounds)
        contenders = (
            Contender("crucible auto", "f32, contract order", "ms", tuple(samples["crucible auto"]), True),
            Contender("torch SDPA", PEER, "ms", tuple(samples["torch SDPA"])),
        )
        outcomes.append(Outcome(title, contenders, higher_is_better=False))
    return outcomes
