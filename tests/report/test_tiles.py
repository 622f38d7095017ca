"""What notebook 03 counts and reads: bytes of a tile, the tree of one thread, a record of times."""

from crucible.evidence import record
from crucible.numerics import inputs, scalar
from crucible.numerics.bits import assert_same_bits
from crucible.report import tiles

GEOMETRY = dict(Hq=12, Hkv=3, D=64)


def test_a_tile_reads_what_its_longest_row_reads():
    segments = ((63, 17), (0, 5))
    found = tiles.reads(segments, 4, **GEOMETRY)
    ends = [67, 71, 75, 79, 80, 4, 5]
    rows = sum(range(64, 81)) + sum(range(1, 6))
    assert found == tiles.Reads(12 * rows * 512, 3 * sum(ends) * 512, 3 * 85 * 512)


def test_a_tile_of_one_row_shares_among_its_heads_alone():
    found = tiles.reads(((9, 30),), 1, **GEOMETRY)
    assert found.reference == 4 * found.tile


def test_the_tree_of_one_thread_has_the_bits_of_tree32():
    numbers = inputs.normalish(1, 0, (500, 32))
    assert_same_bits(scalar.tree32(numbers), tiles.counted_tree(numbers))


def test_times_are_read_by_shape_and_contender(tmp_path):
    path = tmp_path / "attention.json"
    assert tiles.measured(path) is None
    series = [
        record.Series(f"4x64: {n}", "us", (1.0, 2.0)) for n in ("auto", "torch flash bf16", "reference")
    ]
    bench = record.Record("bench.attention", "times", "all", "measured", samples=tuple(series))
    record.save(path, [bench])
    assert tiles.measured(path).samples == {"4x64": {"reference": (1.0, 2.0), "auto": (1.0, 2.0)}}


def test_decode_rows_stand_beside_one_read_of_keys_and_values(tmp_path):
    series = (
        record.Series("device copy", "GB/s", (4000.0,)),
        record.Series("decode at 9/3/64: auto", "us", (10.0, 12.0, 14.0)),
    )
    facts = {"decode at 9/3/64: auto, K/V reads": 1.5}
    made = record.Record("bench.attention-decode", "t", "x", "measured", facts=facts, samples=series)
    path = record.save(tmp_path / "attention.json", [made])
    found = tiles.measured(path, part="attention-decode").samples
    assert found == {"decode at 9/3/64": {"auto": (10.0, 12.0, 14.0), tiles.READ: (8.0,)}}
    assert tiles.measured(path) is None
