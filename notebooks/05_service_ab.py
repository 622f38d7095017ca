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
# # Service A/B: may this kernel replace that one?
#
# **Question.** Two attention kernels give the same bits. Which one should serve, and how would we know?
#
# **Answer.** Both serve the same requests from fresh processes, in alternating rounds. One changed token
# refuses the candidate at once. The rest is decided by paired changes of what a client sees, beside the
# state of the machine.

# %%
from dataclasses import replace

from crucible import device as devices
from crucible.bench import ab_record, ab_statistics, ab_verdict, ab_workloads, sweep
from crucible.bench.ab_runs import Broken, Campaign, Oracle
from crucible.evidence import record
from crucible.model.fetch import SOURCES, fetch
from crucible.report import service_ab, service_sweep
from crucible.report.plots import service as plots
from crucible.report.plots.style import show
from crucible.report.tables import table
from crucible.service.load import client
from crucible.service.load.samples import FORMULAS
from crucible.service.started import Side, arguments, own_build

# %% tags=["parameters"]
baseline = "reference"  # attention of the baseline
candidate = "auto"  # attention of the candidate
model_name = "synthetic-2x64"  # a known model, a GGUF file or a checkpoint folder
mode = "f32"  # f32 or int8
device_name = "cpu"  # cpu, simt, cuda or auto
quick = True  # the small set of workloads; false: the standard set
tokens = 16  # tokens that each request generates
stream = 400  # tokens of the running stream in the small set
bursts = 2  # timed bursts a workload and round
rounds = 3  # rounds, a fresh process a side each
budgets = [128, 32]  # prefill budgets of the sweep, the control first
caps = [16]  # chunk caps of the sweep, under the control's budget
sweep_rounds = 1  # rounds of the sweep
output_dir = ""  # folder for this run's evidence record; empty: the record is only shown

# %%
if model_name in SOURCES:
    fetch(model_name)
device = devices.get(device_name).name
build, common = own_build(), arguments(model_name, mode, device)
known = ab_workloads.quick(tokens, bursts, stream) if quick else ab_workloads.standard(tokens, bursts)
rows = [(w.name, len(w.lengths), max(w.lengths), w.tokens, w.stream or "") for w in known]
table(("workload", "requests", "longest prompt", "tokens each", "tokens of a running stream"), rows)

# %% [markdown]
# ## A live service, and a prompt that arrives
#
# A stream runs; after its eighth token the others are sent. Each mark is a token at the moment when it
# reached the client. While a prompt is computed, the stream waits: that gap is what a policy trades.

# %%
arriving = next(w for w in known if w.stream)
with Side("live", build, common).running() as server:
    log = client.Log()
    timed = [
        client.wait(client.run(server.target, arriving.asks(i), log, i, warmup=i == 0)) for i in range(2)
    ]
for sample in timed[-1]:
    print(sample.label, sample.prompt_tokens, "tokens in,", len(sample.times), "out, digest", sample.digest)
assert all(sample.good for burst in timed for sample in burst)

# %% tags=["nbval-ignore-output"]
show(plots.arrivals(timed[-1]), "Tokens as they reach the client; a request's bar ends at its first token.")

# %% [markdown]
# ## The formulas
#
# All of these are times at the client, over HTTP. Kernel, stage and replay times are other quantities and
# stand in other notebooks.

# %%
table(("name", "formula"), FORMULAS.items())

# %% [markdown]
# ## One changed token
#
# Equality is checked burst by burst. This is what a candidate hears whose kernel changes one token.

# %%
oracle = Oracle()
oracle.hold("baseline in round 1", arriving.name, timed[-1])
last = timed[-1][-1]
wrong = replace(last, tokens=(*last.tokens[:5], last.tokens[5] + 1, *last.tokens[6:]))
try:
    oracle.hold("candidate in round 1", arriving.name, [*timed[-1][:-1], wrong])
except Broken as error:
    print("refused:", error)

# %% [markdown]
# ## Baseline and candidate
#
# Rounds alternate: A B, B A, A B. Every run is a fresh process with the same arguments but the attention.

# %%
sides = [
    Side(f"{name}{note}", build, (*common, "--attention", name))
    for name, note in ((baseline, ""), (candidate, " again" if candidate == baseline else ""))
]
campaign = Campaign(sides, known).run(rounds)
assert not campaign.broken, campaign.broken
print(f"{campaign.oracle.compared:,} tokens compared with the first run's, none differs")

# %% tags=["nbval-ignore-output"]
changes_timed = ab_statistics.rows(*(campaign.of(side.name) for side in sides))
print(ab_verdict.verdict(campaign, changes_timed, rounds))
service_ab.comparison(changes_timed, *(side.name for side in sides))

# %% tags=["nbval-ignore-output"]
caption = "Gain of every pair, and the interval of the median; green: improved, red: worse, grey: neither. {}"
show(plots.changes(changes_timed, sides[1].name), caption.format("Times at the client."))

# %% [markdown]
# The machine beside it. A run that leaves the bounds is marked, and the verdict is then a refusal: nothing is
# averaged away.

# %% tags=["nbval-ignore-output"]
service_ab.envelopes(campaign)  # readings timed through each run

# %% [markdown]
# ## What a policy trades
#
# The prefill budget bounds the prompt rows of a step, and the cap those of one request. Small ones keep the
# gaps of a running stream short and let newcomers wait longer. Tokens do not depend on them.

# %%
policies = sweep.policies(budgets, caps)
trial = Campaign(sweep.sides(policies, build, common), sweep.workloads(quick, tokens, bursts, stream))
trial.run(sweep_rounds)
assert not trial.broken, trial.broken
print(f"{trial.oracle.compared:,} tokens compared over {len(policies)} policies, none differs")

# %% tags=["nbval-ignore-output"]
trades_timed = sweep.trades(trial)
print(sweep.reason(trial, trades_timed))
service_sweep.tradeoffs(trial)

# %% tags=["nbval-ignore-output"]
caption = (
    "Each point is a policy, bars the range of its rounds; left is sooner, lower is calmer (times in ms)."
)
show(plots.tradeoff(trades_timed, sweep.arrival(trial)), caption)

# %% [markdown]
# ## What we know now
#
# - A candidate is refused for one changed token, whatever its speed.
# - Three rounds agree by chance once in four times, so a change counts only if the pairs within them agree.
# - A policy moves time between those who arrive and those who run. It moves no token.

# %% tags=["nbval-ignore-output"]
facts = {"model": model_name, "mode": mode, "set": "quick" if quick else "standard"}
ab_timed = ab_record.to_record(campaign, changes_timed, rounds, device, facts=facts)
sweep_timed = sweep.to_record(trial, sweep_rounds, device, facts)
record.publish([ab_timed, sweep_timed], output_dir, "05_service_ab")
