# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # The reference kernel: one order of operations, one set of bits
#
# **Question.** What exactly does attention compute here, and why is the order of its sums part of the
# promise?
#
# **Answer.** One fixed sequence of f32 operations, written down once. The CUDA kernel
# `attention_reference.cu` follows it, and so do the C++ of the `cpu` device and a NumPy oracle: three
# implementations, zero differing bits. Other orders are not wrong either, all stay within the bound that
# rounding allows. But they move logits by more than some neighbouring tokens lie apart, and then the same
# request can give another text. In one order a real model writes the same text with the same bits,
# however its prompt is cut, wherever its pages lie and whoever shares its batch.

# %%
import time

import numpy as np

from crucible import Model, device
from crucible.evidence import environment, record
from crucible.evidence.statistics import bracket
from crucible.model.model import open_checkpoint
from crucible.numerics import inputs, scalar
from crucible.numerics.bits import as_bits, assert_same_bits, compare, ulp_distance
from crucible.report import arrangements, cases, likelihood, orders
from crucible.report.excerpts import excerpt
from crucible.report.plots import reference
from crucible.report.plots.style import show
from crucible.report.tables import table
from crucible.sampling.sample import logprobs, rank

# %% tags=["parameters"]
shapes = [
    [3, 1, 64, 40],
    [4, 1, 64, 70],
    [8, 1, 128, 33],
    [2, 2, 96, 17],
]  # heads, kv_heads, head_dim, positions
exp_points = 40000  # points at which the error of exp is measured
sums = 2000  # sums of 256 numbers that are taken in other orders
top_k = 500  # ranks of the vocabulary in which swaps are counted
nll_tokens = 106  # tokens of the text that the real model scores
model = "smollm2"  # a fetched model's name, a .gguf file or a checkpoint folder
prompt = "Water boils at 100 degrees Celsius. The capital of France is"  # what the real model goes on from
steps = 10  # tokens it writes in each arrangement
modes = ["f32"]  # arithmetics in which it writes: f32, int8
repeats = 5  # timed runs of each device
output_dir = ""  # folder for this run's evidence record; empty: the record is only shown

# %%
cpu, simt = device.get("cpu"), device.get("simt")
text = (
    "Water is a liquid at room temperature. When it is heated to 100 degrees Celsius, it boils and turns "
    "into steam. When it is cooled below 0 degrees Celsius, it freezes and turns into ice. Ice is lighter "
    "than water, and that is why it floats on the surface of lakes and rivers in winter. The fish below the "
    "ice survive, because the water at the bottom of the lake stays a few degrees above the freezing point. "
    "In spring the sun melts the ice, and the water becomes warm again."
)

# %% [markdown]
# ## From the formula to a first number
#
# Attention of one query over L keys is `softmax(q k / sqrt(D)) v`. In float64 the rounding is so fine
# that any order will do. This is the value that everything below must approach.


# %%
def exact_attention(q, k, v):
    s = (k.astype(np.float64) * q).sum(axis=1) / np.sqrt(q.size)
    e = np.exp(s - s.max())
    return (e[:, None] * v).sum(axis=0) / e.sum()


D, L = 64, 200
q, k, v = (inputs.normalish(2, i, (n, D)) for i, n in enumerate((1, L, L)))
exact = exact_attention(q[0].astype(np.float64), k, v)
contract = scalar.attention_row(q, k[:, None], v[:, None], scalar.reciprocal_root(D))[0]
print(f"largest error of the contract's f32: {np.abs(contract - exact).max():.1e}")

# %% [markdown]
# f32 has 24 bits, so a sum must round, and the formula does not say in which order. Each of the
# following five steps settles one such question; the code shown is what runs.

# %% [markdown]
# ### Step 1: a score is 32 chains and a tree
#
# Lane `d` of a warp multiplies dimension `d`, then chains `d + 32`, `d + 64`, … with `fma`. A tree of
# fixed shape joins the 32 lanes. `scale` is the real number `1/sqrt(D)` rounded once.

# %%
excerpt("attention_reference.cu", "// s_j = tree32")

# %%
show(
    reference.tree(), "tree32: five steps in which lane i takes lane i + o; orange comes from the upper half."
)

# %%
excerpt("contract.cuh", "float tree32(float p)")

