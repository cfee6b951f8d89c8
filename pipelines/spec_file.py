"""From a YAML file to a RunSpec, with errors that name the file, the line, the field and the nearest valid name.

Read as YAML 1.2's core schema, not PyYAML's 1.1: `1e-5` is a number, `on` and `no` are text, `010` is ten and `1:30` is
text. Values are never converted: `"5"` is no number and `true` is no count.
"""

import difflib
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from pipelines.spec import RunSpec
from sandboxes.declared import Declared
from transforms.grade.rubric import RubricSpec

SHIPPED = Path(__file__).parent / "specs"
"""Folder of the specs that come with Headrace; each can be run by its bare name."""

_REFERENCES = (("tasks", "train"), ("tasks", "heldout"), ("policy", "model"))
_DEEPEST = 8
_TAG = "tag:yaml.org,2002:"
_SCALARS = {
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
}

Location = tuple[str | int, ...]


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - add_implicit_resolver copies it for each class


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - add_implicit_resolver copies it for each class


for _name, (_pattern, _first) in _SCALARS.items():
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(_TAG + _name, re.compile(f"^(?:{_pattern})$"), _first)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a spec."""

    where: str
    """`file:line`, `file`, or the `--set` argument."""
    message: str
    hint: str | None = None


class SpecError(Exception):
    """A spec that cannot be run. Its text is an `error:` and `hint:` block for each problem, in the file's order."""

    def __init__(self, problems: list[Problem]) -> None:
        blocks = []
        for problem in problems:
            blocks.append(f"error: {problem.where}: {problem.message}")
            if problem.hint:
                blocks.append(f"hint: {problem.hint}")
        super().__init__("\n\n".join(blocks))
        self.problems = problems


def load_spec(path: Path, overrides: list[str]) -> RunSpec:
    """Read a spec and apply overrides such as `training.lr=2e-5`, whose values are YAML. Raises SpecError.

    `paths.home` comes back absolute. Other file references stay as written, relative to the spec's folder, so that a
    spec's hash does not depend on where it lies; those given by an override are made absolute from the current folder.
    """
    source = _Source(path)
    source.read()
    for override in overrides:
        source.override(override)
    found = list(source.problems)
    spec = None
    if isinstance(source.data, dict):
        try:
            # JSON in strict mode is what YAML means: lists for tuples and text for paths pass, conversions do not.
            spec = RunSpec.model_validate_json(json.dumps(source.data), strict=True)
        except ValidationError as error:
            # What could not be read was read as null: a second complaint about the same line would only confuse.
            read = {problem.where for problem in found}
            unfit = (source.problem(detail) for detail in error.errors(include_url=False))
            found += [problem for problem in unfit if problem.where not in read]
    if found or spec is None:
        raise SpecError(sorted(found, key=source.order))
    if spec.paths.home is not None:
        from pipelines.home import home_at

        base = Path.cwd() if ("paths", "home") in source.overridden else path.parent
        home = str(home_at(source.where(("paths", "home")), spec.paths.home, base))
        spec = spec.model_copy(update={"paths": spec.paths.model_copy(update={"home": home})})
    return spec


def load_rubric(path: Path) -> RubricSpec:
    """Read a rubric on its own: its weights, or a spec, of which only the section `rubric` counts. Raises SpecError."""
    source = _Source(path)
    source.read("rubric")
    unknown = [key for key in source.data if key not in RunSpec.model_fields]
    found = [Problem(source.where((key,)), f"unknown key `{key}`", _nearest(("rubric", key), 1)) for key in unknown]
    found += source.problems
    try:
        rubric = RubricSpec.model_validate_json(json.dumps(source.data["rubric"]), strict=True)
        if not found:
            return rubric
    except ValidationError as error:
        details = error.errors(include_url=False)
        found += [source.problem({**detail, "loc": ("rubric", *detail["loc"])}) for detail in details]
    if ("rubric",) not in source.lines:  # then no key of the file is below that
        said = [
            (p.where, p.message.replace("`rubric.", "`"), p.hint and p.hint.replace("`rubric.", "`")) for p in found
        ]
        found = [Problem(*each) for each in said]
    raise SpecError(sorted(found, key=source.order))


def find_spec(name: str) -> Path:
    """The file that `name` stands for: a path, or the bare name of a shipped spec. Raises SpecError."""
    path = Path(name)
    if path.exists() or path.suffix or len(path.parts) > 1:
        return path
    shipped = sorted(file.stem for file in SHIPPED.glob("*.yaml"))
    if name in shipped:
        return SHIPPED / f"{name}.yaml"
    close = difflib.get_close_matches(name, shipped, n=1)
    hint = f"did you mean `{close[0]}`?" if close else f"the shipped specs are {_listed(shipped)}"
    raise SpecError([Problem(name, "no such file, and no shipped spec of that name", hint)])


