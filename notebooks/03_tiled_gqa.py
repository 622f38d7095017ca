# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Tiled attention: share every byte, keep every bit
#
# **Question.** The reference kernel reads the keys and values of a request again for every row and every
# query head. How much of that can be shared without changing a bit?
#
# **Answer.** Nearly all of it. Adjacent rows and the heads of one KV head can read one copy, because a
# copy is no arithmetic: who fetches a number, and which thread adds it, may change; which numbers are
# added, and in which order, may not. The exact tiles have no differing bit. Online softmax, the
# usual way to tile, passes every tolerance and has other bits.

# %%
import numpy as np

from crucible import device
from crucible.attention.shapes import SHAPES
from crucible.evidence import environment, record
from crucible.evidence.statistics import bracket
from crucible.gates.tensor_tally import ABSOLUTE, RELATIVE
from crucible.kv.slices import Slice
from crucible.numerics import inputs, scalar
from crucible.numerics.bits import assert_same_bits, compare
from crucible.report import cases, tiles
from crucible.report.excerpts import excerpt
from crucible.report.notebooks import root
from crucible.report.plots import shapes as shape_plots
from crucible.report.plots import stages as stage_plots
from crucible.report.plots import tiles as plots
from crucible.report.plots.style import show
from crucible.report.tables import table

# %% tags=["parameters"]
geometries = [[4, 1, 64], [6, 2, 128]]  # heads, kv_heads, head_dim of the comparisons by bits
lengths = [70, 21]  # positions of two requests in those comparisons
first_rows = [41, 0]  # first position of each request whose row is computed; the earlier ones are history
variants = [
    "exact-q1-k16",
    "exact-q4-k64",
    "exact-q2-k32-hybrid-cache",
    "fast-t32",
    "fast-decode",
]  # exact variants held to the reference on simt: tiles, and fast ones
online_length = 400  # rows of the request on which online softmax is compared
gpu_record = "outputs/h200/attention.json"  # measured times; a path from the checkout's root
stage_record = "outputs/h200/bench.json"  # the stages of a pass; a path from the checkout's root
live = False  # measure the 25 shapes now, on this machine's GPU, instead of reading gpu_record
rounds = 5  # trials of a live measurement
output_dir = ""  # folder for this run's evidence record; empty: the record is only shown

# %%
cpu, simt = device.get("cpu"), device.get("simt")
seed_geometry = dict(Hq=12, Hkv=3, D=64)  # the geometry of the 25 shapes

# %% [markdown]
# ## The reference reads the same numbers again and again
#
# It starts a block for every row and query head, and each block walks its whole history. Sixteen rows
# and the four heads of one KV head are 64 readers of the same few positions. The area below is the bytes.

# %%
caption = "Every bar is one reader and the keys it reads: 16 rows, 4 heads of one KV head. Blue: reference."
show(plots.readers(16, 4, 4), caption)

# %% [markdown]
# A segment of `t` rows after `p` positions reads `S = t p + t (t + 1) / 2` positions for each query head.
# A tile of adjacent rows reads its longest history once for each KV head. These are the bytes a launch
# asks for, before any cache has helped.

# %%
four = {name: tiles.reads(segments, 4, **seed_geometry) for name, segments in SHAPES.items()}
eight = {name: tiles.reads(segments, 8, **seed_geometry) for name, segments in SHAPES.items()}
asked = {
    name: {
        "reference": r.reference,
        "tiles of 4 rows": r.tile,
        "tiles of 8 rows": eight[name].tile,
        "every position once": r.once,
    }
    for name, r in four.items()
}
show(shape_plots.bytes_read(asked), "K and V that one launch asks for, over 25 shapes of 12/3/64 heads.")

# %%
chosen = ("single-1", "single-64", "single-1024", "4x256", "history-64-at-960", "heterogeneous")
rows = [
    (n, round(four[n].reference / 1e6, 3), round(four[n].tile / 1e6, 3), four[n].reference / four[n].tile)
    for n in chosen
]
table(("shape", "reference, MB", "tiles of 4 rows, MB", "times fewer"), rows)

# %% [markdown]
# The ratio approaches rows x heads of a tile, 4 x 4 = 16. A single row still shares among its heads.

# %% [markdown]
# ## The tile: rows x heads of one KV head x 64 keys
#
# A block owns some adjacent rows of one segment and one KV head. It copies 64 positions into shared memory,
# each through the page table by itself, and all its warps take their scores from that one copy. A warp
# owns one row and one head for the whole kernel.

