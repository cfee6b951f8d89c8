import hashlib
import json
from pathlib import Path

import pytest
import yaml

from pipelines.home import home_of
from pipelines.spec import RunSpec
from pipelines.spec_file import SHIPPED, SpecError, find_spec, load_spec, resolved_yaml, spec_hash


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Write a spec into the current folder as `run.yaml`, so that messages name no temporary path, and load it."""
    monkeypatch.chdir(tmp_path)

    def run(text: str | bytes, *overrides: str) -> RunSpec:
        Path("run.yaml").write_bytes(text.encode() if isinstance(text, str) else text)
        return load_spec(Path("run.yaml"), list(overrides))

    return run


@pytest.fixture
def message(load):
    def of(text: str | bytes, *overrides: str) -> str:
        with pytest.raises(SpecError) as caught:
            load(text, *overrides)
        return str(caught.value)

    return of


KEYS = (
    "`name`, `seed`, `tasks`, `policy`, `engine`, `sampling`, `sandbox`, `rubric`, `quality`, `training`, `cycles`, "
    "`evaluation`, `lake`, `paths`"
)
COPY = "hint: start from a copy of the shipped quickstart.yaml"
NAME = "hint: Names the run's rows and files: small letters, digits and hyphens."


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "name: a\n\nrubrik:\n  all_passed: 1\n",
            "error: run.yaml:3: unknown key `rubrik`\n\nhint: did you mean `rubric`?",
        ),
        (
            "name: a\nsandbox:\n  limits:\n    wall_tim_s: 4\n",
            "error: run.yaml:4: unknown key `sandbox.limits.wall_tim_s`\n\n"
            "hint: did you mean `sandbox.limits.wall_time_s`?",
        ),
        # A key of another section is named where it belongs.
        (
            "name: a\nevaluation: {lr: 3}\n",
            "error: run.yaml:2: unknown key `evaluation.lr`\n\nhint: did you mean `training.lr`?",
        ),
        ("name: a\nqqqq: 1\n", f"error: run.yaml:2: unknown key `qqqq`\n\nhint: the keys are {KEYS}"),
        (
            "name: a\ntraining:\n  lr: 2\n",
            "error: run.yaml:3: `training.lr` must be less than 1, not 2\n\nhint: AdamW learning rate, constant.",
        ),
        (
            "name: a\ncycles:\n  count: true\n",
            "error: run.yaml:3: `cycles.count` must be a whole number, not true\n\n"
            "hint: Cycles: rollouts, grading, the quality gate, one policy update.",
        ),
        (
            'name: a\nseed: "5"\n',
            'error: run.yaml:2: `seed` must be a whole number, not "5"\n\n'
            "hint: Seed of the order of tasks and, where the engine can be seeded, of the draws.",
        ),
        (
            "name: a\nengine:\n  kind: vlm\n",
            'error: run.yaml:3: `engine.kind` must be `vllm` or `transformers`, not "vlm"\n\n'
            "hint: did you mean `vllm`?",
        ),
        (
            "name: a\nevaluation:\n  greedy: on\n",
            'error: run.yaml:3: `evaluation.greedy` must be true or false, not "on"\n\n'
            "hint: Whether each task is also answered once greedily.",
        ),
        (
            "name: a\ntraining:\n  lr: .nan\n",
            "error: run.yaml:3: `training.lr` must be a finite number, not nan\n\nhint: AdamW learning rate, constant.",
        ),
        ("seed: 1\n", f"error: run.yaml: `name` is missing\n\n{NAME}"),
        (
            "name: Quick\n",
            f'error: run.yaml:1: `name` must match ^[a-z0-9][a-z0-9-]{{0,39}}$, not "Quick"\n\n{NAME}',
        ),
        (
            "name: 12\n",
            "error: run.yaml:1: `name` must be text, not 12\n\nhint: put it in quotes to make it text",
        ),
        (
            "name: a\nrubric:\n  test_share: 0.5\n",
            "error: run.yaml:2: `rubric`: the weights all_passed and test_share must sum to 1, not 1.5",
        ),
        (
            "name: a\nsampling: {temperature: 0.8}\n",
            "error: run.yaml:2: `sampling`: temperature and top_p must be 1: at others the log-probabilities are not "
            "the policy's and cannot be trained on; `evaluation.temperature` may differ",
        ),
        (
            "name: a\ncycles: 5\n",
            "error: run.yaml:2: `cycles` must be a mapping of keys to values, not 5",
        ),
        ("name: a\nname: b\n", "error: run.yaml:2: `name` is given twice\n\nhint: first on line 1"),
        (
            "name: a\ncycles:\n\tcount: 1\n",
            "error: run.yaml:3: not YAML: found character '\\t' that cannot start any token\n\n"
            "hint: indent with spaces, not tabs",
        ),
        ("name: a\n---\nname: b\n", "error: run.yaml:2: not YAML: but found another document"),
        ("name: a\npolicy: !x {}\n", "error: run.yaml:2: `policy` has the tag `!x`\n\nhint: leave it out"),
        ("", f"error: run.yaml: the file is empty\n\n{COPY}"),
        ("# nothing\n", f"error: run.yaml: the file is empty\n\n{COPY}"),
        ("- a\n", f"error: run.yaml: a spec is a mapping of keys to values\n\n{COPY}"),
        (b"name: \xff\n", "error: run.yaml: not YAML: invalid start byte"),
    ],
)
def test_a_mistake_is_named_with_its_line_and_the_way_out(message, text, said):
    assert message(text) == said


def test_all_mistakes_are_listed_in_the_order_of_the_file(message):
    said = message("name: a\nrubrik: {}\ntraining:\n  lr: 1e-5\n  lr: 2e-5\n  epochs: 0\n", "trainin.lr=1", "seed=-1")
    assert said == (
        "error: run.yaml:2: unknown key `rubrik`\n\nhint: did you mean `rubric`?\n\n"
        "error: run.yaml:5: `training.lr` is given twice\n\nhint: first on line 4\n\n"
        "error: run.yaml:6: `training.epochs` must be greater than or equal to 1, not 0\n\n"
        "hint: Passes over a cycle's groups. Past 1 the later passes are off-policy; clipping bounds them.\n\n"
        "error: --set trainin.lr=1: unknown key `trainin`\n\nhint: did you mean `training`?\n\n"
        "error: --set seed=-1: `seed` must be greater than or equal to 0, not -1\n\n"
        "hint: Seed of the order of tasks and, where the engine can be seeded, of the draws."
    )


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("training.lrr=3", "error: --set training.lrr=3: unknown key `training.lrr`\n\n"
         "hint: did you mean `training.lr`?"),
        ("seed", "error: --set seed: must look like `key.subkey=value`\n\nhint: e.g. --set training.lr=2e-5"),
        ("seed.x=1", "error: --set seed.x=1: `seed` has no keys of its own"),
        (
            "name={a",
            "error: --set name={a: the value is not YAML: expected ',' or '}', but got '<stream end>'\n\n"
            "hint: quote it",
        ),
    ],
)  # fmt: skip
def test_a_wrong_override_is_named(message, override, said):
    assert message("name: a\n", override) == said


def test_a_spec_that_refers_to_itself_is_refused(message):
    assert "is nested too deeply or refers to itself" in message("name: a\nx: &x\n  y: *x\n")


@pytest.mark.parametrize(
    ("text", "value"), [("1e-5", 1e-5), ("1E-3", 1e-3), (".5", 0.5), ("0.25", 0.25), ("+2.5e-2", 0.025)]
)
def test_floats_are_read_as_people_write_them(load, text, value):
    # PyYAML follows YAML 1.1, where 1e-5 is text.
    assert load(f"name: a\ntraining:\n  lr: {text}\n").training.lr == value


def test_words_that_yaml_1_1_takes_for_other_things_are_text(load):
    spec = load("name: on\nsampling:\n  stop: [no, 1:30, 2020-01-01, 'null']\ncycles: {count: 010}\n")
    assert spec.name == "on"
    assert spec.sampling.stop == ("no", "1:30", "2020-01-01", "null")
    assert spec.cycles.count == 10


def test_a_section_whose_keys_are_commented_out_has_its_defaults(load):
    assert load("name: a\ntraining:\n  # lr: 1\n") == RunSpec(name="a")
    assert load("name: a\ntasks:\n  heldout: null\n").tasks.heldout is None


def test_overrides_replace_values_and_make_sections(load):
    spec = load("name: a\nseed: 3\n", "seed=4", "training.lr=2e-5", "sampling.stop=[x]", "evaluation={samples: 2}")
    assert (spec.seed, spec.training.lr, spec.sampling.stop, spec.evaluation.samples) == (4, 2e-5, ("x",), 2)


def test_files_are_relative_to_the_spec_and_overrides_to_the_current_folder(tmp_path, monkeypatch):
    folder = tmp_path / "specs"
    folder.mkdir()
    (folder / "run.yaml").write_text("name: a\ntasks: {train: t.jsonl}\npaths: {home: results}\n")
    monkeypatch.chdir(tmp_path)
    spec = load_spec(folder / "run.yaml", [])
    # The reference stays as written: the hash must not depend on where the folder lies. The home does not count.
    assert spec.tasks.train == "t.jsonl"
    assert home_of(spec) == folder / "results"
    moved = load_spec(folder / "run.yaml", ["tasks.train=t.jsonl", "paths.home=results", "policy.model=wheel:x"])
    assert moved.tasks.train == str(tmp_path / "t.jsonl")
    assert home_of(moved) == tmp_path / "results"
    assert moved.policy.model == "wheel:x"


def test_home_is_the_specs_else_the_environments_else_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_HOME", "/somewhere")
    assert home_of(RunSpec(name="a")) == Path("/somewhere")
    monkeypatch.delenv("HEADRACE_HOME")
    assert home_of(RunSpec(name="a")) == tmp_path / ".headrace"


def test_the_resolved_spec_loads_as_the_same_spec(load):
    first = load(
        'name: "1e5"\ntraining: {lr: 1e-5}\n'
        'sampling: {stop: ["1e3", "no", "", "null", "~", "0x1f", "\\n```", "日本"]}\n',
        "paths.home=x",
    )
    assert load(resolved_yaml(first)) == first


def test_the_hash_covers_every_setting_that_makes_rows(load):
    base = load("name: a\n")
    record = base.model_dump(mode="json")
    del record["paths"], record["quality"], record["lake"], record["training"]["keep_checkpoints"]
    for name in ("parallel", "attempts", "pool", "hosts", "token_file"):
        del record["sandbox"][name]
    for name in ("port", "startup_timeout_s", "request_timeout_s", "memory_fraction"):
        del record["engine"][name]
    canonical = json.dumps(record, sort_keys=True, separators=(",", ":"))
    assert spec_hash(base) == hashlib.sha256(canonical.encode()).hexdigest()
    assert spec_hash(load("name: a\n", "paths.home=x")) == spec_hash(base)
    assert spec_hash(load("name: a\ntraining: {lr: 1e-5}\n")) == spec_hash(base)  # the default, written out
    assert spec_hash(load("name: a\n", "quality.max_infra_rate=0.5", "engine.port=8000")) == spec_hash(base)
    assert spec_hash(load("name: a\n", "seed=1")) != spec_hash(base)


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_spec_loads_and_is_found_by_its_name(path):
    assert load_spec(find_spec(path.stem), []).name == path.stem


def test_the_quickstart_writes_out_defaults_but_for_what_its_small_tasks_want():
    text = (SHIPPED / "quickstart.yaml").read_text()
    small = {
        "training": {"lr": 2e-5},
        "sandbox": {"limits": {"wall_time_s": 2.0}},
        "engine": {"max_model_len": 512},
    }
    expected = RunSpec.model_validate({"name": "quickstart", **small})
    assert load_spec(SHIPPED / "quickstart.yaml", []) == expected
    # Every setting has its comment, on its own line: `key: value  # what and unit`.
    bare = [line for line in text.splitlines() if line.strip() and not line.endswith(":") and "#" not in line]
    assert bare == ["  algorithm: grpo", "  temperature: 1.0"]


def test_a_missing_spec_is_named(tmp_path):
    with pytest.raises(SpecError) as caught:
        find_spec("quickstrat")
    assert str(caught.value) == (
        "error: quickstrat: no such file, and no shipped spec of that name\n\nhint: did you mean `quickstart`?"
    )
    with pytest.raises(SpecError, match=r"no\.yaml: No such file or directory\n\nhint: `headrace run quickstart`"):
        load_spec(find_spec(str(tmp_path / "no.yaml")), [])
    with pytest.raises(SpecError, match="Is a directory"):
        load_spec(tmp_path, [])


def test_our_yaml_agrees_with_pyyaml_where_the_standards_agree(load):
    text = (
        "name: a\nseed: 12\ntraining: {lr: 0.5, epochs: 2}\nevaluation: {greedy: false}\nsampling: {stop: [x, 'y z']}\n"
    )
    assert load(text) == RunSpec.model_validate(yaml.safe_load(text))


def test_answers_must_leave_room_for_a_prompt(load):
    with pytest.raises(SpecError, match=r"max_tokens \(96\) leaves no room"):
        load("name: a\n", "engine.max_model_len=96")
    with pytest.raises(SpecError, match=r"`sampling`: max_tokens \(600\) leaves no room .*max_model_len \(512\)"):
        load("name: a\n", "sampling.max_tokens=600", "engine.max_model_len=512")