def resolved_yaml(spec: RunSpec) -> str:
    """The whole spec with every default written out; loading it gives the same spec."""
    return yaml.dump(spec.model_dump(mode="json"), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


MAKES_NO_ROWS: dict[str, Any] = {
    **dict.fromkeys(("paths", "quality", "lake"), True),
    "engine": {"port", "startup_timeout_s", "request_timeout_s", "memory_fraction"},
    "sandbox": {"parallel", "attempts", "pool", "hosts", "token_file"},
    "training": {"keep_checkpoints"},
}
"""Settings that may change while a run goes on: where results go, what judges rows, how much of the machine is used and
how long it is waited for. None of them changes what a finished row says."""


def spec_hash(spec: RunSpec) -> str:
    """SHA-256, in hex, of the canonical JSON of what makes a run's rows: the spec without `MAKES_NO_ROWS`."""
    record = spec.model_dump(mode="json", exclude=MAKES_NO_ROWS)
    return hashlib.sha256(json.dumps(record, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@dataclass
class _Source:
    """The spec's plain data, and where each part of it stands."""

    path: Path
    data: Any = None
    problems: list[Problem] = field(default_factory=list)
    lines: dict[Location, int] = field(default_factory=dict)
    overridden: dict[Location, str] = field(default_factory=dict)

    def read(self, section: str | None = None) -> None:
        """Fill data, lines and problems from the file. Raises SpecError where nothing more can be said.

        With `section` the file may hold that one alone, without its key.
        """
        try:
            node = yaml.compose(self.path.read_bytes(), Loader=_Loader)
        except OSError as error:
            missing = isinstance(error, FileNotFoundError) and section is None
            hint = "`headrace run quickstart` runs the shipped spec" if missing else None
            raise SpecError([Problem(str(self.path), error.strerror or str(error), hint)]) from error
        except yaml.YAMLError as error:
            raise SpecError([self._broken(error)]) from error
        if not isinstance(node, yaml.MappingNode):
            empty = node is None or node.value == ""
            what = "the file is empty" if empty else f"a {section or 'spec'} is a mapping of keys to values"
            hint = f"start from {f'the section `{section}`' if section else 'a copy'} of the shipped quickstart.yaml"
            raise SpecError([Problem(str(self.path), what, hint)])
        alone = section is not None and section not in [key.value for key, _ in node.value]
        self.data = {section: self._build(node, (section,))} if alone else self._build(node, ())

    def override(self, text: str) -> None:
        """Apply one `--set`."""
        where = f"--set {text}"
        dotted, equals, value = text.partition("=")
        if not equals or not dotted:
            self.problems.append(Problem(where, "must look like `key.subkey=value`", "e.g. --set training.lr=2e-5"))
            return
        loc = tuple(dotted.split("."))
        for depth, key in enumerate(loc):
            model = _model_at(loc[:depth])
            if model is None:
                self.problems.append(Problem(where, f"`{'.'.join(loc[:depth])}` has no keys of its own"))
                return
            if key not in model.model_fields:
                self.problems.append(
                    Problem(where, f"unknown key `{'.'.join(loc[: depth + 1])}`", _nearest(loc, depth))
                )
                return
        try:
            node = yaml.compose(value, Loader=_Loader)
        except yaml.YAMLError as error:
            self.problems.append(Problem(where, f"the value is not YAML: {_reason(error)}", "quote it"))
            return
        self.overridden[loc] = where
        parent = self.data
        for key in loc[:-1]:
            if not isinstance(parent.get(key), dict):
                parent[key] = {}
            parent = parent[key]
        plain = self._build(node, loc) if node is not None else None
        if loc in _REFERENCES and isinstance(plain, str) and ":" not in plain:
            plain = str(Path(plain).expanduser().absolute())
        parent[loc[-1]] = plain

    def _build(self, node: yaml.Node, loc: Location) -> Any:
        if len(loc) > _DEEPEST:
            self.problems.append(Problem(self.where(loc), f"`{_dotted(loc)}` is nested too deeply or refers to itself"))
            return None
        kind = node.tag.removeprefix(_TAG)
        if kind not in {"map", "seq", "str", *_SCALARS}:
            self.problems.append(Problem(self.where(loc), f"`{_dotted(loc)}` has the tag `{node.tag}`", "leave it out"))
            return None
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, loc)
        if isinstance(node, yaml.SequenceNode):
            return [self._item(child, (*loc, index)) for index, child in enumerate(node.value)]
        text = node.value
        if kind == "str":
            # A lone surrogate, written as an escape, is no text that could be stored.
            return text.encode(errors="replace").decode()
        if not re.fullmatch(_SCALARS[kind][0], text):
            self.problems.append(Problem(self.where(loc), f"`{_dotted(loc)}` is tagged `{kind}` but is not one"))
            return None
        if kind == "null":
            # A section whose keys are all commented out means its defaults.
            return {} if _model_at(loc) is not None else None
        if kind == "bool":
            return text.lower() == "true"
        if kind == "int":
            return int(text, 0 if text[:2] in ("0o", "0x") else 10)
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))

    def _item(self, node: yaml.Node, loc: Location) -> Any:
        self.lines[loc] = node.start_mark.line + 1
        return self._build(node, loc)

    def _mapping(self, node: yaml.MappingNode, loc: Location) -> dict[str, Any]:
        built: dict[str, Any] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                self.problems.append(Problem(f"{self.path}:{line}", "a key must be plain text"))
                continue
            here = (*loc, key.value)
            if key.value in built:
                first = self.lines[here]
                self.problems.append(
                    Problem(f"{self.path}:{line}", f"`{_dotted(here)}` is given twice", f"first on line {first}")
                )
                continue
            if loc not in self.overridden:
                self.lines[here] = line
            built[key.value] = self._build(value, here)
        return built

    def _broken(self, error: yaml.YAMLError) -> Problem:
        mark = getattr(error, "problem_mark", None)
        where = f"{self.path}:{mark.line + 1}" if mark else str(self.path)
        reason = _reason(error)
        return Problem(where, f"not YAML: {reason}", "indent with spaces, not tabs" if r"'\t'" in reason else None)

    def where(self, loc: Location) -> str:
        """The `--set` or the line that said what is at `loc`, or the nearest line above it."""
        for depth in range(len(loc), 0, -1):
            if loc[:depth] in self.overridden:
                return self.overridden[loc[:depth]]
            if loc[:depth] in self.lines:
                return f"{self.path}:{self.lines[loc[:depth]]}"
        return str(self.path)

    def order(self, problem: Problem) -> int:
        """Sorts problems by line; those of overrides come last."""
        if problem.where.startswith("--set "):
            return 1 << 30
        line = problem.where.rpartition(":")[2]
        return int(line) if line.isdigit() else 0

    def problem(self, detail: ErrorDetails) -> Problem:
        """What pydantic found, in our words."""
        loc = detail["loc"]
        kind = detail["type"]
        name = _dotted(loc)
        where = self.where(loc)
        if kind == "extra_forbidden":
            return Problem(where, f"unknown key `{name}`", _nearest(loc, len(loc) - 1))
        about = _field_at(loc)
        description = " ".join((about.description or "").split()) if about else None
        if kind == "missing":
            return Problem(where, f"`{name}` is missing", description)
        if kind == "literal_error" and about is not None:
            valid = [str(each) for each in get_args(about.annotation)]
            close = difflib.get_close_matches(str(detail["input"]), valid, n=1)
            hint = f"did you mean `{close[0]}`?" if close else description
            wanted = _listed(valid)
            return Problem(where, f"`{name}` must be {wanted}, not {_shown(detail['input'])}", hint)
        if kind == "value_error":
            return Problem(where, f"`{name}`: {detail['msg'].removeprefix('Value error, ')}", description)
        if kind == "string_pattern_mismatch":
            pattern = detail.get("ctx", {}).get("pattern")
            return Problem(where, f"`{name}` must match {pattern}, not {_shown(detail['input'])}", description)
        said = detail["msg"].removeprefix("Input should be ").replace("a valid boolean", "true or false")
        said = said.replace("a valid integer", "a whole number").replace("a valid string", "text")
        said = said.replace("a valid number", "a number").replace("an object", "a mapping of keys to values")
        if kind == "string_type":
            description = "put it in quotes to make it text"
        return Problem(where, f"`{name}` must be {said}, not {_shown(detail['input'])}", description)


