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
# # Paged K/V: a page number is an address, never an operand
#
# **Question.** A request's keys and values lie scattered over pages of memory that it shares with
# strangers. Does it matter to the result which pages it got?
#
# **Answer.** No. A page table turns a position into a place, and the arithmetic only ever sees
# positions in order: with every page moved elsewhere, attention gives the same bits.

# %%
import numpy as np

from crucible import device
from crucible.errors import InputError
from crucible.evidence import environment, record
from crucible.kv.pool import PagePool
from crucible.kv.slices import Slice, pack
from crucible.kv.validation import validate
from crucible.numerics.bits import assert_same_bits, compare
from crucible.numerics.digest import digest
from crucible.report import cases
from crucible.report.explore import Explorer
from crucible.report.plots import layout
from crucible.report.plots.style import show
from crucible.report.tables import table

# %% tags=["parameters"]
lengths = [37, 5, 60]  # positions held by each request, three or more; they are called A, B, C, …
num_pages = 12  # physical pages in the pool, 16 positions each
page_seed = 3  # shuffles the order in which the second map hands out pages
heads = 6  # query heads
kv_heads = 2  # key/value heads; each serves heads / kv_heads query heads
head_dim = 64  # width of a head, a multiple of 32
output_dir = ""  # folder for this run's evidence record; empty: the record is only shown

# %%
cpu = device.get("cpu")
names = [layout.name(i) for i in range(len(lengths))]
pages_needed = [-(-n // 16) for n in lengths]
table(("request", "positions", "pages"), list(zip(names, lengths, pages_needed, strict=True)))

# %% [markdown]
# ## A pool of pages has owners, and the count always adds up
#
# A page holds 16 positions. Requests take whole pages and own them until they end; the last page of
# a request is usually not full. `check()` proves that every page is either free or has one owner.

# %%
pool = PagePool(num_pages)
for name, count in zip(names, pages_needed, strict=True):
    print(f"{name} owns pages {pool.allocate(count, name)}")
pool.check()
print(f"{pool.used} used + {pool.available} free = {num_pages}")

# %% [markdown]
# ## A table turns a position into a page and a slot
#
# Position `p` lives in page `table[p >> 4]`, slot `p & 15`. Nothing asks for neighbouring pages to
# be neighbours in memory, so here are two maps of the same requests: pages handed out in order, and
# the same pages after a shuffle.

# %%
in_order = cases.page_tables(lengths, num_pages)
shuffled = cases.page_tables(lengths, num_pages, page_seed)
rows = [
    (name, *(" ".join(map(str, tables[i, :n])) for tables in (in_order, shuffled)))
    for i, (name, n) in enumerate(zip(names, pages_needed, strict=True))
]
table(("request", "pages in order", "pages shuffled"), rows)

# %%
maps = {"Pages in order": in_order, "Pages shuffled": shuffled}
caption = "Two physical maps of the same requests; A2 is the third page of request A, pale slots are unused."
show(layout.pools(maps, lengths, num_pages), caption)

# %% [markdown]
# Move the sliders in JupyterLab to follow any position to its slot; elsewhere this is one position.

# %%
Explorer(
    lambda request, position: layout.lookup(
        shuffled, lengths, num_pages, request, min(position, lengths[request] - 1)
    ),
    "From a position through the page table to a page and a slot.",
    request=(names, len(names) - 1),
    position=(0, max(lengths) - 1, min(37, lengths[-1] - 1)),
)

# %% [markdown]
# ## Slices of requests share one batch of packed rows
#
# A batch holds whatever the scheduler chose: a piece of one prompt, one new token of another request.
# A slice is `(request, first position, length)`; packing lays the slices end to end and describes
# each segment by four integers.

# %%
third = lengths[2] // 3
slices = [Slice(0, 0, lengths[0] // 3), Slice(1, lengths[1] - 1, 1), Slice(2, third, third)]
packed = pack(slices)
heading = ("packed_start", "chunk_len", "absolute_start", "table_index")
table(heading, packed.desc.tolist(), "Descriptors of the packed segments (int32)")

# %%
caption = "Each packed row sees its own request's keys up to its own position; its neighbours do not exist."
show(layout.packed(packed.desc, packed.positions, lengths), caption)

# %% [markdown]
# ## Malformed metadata is refused before any device access
#
# A kernel trusts its descriptors: it cannot check them without paying for it in every thread. So the
# host does, and says which value broke which rule.

# %%
rules = dict(num_pages=num_pages, rows=packed.rows, capacity=16 * in_order.shape[1])


def refusal(segment, field, value):
    desc = packed.desc.copy()
    desc[segment, field] = value
    try:
        validate(desc, in_order, **rules)
    except InputError as error:
        return str(error)


broken = [(0, 1, 0), (2, 0, 5), (1, 3, 9), (2, 2, -1), (2, 2, lengths[2])]
table(
    ("segment", "field", "value", "refused with"),
    [(s, heading[f], v, refusal(s, f, v)) for s, f, v in broken],
)

# %% [markdown]
# ## The same attention over both maps, bit for bit
#
# Every slot that no position owns holds NaN. If a single one of them entered the arithmetic, even
# times zero, the output would show it.

# %%
geometry = dict(heads=heads, kv_heads=kv_heads, head_dim=head_dim, num_pages=num_pages)
first = cases.make(lengths, slices=slices, **geometry)
second = cases.make(lengths, slices=slices, page_seed=page_seed, **geometry)
expected, moved = first.run(cpu), second.run(cpu)
assert_same_bits(expected, moved, "attention over shuffled pages")
same = compare(expected, moved)
print(f"pools hold {np.isnan(first.kpool).mean():.0%} NaN; outputs hold {same.nan} NaN")
print(f"{same.elements:,} elements, {same.differing:,} differing")

# %% [markdown]
# And alone instead of packed: each request's rows carry the digest that they have in company.

# %%
rows = []
for i, piece in enumerate(slices):
    alone = cases.make(lengths, slices=[piece], page_seed=page_seed + 1 + i, **geometry)
    rows.append(
        (names[i], digest(cases.only(first, expected, i)), digest(cases.only(alone, alone.run(cpu), i)))
    )
assert all(packed_digest == alone_digest for _, packed_digest, alone_digest in rows)
table(("request", "packed, pages in order", "alone, other pages"), rows)

# %% [markdown]
# ## What we know now
#
# - A position's address is `table[p >> 4]`, slot `p & 15`; pages need no order and no adjacency.
# - A packed batch is described by four integers a segment, all checked on the host.
# - Attention over shuffled pages, and alone instead of packed, gives the same bits.

# %%
result = record.Record(
    kind="layout",
    claim="attention does not depend on which physical pages a request got",
    compared="cpu attention over pages in order and over shuffled pages, by bits",
    verdict="pass",
    differing=same.differing,
    **record.counts(moved),
    facts={"requests": len(lengths), "pages": num_pages, "rows": packed.rows, "digest": digest(moved)},
    not_claimed=("speed of paged access",),
    environment=environment.capture("cpu"),
)
record.publish(result, output_dir, "01_paged_layout")
