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
# # Results: what the evidence says
#
# **Question.** Which claims were checked, on how much data, on which machine, and which of them hold?
#
# **Answer.** Those whose row says `pass`. This notebook runs no model and no kernel: it reads evidence
# files and compiles the kernels for their resources. In a report it reads the records that the other
# notebooks have just written and the committed ones of named machines; on its own it reads small committed
# examples. The record that it leaves itself is no claim.

# %%
from pathlib import Path

from IPython.display import display

from crucible.evidence import environment, record
from crucible.evidence.statistics import bracket
from crucible.report import assemble, drift_rates, gate_table, resources, services, speeds, verdicts
from crucible.report.gathered import gather, machines_table
from crucible.report.notebooks import root
from crucible.report.plots import results, shapes
from crucible.report.plots.style import show
from crucible.report.tables import or_not_run, table

# %% tags=["parameters"]
# evidence file of this run; empty: the committed example, notebooks/fixtures/evidence.json
evidence_path = ""
# folders with the records of named machines, from the checkout's root
machines = ["outputs/h200", "outputs/cpu-2core"]
output_dir = ""  # folder for this run's evidence record; empty: the record is only shown

# %%
path = Path(evidence_path) if evidence_path else root() / "notebooks/fixtures/evidence.json"
everything = [one for one in gather(path, machines) if one.record.kind != assemble.SUMMARY]
committed = [one for one in everything if one.machine != "this run"]
records = assemble.claims(record.load(path))

# %% [markdown]
# ## Verdict

# %%
origin = "This run" if evidence_path else "The committed example of a run"
print(f"{origin}: {assemble.tally(records)}.")
print(f"Gates: {gate_table.verdict_sentence(everything)}")

# %% [markdown]
# ## Gates and their counts
#
# A pass means: outputs finite, not all zero, and no differing bit, or a stated bound. A record that says
# otherwise about itself does not load. A gate without a record has a row that says `not run`.

# %%
gate_table.gates_table(everything)

# %% [markdown]
# ## What was measured where
#
# Each record keeps the commit that made it. Folders are those of the checkout; `this run` is what the
# notebooks have just written.

# %%
machines_table(everything)

# %% [markdown]
# ## Every claim of this run with its verdict

# %%
assemble.claims_table(records)

# %%
show(
    results.compared(records),
    "Elements compared by each claim; green passes, red fails, blue was measured or is decided by times.",
)

# %% [markdown]
# ## Every claim of the gates

# %%
gate_table.claims_table(committed)

# %% [markdown]
# ## Attention, shape by shape
#
# One launch by graph replay, in the same run on the same inputs; `auto` is the exact variant that the table
# of choices names. The columns after the range say how many times longer the others take: below 1 the
# other is faster. `torch flash bf16` computes in 16 bits, the rest in f32.

# %%
timed = speeds.shape_samples(committed)
if timed:
    show(shapes.times(timed), "Time of one attention launch by shape, in microseconds.")
or_not_run(speeds.shapes_table(committed), speeds.ATTENTION)

# %% [markdown]
# ## Stages of a pass
#
# Events around every stage, then a replayed graph, then the host's wall: three clocks, three tables. An empty
# interval is what two events show with nothing between them.

# %%
for one in speeds.stage_tables(committed):
    display(or_not_run(one, speeds.STAGES))

# %% [markdown]
# ## Whole models, beside other engines
#
# The peers compute other arithmetics; the record says which. A ratio above 1 says that ours is faster.

# %%
display(or_not_run(speeds.models_table(committed, ("tok/s", "tokens/s")), speeds.MODELS_CPU))
display(or_not_run(speeds.models_table(committed, ("ms",), ", device"), speeds.MODELS_GPU))
display(or_not_run(speeds.models_table(committed, ("ms",), ", wall"), speeds.MODELS_GPU))

# %% [markdown]
# ## Service: one attention against another
#
# Two servers with the same arguments, alternating rounds, output equality checked in every one. All times
# are those of an HTTP client.

