"""Parameter sets (params/*.yaml): read, check every name and type, choose the one for this machine."""

from collections.abc import Mapping
from pathlib import Path

from crucible.errors import InputError
from crucible.files import read_text
from crucible.report.notebooks import Literal, Notebook, Parameter, parameters, root, suggest

COMMON = "common"
# Where a record goes and which ones are summed up is the report's own business.
OWN = ("output_dir", "evidence_path")
# The driver fills these in for every notebook that has them: the run's folder, its evidence so far, and the
# committed records of named machines. A notebook works in the run's folder, so its copy and the report name
# no place of this machine.
DRIVER_FILLED = {
    "output_dir": ".",
    "evidence_path": "evidence.json",
    "machines": ["outputs/h200", "outputs/cpu-2core"],
}


def fitting() -> Path:
    """params/gpu.yaml where NVML shows an NVIDIA GPU, else params/cpu.yaml."""
    from crucible.evidence.envelope import gpu

    return root() / "params" / ("gpu.yaml" if gpu() else "cpu.yaml")


def read_set(path: Path) -> dict[str, dict[str, Literal]]:
    """A parameter set as {notebook stem or "common": {name: value}}, its shape checked but not its names."""
    import yaml

    class Once(yaml.SafeLoader):
        """Refuses a name that stands twice, of which YAML's readers drop one in silence."""

        def construct_mapping(self, node, deep=False):
            names = [self.construct_object(key, deep=True) for key, _ in node.value]
            if twice := [name for at, name in enumerate(names) if name in names[:at]]:
                raise InputError(f"{path}: {twice[0]} stands twice; leave one of the two out")
            return super().construct_mapping(node, deep)

    try:
        body = yaml.load(read_text(path), Once) or {}
    except yaml.YAMLError as error:
        raise InputError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(body, dict) or not all(isinstance(v, dict | None) for v in body.values()):
        raise InputError(f"{path} must map notebook names (or common) to `parameter: value` lines")
    return {str(k): v or {} for k, v in body.items()}


def resolve(
    values: Mapping[str, Mapping[str, Literal]], notebooks: list[Notebook], where: str = "parameter set"
) -> dict[str, dict[str, Literal]]:
    """The values each notebook gets, by stem.

    Raises InputError for a section that is no notebook, a name that its notebook does not have (with
    the nearest names), a common name that no notebook has, a name that the report fills in itself, or a
    value of another type than the default.
    """
    known = {n.stem: parameters(n) for n in notebooks}
    for section in values:
        if section != COMMON and section not in known:
            raise InputError(f"{where}: no notebook {section!r}{suggest(section, [*known, COMMON])}")
    for section, names in values.items():
        if own := [name for name in OWN if name in names]:
            raise InputError(f"{where}: {section} sets {own[0]}, which the report sets itself; leave it out")
    everything = {name for found in known.values() for name in found}
    for name in values.get(COMMON, {}):
        if name not in everything:
            raise InputError(f"{where}: no notebook has a parameter {name!r}{suggest(name, everything)}")
    resolved = {}
    for stem, found in known.items():
        own = values.get(stem, {})
        for name in own:
            if name not in found:
                raise InputError(f"{where}: {stem} has no parameter {name!r}{suggest(name, found)}")
        common = {k: v for k, v in values.get(COMMON, {}).items() if k in found}
        resolved[stem] = {k: _typed(found[k], v, f"{where}: {stem}") for k, v in {**common, **own}.items()}
    return resolved


def filled(notebook: Notebook, values: Mapping[str, Literal]) -> dict[str, Literal]:
    """The values that a notebook is run with: what the driver fills in, then `values`."""
    known = parameters(notebook)
    return {**{k: v for k, v in DRIVER_FILLED.items() if k in known}, **values}


def _typed(parameter: Parameter, value: Literal, where: str) -> Literal:
    default = parameter.default
    if isinstance(default, float) and type(value) is int:
        return float(value)
    if default is not None and type(value) is not type(default):
        raise InputError(
            f"{where}: parameter {parameter.name} must be {type(default).__name__} like its default "
            f"{default!r}, got {value!r}"
        )
    return value