def _reason(error: yaml.YAMLError) -> str:
    return str(getattr(error, "problem", None) or getattr(error, "reason", None) or error)


def _dotted(loc: Location) -> str:
    return ".".join(str(part) for part in loc)


def _listed(names: list[str]) -> str:
    quoted = [f"`{name}`" for name in names]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False) if not isinstance(value, float) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _field_at(loc: Location) -> FieldInfo | None:
    model = _model_at(loc[:-1])
    return model.model_fields.get(str(loc[-1])) if model and loc else None


def _model_at(loc: Location) -> type[Declared] | None:
    if not loc:
        return RunSpec
    about = _field_at(loc)
    kind = about.annotation if about else None
    return kind if isinstance(kind, type) and issubclass(kind, Declared) else None


def _nearest(loc: Location, depth: int) -> str:
    """What a key that `loc[depth]` is not may have meant: a neighbour, the same name elsewhere, or any neighbour."""
    unknown = str(loc[depth])
    model = _model_at(loc[:depth])
    siblings = list(model.model_fields) if model else []
    close = difflib.get_close_matches(unknown, siblings, n=1)
    if close:
        return f"did you mean `{_dotted((*loc[:depth], close[0]))}`?"
    paths = list(_all_paths(RunSpec, ()))
    same = difflib.get_close_matches(unknown, [path[-1] for path in paths], n=1, cutoff=0.8)
    elsewhere = [_dotted(path) for path in paths if path[-1] in same]
    if elsewhere:
        return f"did you mean {_listed(elsewhere)}?"
    place = f"the keys of `{_dotted(loc[:depth])}`" if depth else "the keys"
    return f"{place} are {', '.join(f'`{name}`' for name in siblings)}"


def _all_paths(model: type[Declared], loc: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for name in model.model_fields:
        yield (*loc, name)
        inner = _model_at((*loc, name))
        if inner is not None:
            yield from _all_paths(inner, (*loc, name))