# %% tags=["times"]
for one in services.sections(everything, services.AB):
    display(one)

# %% [markdown]
# ## Service: the policy of the scheduler
#
# What an arriving request waits for its first token, against the worst gap it makes in a running stream.

# %% tags=["times"]
for one in services.sections(everything, services.SWEEP):
    display(one)
trade_offs = services.trade_offs(everything)
if trade_offs:
    show(results.trade_offs(trade_offs), "Policies by arrival TTFT and worst gap, in milliseconds.")

# %% [markdown]
# ## Service: the gate, the load client, and the service beside the bare engine

# %%
for unit in ("tok/s", "ms, p50"):
    found = speeds.models_table(committed, (unit,), kinds=speeds.SERVICE)
    display(or_not_run(found, speeds.MODELS_HTTP))

# %% tags=["times"]
for kind in (services.GATE, services.LOAD, services.CHECK):
    for one in services.sections(everything, kind):
        display(one)

# %% [markdown]
# ## Drift: how often a token flips
#
# Flip mass is the exact measure of the draws whose token differs, with a 95 % interval over prompts. The
# first table is of the drift gate, the second of this run's notebook.

# %%
display(or_not_run(drift_rates.rates_table(committed), "crucible gate drift --json FILE"))
display(or_not_run(drift_rates.masses_table(everything), "crucible report --only 04"))

# %% [markdown]
# ## The numbers behind this run's claims

# %% tags=["times"]
facts = [
    (item.kind, name, assemble.render_fact(value))
    for item in records
    if item.kind not in services.COMMANDS
    for name, value in item.facts.items()
]
table(("record", "fact", "value"), facts)

# %% [markdown]
# ## Samples measured by this run
#
# Every sample that was taken is drawn, none is dropped; the tick is the median, the bar runs from the
# smallest to the largest. Times of a shared machine carry its noise.

# %% tags=["times"]
series = [one for item in records if item.kind not in services.COMMANDS for one in item.samples]
spread = [(one.name, one.unit, (b := bracket(one.values)).median, b.low, b.high, b.samples) for one in series]
display(table(("series", "unit", "median", "minimum", "maximum", "samples"), spread))
for unit in dict.fromkeys(one.unit for one in series):
    same_unit = [one for one in series if one.unit == unit]
    show(results.brackets(same_unit), f"Raw samples in {unit} with median and minimum to maximum.")

# %% [markdown]
# ## What the compiler makes of the CUDA kernels
#
# NVRTC compiles without a GPU. This is the code for an H200 (sm_90), each file with its default macros.

# %%
resources.kernel_table()

# %% [markdown]
# ## Where this run ran

# %%
assemble.environment_table(records)

# %% [markdown]
# ## What is not claimed

# %%
for line in dict.fromkeys(line for one in everything for line in one.record.not_claimed):
    print(f"- {line}")

# %% [markdown]
# ## How to make each line again
#
# The run itself: `crucible report --params params/NAME.yaml`, one notebook of it: `--out FOLDER --only 04`.
# A command of the first table keeps its records with `--json FILE`.

# %%
display(gate_table.commands_table(everything))
table(("table of times", "command"), speeds.COMMANDS)

# %% [markdown]
# ## What we know now
#
# - The tables of gates and claims are the whole of what was checked; each row can be traced to a record in an
#   evidence file, with the commit, the kernel sources' digest and the machine.
# - What says `not run` is not known. What says `fail` is a claim that does not hold there. What says
#   `by times` was accepted or refused for its times, as the section of services tells.
# - Nothing here was typed in: change a record and this page changes.

# %%
failed = [item.claim for item in records if item.verdict == "fail"]
summary = record.Record(
    kind=assemble.SUMMARY,
    claim=f"{assemble.tally(records)}{f': {failed[0]}' if failed else ''}",
    compared="verdicts of all other records",
    verdict="fail" if failed else "measured",
    facts=verdicts.count(records),
    environment=environment.capture("cpu"),
)
record.publish(summary, output_dir, "06_results")