# %% [markdown]
# ### Step 2: the maximum needs no order
#
# `max` is exact, so any order gives it, and the kernel takes the fastest.

# %%
excerpt("attention_reference.cu", "// m = max_j s_j", "m = max256(m, warps)")

# %% [markdown]
# ### Step 3: exp is a polynomial of its own
#
# Library exponentials differ between a CPU, a GPU and their versions. This one consists of `fma`, `+`, `-`,
# one product and an exponent shift, so that it has the same bits wherever IEEE 754 holds.

# %%
excerpt("contract.cuh", "float exp_reduced(float x", "// The bits of contract_exp", before=True)

# %%
x = np.linspace(-87, 0, exp_points).astype(np.float32)
true = np.exp(x.astype(np.float64))
error = (scalar.exp(x) - true) / np.spacing(true.astype(np.float32)).astype(np.float64)
worst_exp = float(np.abs(error).max())
assert worst_exp < 1.02
show(
    reference.exp_error(x, error),
    f"Error of the contract's exp against float64 at {exp_points:,} points, in ulp.",
)

# %% [markdown]
# ### Step 4: the sum of weights has 256 lanes
#
# Thread `t` adds the weights of keys `t`, `t + 256`, … in ascending order; trees join the lanes of a
# warp and then the eight warps.

# %%
excerpt("attention_reference.cu", "// e_j = exp(s_j - m)", "inverse = __fdiv_rn")

# %% [markdown]
# ### Step 5: the output is one chain over the keys
#
# Every output dimension owns a thread that walks the keys in ascending order with `fma`, and one
# multiplication by `1/Z` ends it. A weight that underflowed to zero is not skipped.

# %%
excerpt("attention_reference.cu", "// out_d = (fma chain")

# %% [markdown]
# ## Three implementations, no differing bit
#
# `simt` compiles this very CUDA source for the host and runs a block's 256 threads as fibers, with
# their barriers and shuffles. `cpu` is separate C++, vectorised across outputs. The oracle is NumPy.
# Pages are shuffled, and every slot that no position owns is NaN.


# %%
def held(heads, kv_heads, head_dim, length):
    case = cases.make([length], heads, kv_heads, head_dim, page_seed=length)
    expected, actual = case.run(cpu), case.run(simt)
    blocks = case.q.reshape(-1, heads, head_dim)
    oracle = scalar.attention(blocks, case.kpool, case.vpool, case.tables, case.desc, 0, kv_heads)
    assert_same_bits(oracle.reshape(expected.shape), expected, "cpu against the oracle")
    assert_same_bits(expected, actual, "simt against cpu")
    return expected, actual


pairs = [held(*shape) for shape in shapes]
rows = [(*shape, a.size, compare(e, a).differing) for shape, (e, a) in zip(shapes, pairs, strict=True)]
table(("heads", "kv heads", "head_dim", "positions", "outputs", "differing bits"), rows)

# %% [markdown]
# ## Why an order is a promise
#
# Here are sets of 256 numbers, each summed in other orders too. No result is wrong: every one lies within
# the bound that rounding allows. The contract's order has many short chains, and so errs less than one
# long chain; that is welcome, but not the point: the other sums do not have its bits.

# %%
numbers = inputs.normalish(5, 0, (sums, 256))
ours = scalar.sum256(numbers)
distances = {
    name: ulp_distance(ours, order(numbers)).astype(np.int64) for name, order in orders.ORDERS.items()
}
show(
    reference.orders(distances),
    f"{sums:,} sums of 256 numbers each, in three other orders, against the contract's order.",
)

# %%
found = {"contract (sum256)": scalar.sum256, **orders.ORDERS}
real, bound = numbers.sum(axis=1, dtype=np.float64), 255 * 2.0**-24 * np.abs(numbers).sum(axis=1)
errors = {name: np.abs(order(numbers) - real) for name, order in found.items()}
assert all((error <= bound).all() for error in errors.values()), "an order broke the bound of rounding"
rms = {name: float(np.sqrt(np.mean(error**2))) for name, error in errors.items()}
table(
    ("order", "RMS error", "times the contract's", "largest error / bound"),
    [
        (n, f"{rms[n]:.3g}", f"{rms[n] / rms['contract (sum256)']:.2f}", f"{(e / bound).max():.4f}")
        for n, e in errors.items()
    ],
    f"Errors of the {sums:,} sums against float64",
)

