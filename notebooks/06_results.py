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
# # Results: what the evidence says
#
# **Question.** Which claims were checked, on how much data, on which machine, and which of them hold?
#
# **Answer.** Those whose row says `pass`. This notebook runs no model and no kernel: it reads evidence
# files and compiles the kernels for their resources. In a report it reads the records that the other
# notebooks have just written; on its own it reads a small committed example. The record that it leaves
# itself is no claim.

# %%
from pathlib import Path

from IPython.display import display

from crucible.evidence import environment, record
from crucible.evidence.statistics import bracket
from crucible.report import assemble, resources
from crucible.report.notebooks import root
from crucible.report.plots import results
from crucible.report.plots.style import show
from crucible.report.tables import table

# %% tags=["parameters"]
evidence_path = ""  # evidence file to show; empty: the committed example, notebooks/fixtures/evidence.json
bench_path = ""  # whole-model benchmark record; empty: the committed outputs/cpu-2core/bench.json
output_dir = ""  # folder for this run's evidence record; empty: the record is only shown

# %%
path = Path(evidence_path) if evidence_path else root() / "notebooks/fixtures/evidence.json"
records = assemble.claims(record.load(path))
origin = "the run" if evidence_path else "the committed example"
print(f"{assemble.counted(len(records), 'record')} from {origin}: {assemble.tally(records)}")

# %% [markdown]
# ## Every claim with its verdict
#
# A pass means: outputs finite, not all zero, and no differing bit. A record that says otherwise about
# itself does not load.

# %%
assemble.claims_table(records)

# %%
show(
    results.compared(records),
    "Elements compared by each claim; green passes, red fails, blue was only measured.",
)

# %% [markdown]
# ## The numbers behind the claims

# %%
facts = [
    (item.kind, name, assemble.render_fact(value)) for item in records for name, value in item.facts.items()
]
table(("record", "fact", "value"), facts)

# %% [markdown]
# ## Measured samples
#
# Every sample that was taken is drawn, none is dropped; the tick is the median, the bar runs from the
# smallest to the largest. Times of a shared machine carry its noise.

# %%
series = [one for item in records for one in item.samples]
spread = [(one.name, one.unit, (b := bracket(one.values)).median, b.low, b.high, b.samples) for one in series]
display(table(("series", "unit", "median", "minimum", "maximum", "samples"), spread))
for unit in dict.fromkeys(one.unit for one in series):
    same_unit = [one for one in series if one.unit == unit]
    show(results.brackets(same_unit), f"Raw samples in {unit} with median and minimum to maximum.")

# %% [markdown]
# ## Whole-model speed, beside other engines
#
# Measured once on a named machine and committed, not by this run. The peers compute other arithmetics;
# the record says which.

# %%
bench = Path(bench_path) if bench_path else root() / "outputs/cpu-2core/bench.json"
speeds = record.load(bench) if bench.exists() else []
resources.speed_table(speeds)

# %% [markdown]
# ## What the compiler makes of the CUDA kernels
#
# NVRTC compiles without a GPU. This is the code for an H200 (sm_90), each file with its default macros.

# %%
resources.kernel_table()

# %% [markdown]
# ## Where it ran

# %%
assemble.environment_table(records)

# %% [markdown]
# ## What is not claimed

# %%
for line in dict.fromkeys(line for item in records for line in item.not_claimed):
    print(f"- {line}")

# %% [markdown]
# ## What we know now
#
# - The table of claims is the whole of what was checked; each row can be traced to a record in the
#   evidence file, with the commit, the kernel sources' digest and the machine.
# - Nothing here was typed in: change a record and this page changes.

# %%
failed = [item.claim for item in records if item.verdict == "fail"]
summary = record.Record(
    kind=assemble.SUMMARY,
    claim=f"{assemble.tally(records)}{f': {failed[0]}' if failed else ''}",
    compared="verdicts of all other records",
    verdict="fail" if failed else "measured",
    facts={name: sum(item.verdict == name for item in records) for name in record.VERDICTS},
    environment=environment.capture("cpu"),
)
record.publish(summary, output_dir, "06_results")
