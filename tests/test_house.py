"""The house's own rules, held by a test: where imports point, how long things may get, what each stage declares."""

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path

import apache_beam as beam
import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("pipelines", "transforms", "training", "sandboxes")
MAY_IMPORT = {
    "pipelines": {"transforms", "training", "sandboxes"},
    "transforms": {"sandboxes"},
    "training": {"sandboxes"},
    "sandboxes": set(),
}
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def imported_packages(tree: ast.Module) -> set[str]:
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    return {name.split(".")[0] for name in names} & set(PACKAGES)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way_and_files_stay_short(path: Path):
    source = path.read_text()
    tree = ast.parse(source)
    package = path.relative_to(ROOT).parts[0]
    assert imported_packages(tree) - {package} <= MAY_IMPORT[package]
    assert len(source.splitlines()) <= 400
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    assert [f.name for f in functions if (f.end_lineno or 0) - f.lineno + 1 > 80] == []
    assert [
        node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "__future__"
    ] == []


def stages() -> list[type[beam.PTransform]]:
    found = []
    for module in pkgutil.walk_packages([str(ROOT / "transforms")], "transforms."):
        if ".inside" in module.name:
            continue  # these run inside the sandbox and stand alone
        for value in vars(importlib.import_module(module.name)).values():
            if inspect.isclass(value) and issubclass(value, beam.PTransform) and value.__module__ == module.name:
                found.append(value)
    return found


def test_every_stage_declares_what_goes_in_and_out_and_what_it_costs():
    assert {stage.__name__ for stage in stages()} >= {"RolloutGroups", "Verify", "Grade", "Validate", "WriteToDelta"}
    for stage in stages():
        doc = stage.__doc__ or ""
        assert all(word in doc for word in ("In:", "Out:", "Cost:")), stage
        annotations = inspect.get_annotations(stage.expand)
        assert "return" in annotations, stage
        assert len(annotations) == 2, stage
        assert not any(isinstance(kind, str) for kind in annotations.values()), stage


def test_reading_a_spec_imports_nothing_heavy():
    heavy = ("torch", "vllm", "apache_beam", "great_expectations", "deltalake", "pandas", "pyspark", "transformers")
    code = f"import sys, pipelines.spec, pipelines.spec_file; print([m for m in {heavy} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_the_locks_name_no_host_and_hash_everything():
    for lock in ("requirements.lock", "requirements-gpu.lock"):
        lines = (ROOT / "deploy" / lock).read_text().splitlines()
        assert not [line for line in lines if "://" in line]
        pins = [i for i, line in enumerate(lines) if line and line[0].isalnum()]
        assert len(pins) > 100
        assert all("==" in lines[i] and lines[i + 1].strip().startswith("--hash=sha256:") for i in pins)