# %% [markdown]
# One sum in full: the one whose other orders all lie far from the contract's (the nearest of them is the
# furthest off). The numbers nearly cancel, so little precision is left:

# %%
first = int(np.argmax(np.minimum.reduce(list(distances.values()))))
values = [(name, order(numbers[first : first + 1])[0]) for name, order in found.items()]
table(("order", "sum", "bits"), [(name, f"{s:.9g}", f"0x{int(as_bits(s)):08x}") for name, s in values])

# %% [markdown]
# ## What another order does to the tokens of a real model
#
# SmolLM2 reads a paragraph. At every token the logits are summed once in the contract's order and once
# with the inner dimension split in four, as a split-K kernel would do it in the last layer alone. The
# shift is tiny. Where it is larger than the gap between neighbours in the ranking, tokens trade places.

# %%
checkpoint = open_checkpoint(model)
language_model = Model.from_checkpoint(checkpoint, cpu)
language_name = language_model.name
ids = language_model.encode(text)[:nll_tokens]
hidden, logits = likelihood.every_step(language_model, ids)
head = checkpoint.read_tensor("token_embd.weight")
near = [rank(cpu, row, 1.0, 2 * top_k) for row in logits]
moved = [orders.dot_split(h, head[tokens]) for h, tokens in zip(hidden, near, strict=True)]
shift = max(np.abs(m - row[n]).max() for m, row, n in zip(moved, logits, near, strict=True))
print(f"largest shift of a logit: {shift:.1e}; logits of one step span {np.ptp(logits[-1]):.0f}")

# %%
other = [orders.ranking(n, m)[:top_k] for n, m in zip(near, moved, strict=True)]
trades = np.array([np.count_nonzero(o != n[:top_k]) for o, n in zip(other, near, strict=True)])
busiest = int(np.argmax(trades))
print(
    f"{trades.sum()} of {trades.size * top_k} ranks hold another token, in {np.count_nonzero(trades)} steps"
)
at = np.flatnonzero(other[busiest] != near[busiest][:top_k])[:6]
names = [[repr(language_model.decode([int(t[busiest][i])])) for t in (near, other)] for i in at]
table(
    ("rank", "contract's order", "split in four"), [(i + 1, *pair) for i, pair in zip(at, names, strict=True)]
)

# %%
chances = np.exp(logprobs(cpu, cpu.upload(logits[busiest])))
mass = float(chances[near[busiest][at]].sum())
print(f"the tokens at these {at.size} ranks have {mass:.1e} of the probability, at temperature 1")

# %%
caption = "Gaps between neighbouring ranks of one step, and how far another order shifts the logits."
show(reference.rank_gaps(logits[busiest][near[busiest]][:top_k], moved[busiest][:top_k]), caption)

# %% [markdown]
# A sampler that walks the ranking with one uniform number picks another token whenever the number
# falls on such a rank, and from there on the texts part. At one step that is as rare as the probability
# says; over many tokens and requests it happens. With one order there is nothing to part.
#
# ## The real model: one prompt, one set of bits
#
# The model reads a prompt and writes on, greedily: the prompt whole, in chunks of 7, token by token, on
# shuffled pages among NaN, and in batches shared with two other texts. One digest covers the logits of
# every step and all of K and V. `f32` and `int8` are two arithmetics, each with its own bits.


# %%
def arranged(mode):
    runner = Model.from_checkpoint(checkpoint, cpu, mode)
    made = arrangements.all_of(runner, runner.encode(prompt), steps, [ids[:40], ids[40:70]])
    first = next(iter(made.values()))
    print(f"{mode}: {prompt!r} -> {runner.decode(first.tokens)!r}\ntokens {first.tokens}")
    for name, one in made.items():
        assert_same_bits(first.values, one.values, f"{mode}, {name}")
    return {name: one.digest for name, one in made.items()}, record.counts(first.values), len(made) - 1


by_mode = {mode: arranged(mode) for mode in modes}
rows = [(mode, name, mark) for mode, (marks, _, _) in by_mode.items() for name, mark in marks.items()]
assert len({mark for _, _, mark in rows}) == len(modes)
table(("mode", "arrangement", "digest of logits, K and V"), rows)

