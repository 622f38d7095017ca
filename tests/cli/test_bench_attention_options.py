"""`crucible bench attention`: an option that a run would not read is refused before anything is timed."""

import pytest

CPU = ("--shape", "single-1", "--rounds", "1")
GPU = ("--device", "cuda")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((*CPU, "--heads", "9/3/64"), "--heads does nothing on cpu; leave it out or use --device cuda"),
        ((*CPU, "--variant", "exact"), "--variant does nothing on cpu; leave it out or use --device cuda"),
        ((*CPU, "--no-peers"), "--no-peers does nothing on cpu; leave it out or use --device cuda"),
        ((*CPU, "--flex", "16x16"), "--flex does nothing on cpu; leave it out or use --device cuda"),
        ((*GPU, "--threads", "2"), "--threads does nothing on cuda; leave it out or use --device cpu"),
        (("--part", "attention"), "--part does nothing without --full; add --full or leave --part out"),
        (("--table", "x"), "--table does nothing without --tune; add --tune or leave --table out"),
        ((*GPU, "--table", "x"), "--table does nothing without --tune; add --tune or leave --table out"),
        (("--tune",), "--tune measures a GPU; add --device cuda"),
    ],
)
def test_an_option_of_another_kind_of_run_is_refused(crucible, options, said):
    code, out, err = crucible("bench", "attention", *options)
    assert (code, out, err) == (2, "", f"error: {said}\n")


@pytest.mark.parametrize(
    ("run", "idle"),
    [
        (run, idle)
        for run, options in (
            (("--full",), ("--shape", "--variant", "--heads", "--flex")),
            (("--tune",), ("--shape", "--variant", "--json", "--full")),
            (("--counters", "c.json"), ("--json",)),
        )
        for idle in options
    ],
)
def test_full_tune_and_counters_refuse_what_they_do_not_read(crucible, run, idle, tmp_path):
    values = {"--full": (), "--heads": ("12/3/64",), "--json": (tmp_path / "b.json",)}
    options = (*GPU, *run, idle, *values.get(idle, ("1",)))
    code, out, err = crucible("bench", "attention", *options)
    assert (code, out) == (2, "")
    assert err == f"error: {idle} does nothing with {run[0]}; leave out one of them\n"


def test_full_and_counters_together_take_the_options_of_both(crucible, monkeypatch, tmp_path):
    monkeypatch.setattr("crucible.cli.bench_attention._full", lambda *given: print("full", given[0]))
    monkeypatch.setattr("crucible.cli.bench_attention.save_counters", lambda *given: print("counters"))
    both = ("--full", "--counters", tmp_path / "c.json", "--rounds", "3", "--part", "attention")
    assert crucible("bench", "attention", *GPU, *both) == (0, "full 3\ncounters\n", "")


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_timed(crucible):
    code, out, err = crucible("bench", "attention", *CPU, "--json", "README.md/x.json")
    assert code == 2 and not out and "is not a folder" in err