# %%
caption = "One tile of exact-q4-k64: four pages staged once, 16 warps read them; the row decides how far."
show(plots.tile(4, 4, 64, 57), caption)

# %%
excerpt("attention_tile.cuh", "void load_tile(float* tile")

# %% [markdown]
# A warp without a row, and a row that ends early, still take every barrier. Keys beyond a row's end are
# left out by the loop's bound. They are never multiplied by zero: zero times NaN would be NaN.

# %%
excerpt("attention_exact.cu", "// s_j = tree32", "__syncthreads();  // the next tile")

# %% [markdown]
# ## Why the order survives
#
# Three sums have an order: the score over dimensions, `Z` over keys, the output over keys. The score is
# the same chain and tree as in the reference, only its operands come from shared memory. The output walks
# tiles in ascending history, and keys in ascending order inside a tile: one chain, as before.
#
# `Z` is the one that looks different. The reference adds with eight warps; here a row has one. So the warp
# plays the eight in turn: lane `l` of virtual warp `v` adds keys `32 v + l`, then `+ 256`, and so on. A
# virtual warp without keys holds +0, as an idle warp of the reference does.

# %%
caption = (
    "A sum over 300 keys: the same blocks joined by the same trees; only who adds them, and when, differs."
)
show(plots.virtual_warps(300), caption)

# %%
excerpt("attention_exact.cu", "float mine = 0.0f", "const float inverse")

# %% [markdown]
# ## The same tree inside one thread
#
# A shuffle for each step of the tree is what then limits the speed. The tree fixes which partial sums are
# added, not which thread does it or when. One thread that takes the leaves in bit-reversed order can join
# partial sums as a binary counter carries, with five of them alive, and no shuffle at all.

# %%
caption = (
    "Eight leaves for brevity: both trees add the same pairs. The number is the step at which it happens."
)
show(plots.tree_in_a_thread(8), caption)

# %%
excerpt("attention_fast.cuh", "// tree32 inside one thread", "int carries(int n)")

# %%
numbers = inputs.normalish(3, 0, (5000, 32))
assert_same_bits(scalar.tree32(numbers), tiles.counted_tree(numbers), "the tree inside one thread")
print(compare(scalar.tree32(numbers), tiles.counted_tree(numbers)))

# %% [markdown]
# The fast tiles do this for four (row, head) pairs and four keys at a time, so that every value of q and
# K that a thread loads is used four times from a register:

# %%
excerpt("attention_fast_scores.cuh", "const float4 q4 = load4", "sum[a][c] = e == 0")

# %% [markdown]
# ## Held by bits, the CUDA source itself
#
# `simt` runs these very kernels on the host. Pages are shuffled; slots that no position owns hold NaN, and
# so does the output before the launch: a value that is not written, or a key that is not the row's, shows.


# %%
def packed_case(heads, kv_heads, head_dim):
    slices = [Slice(i, p, n - p) for i, (n, p) in enumerate(zip(lengths, first_rows, strict=True))]
    return cases.make(lengths, heads, kv_heads, head_dim, slices, page_seed=7)


made = [packed_case(*geometry) for geometry in geometries]
expected = [tiles.run(case, simt, "reference") for case in made]
found = {name: [tiles.run(case, simt, name) for case in made] for name in variants}
for name, outputs in found.items():
    for e, a in zip(expected, outputs, strict=True):
        assert_same_bits(e, a, name)

# %%
rows = [
    (name, " / ".join(map(str, geometry)), a.size, compare(e, a).differing)
    for name, outputs in found.items()
    for geometry, e, a in zip(geometries, expected, outputs, strict=True)
]
table(("variant", "heads / kv heads / head_dim", "outputs", "differing bits"), rows)

# %% [markdown]
# ## What a tolerance does not see
#
# Online softmax keeps a running maximum and rescales what it has whenever the maximum moves. It needs no
# scores beyond one tile, and it is accurate. Those rescalings are roundings the contract does not have,
# and how many there are depends on the tile.