# %% [markdown]
# The first is the request alone; every other row was compared with it, by bits.

# %% [markdown]
# ## The real model, scored on plain English
#
# Bits prove that devices agree, not that they agree on the right model. The likelihood of real text
# does: GGUF files store the rows of Q and K in another order than half-split RoPE needs, every shape
# fits both ways, and the wrong one still writes fluent-looking words.

# %%
right = likelihood.surprises(language_model, logits, ids)
del language_model
wrong_model = Model.from_checkpoint(likelihood.interleaved(checkpoint), cpu)
wrong = likelihood.surprises(wrong_model, likelihood.every_step(wrong_model, ids)[1], ids)
assert 1.6 < right.mean() < 2.5 < wrong.mean() - 0.5
scores = {"rows put in order": right, "rows as the file stores them": wrong}
rows = [(name, f"{nats.mean():.3f}", len(nats)) for name, nats in scores.items()]
table(("rows of Q and K", "nats per token", "tokens"), rows)

# %%
caption = "Surprise of each token under the right and the wrong order of the Q and K rows."
show(reference.nll(scores, [wrong_model.decode([i]) for i in ids[1:]]), caption)

# %% [markdown]
# ## What it costs on this machine
#
# `simt` is for proof, not for speed: it runs every thread of every block.


# %%
def timed(target, case):
    samples = []
    case.run(target)  # the first run pays for caches and buffers
    for _ in range(repeats):
        start = time.perf_counter()
        case.run(target)
        samples.append(1000 * (time.perf_counter() - start))
    return tuple(samples)


case = cases.make([shapes[0][3]], *shapes[0][:3])
samples = [record.Series(f"attention {shapes[0]} on {d.name}", "ms", timed(d, case)) for d in (cpu, simt)]

# %% tags=["nbval-ignore-output"]
table(("timed", "median and range, ms"), [(s.name, str(bracket(s.values))) for s in samples])

# %% [markdown]
# ## What we know now
#
# - Attention is one sequence of f32 operations; the CUDA source, the C++ and the oracle agree bit for
#   bit over every shape tried, with NaN in all that they must not read.
# - exp needs no library; the contract's bound for it is 1.01 ulp over all floats, and no point tried here
#   came nearer than the plot says.
# - Other orders stay within the bound of rounding too, but give other bits, and in a real ranking other
#   tokens.
# - A real model's logits, K, V and tokens are the same bits however its prompt is cut, wherever its pages
#   lie and whoever shares its batch.
# - The layout of the weights is the model's: the text's likelihood says so, and catches the wrong layout.

# %%
expected, actual = (np.concatenate([p[i].ravel() for p in pairs]) for i in (0, 1))
result = record.Record(
    kind="reference-kernel",
    claim="attention_reference.cu run on simt gives the bits of the cpu device",
    compared="attention outputs of simt, cpu and the NumPy oracle, by bits",
    verdict="pass",
    differing=compare(expected, actual).differing,
    **record.counts(actual),
    facts={
        "shapes": len(shapes),
        "exp worst error, ulp": round(worst_exp, 3),
        "ranks moved by a split sum": int(trades.sum()),
        "NLL, nats per token": round(float(right.mean()), 4),
        "NLL with wrong Q/K rows": round(float(wrong.mean()), 4),
    },
    samples=tuple(samples),
    not_claimed=("speed on a GPU", "quality of the model beyond one paragraph of English"),
    environment=environment.capture("cpu, simt"),
)

# %%
model_records = [
    record.Record(
        kind="model",
        claim=f"{language_name} in {mode} has one set of bits in {others + 1} arrangements of one request",
        compared="logits of every step, K and V of each arrangement against the request alone, by bits",
        verdict="pass",
        **{name: others * count for name, count in counts.items()},
        facts={"prompt": prompt, "steps": steps, "digest": next(iter(marks.values()))},
        not_claimed=("the whole model on a GPU",),
        environment=environment.capture("cpu"),
    )
    for mode, (marks, counts, others) in by_mode.items()
]
record.publish([result, *model_records], output_dir, "02_reference_kernel")