# %%
case = cases.make([online_length], 12, 3, 64, page_seed=2)
reference = case.run(cpu)
online = {f"tiles of {k} keys": case.run(cpu, f"online-k{k}") for k in (16, 64)}
errors = {name: np.abs(out.astype(np.float64) - reference) for name, out in online.items()}
allowed = ABSOLUTE + RELATIVE * np.abs(reference.astype(np.float64))
assert all((error <= allowed).all() for error in errors.values()), "online softmax left its tolerance"
moved = {name: compare(reference, out).differing for name, out in online.items()}
rows = [(n, errors[n].size, int((errors[n] > allowed).sum()), moved[n], errors[n].max()) for n in online]
assert all(moved.values()), "online softmax kept every bit: the comparison sees nothing"
table(("online softmax", "outputs", "outside the tolerance", "differing bits", "largest error"), rows)

# %%
caption = "Every element that differs: all lie under the tolerance, most are other bits."
show(plots.tolerance(reference, errors, ABSOLUTE, RELATIVE), caption)

# %% [markdown]
# The two online variants also differ from each other: change the tile size, and the bits change again.

# %%
print(compare(*online.values()))

# %% [markdown]
# ## The 25 shapes on a GPU
#
# Graph replay, trials in alternating order, all contenders in one run on the same inputs. torch's SDPA
# (f32, memory-efficient) gets K and V dense and repeated; shapes whose segments differ have no SDPA line.

# %%
path = root() / gpu_record
measured = tiles.measured(path, live, rounds)
if measured is None:
    print(f"No record at {gpu_record}; on a machine with a GPU set live = True to measure the shapes.")
else:
    caption = f"Time of one attention launch on {measured.where}, 12/3/64 heads."
    show(shape_plots.times(measured.samples), caption)

# %%
if measured is not None:
    ratio = {
        name: bracket(s["reference"]).median / bracket(s["auto"]).median
        for name, s in measured.samples.items()
    }
    least, most = min(ratio, key=ratio.get), max(ratio, key=ratio.get)
    print(f"auto against the reference: {ratio[least]:.1f}x on {least} to {ratio[most]:.1f}x on {most}")

# %% [markdown]
# One new row a request over a long history is another problem: each K and V is needed once, so the time to
# read them at the copy bandwidth is the floor. What lies above it is the chain of the values, which has an
# order: one dependent multiply-add for every position.

# %%
decode = tiles.measured(path, live, rounds, "attention-decode")
if decode is None:
    print(f"{gpu_record} holds no decode rows.")
else:
    caption = f"One row a request over 1,000 positions, on {decode.where}; heads / KV heads / head_dim."
    show(shape_plots.times(decode.samples), caption)

# %% [markdown]
# ## What is left of a pass
#
# With attention this short, where does a whole pass spend its time? CUDA events stand around every stage of
# the synthetic model of 12 layers. An interval with nothing in it takes time too, and each stage pays for one
# in every layer, so short stages look longer than they are inside a graph.

# %%
profiles = stage_plots.profiles(root() / stage_record)
if not profiles:
    print(f"No stage profile in {stage_record}; crucible bench model --device cuda --stages makes one.")
else:
    empty = max(one[stage_plots.EMPTY] for one in profiles.values())
    caption = (
        "Share of each stage in a pass, by events; requests x rows, in f32 and int8. "
        f"An empty interval shows up to {empty:.0f} µs."
    )
    show(stage_plots.stages(profiles), caption)

# %% [markdown]
# ## What we know now
#
# - Sharing changes who fetches and who adds; the sequence of every sum stays, and so does every bit.
# - A tile of 4 rows and 4 heads asks for up to 16 times fewer bytes than the reference.
# - One warp can stand for eight, and one thread for a whole tree.
# - A tolerance cannot tell online softmax from the contract; bits can.

# %%
pairs = [(e, a) for outputs in found.values() for e, a in zip(expected, outputs, strict=True)]
flat = [np.concatenate([pair[i].ravel() for pair in pairs]) for i in (0, 1)]
result = record.Record(
    kind="tiled-attention",
    claim="exact tiles that share K and V run on simt give the bits of the reference kernel",
    compared=f"attention outputs of {', '.join(found)} on simt against the reference, by bits",
    verdict="pass",
    differing=compare(*flat).differing,
    **record.counts(flat[1]),
    facts={
        "variants": len(found),
        "reference bytes / tile bytes, single-1024": four["single-1024"].reference / four["single-1024"].tile,
        **{f"online, {name}: differing": count for name, count in moved.items()},
        "online: compared": reference.size,
    },
    not_claimed=("speed on a GPU that has no record", "that online softmax is inaccurate"),
    environment=environment.capture("cpu, simt"),
)
record.publish(result, output_dir, "03_tiled_gqa")
