"""What a home's address may be, what it comes to, and what is told to the libraries; no store is asked."""

import pickle
from pathlib import Path

import pytest

from pipelines.home import given_home, home_of
from pipelines.spec import RunSpec
from pipelines.spec_file import SpecError, load_spec
from transforms.lake.errors import LakeError
from transforms.lake.storage import ObjectStore, delta_options, place, said_plainly
from transforms.lake.table import Lake

SECRET = "marker-secret-77"


@pytest.mark.parametrize(
    ("text", "uri", "scheme", "bucket"),
    [
        ("s3://lake", "s3://lake", "s3", "lake"),
        ("s3://lake/team/run=7/", "s3://lake/team/run=7", "s3", "lake"),
        ("gs://my-lake/a", "gs://my-lake/a", "gs", "my-lake"),
        ("az://container/a/b", "az://container/a/b", "az", "container"),
    ],
)
def test_an_address_is_a_place_in_a_store(text: str, uri: str, scheme: str, bucket: str):
    home = place(text)
    assert isinstance(home, ObjectStore)
    assert (home.uri, home.scheme, home.bucket) == (uri, scheme, bucket)
    assert str(Lake(home).place("runs")) == f"{uri}/tables/runs"
    assert pickle.loads(pickle.dumps(home)) == home


def test_everything_else_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert place("results") == tmp_path / "results"
    assert place("~/results") == Path.home() / "results"
    assert delta_options(tmp_path) is None
    assert Lake(tmp_path).work == tmp_path


REFUSED = [
    f"s3://key:{SECRET}@lake/a", f"az://c/a?sig={SECRET}", f"gs://lake/a#{SECRET}", f"https://{SECRET}/a", "s3://",
    "s3:///a", "s3://lake//a", "s3://lake/a b", "s3://lake/../other", "S3://lake", f"ftp://{SECRET}@x/y", "file:///a",
]  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_no_address_is_refused_and_not_repeated(text: str):
    with pytest.raises(SpecError) as caught:
        given_home(text)
    assert "error: --home: an address " in str(caught.value)
    assert SECRET not in str(caught.value)


def test_one_setting_names_the_home_by_spec_by_option_and_by_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HEADRACE_HOME", "gs://lake/e")
    assert given_home(None) == home_of(RunSpec(name="a")) == ObjectStore("gs://lake/e")
    assert given_home("s3://lake/o") == ObjectStore("s3://lake/o")
    (tmp_path / "run.yaml").write_text("name: a\npaths:\n  home: s3://lake/s\n")
    spec = load_spec(tmp_path / "run.yaml", [])
    assert (spec.paths.home, home_of(spec)) == ("s3://lake/s", ObjectStore("s3://lake/s"))
    (tmp_path / "run.yaml").write_text(f"name: a\npaths:\n  home: s3://k:{SECRET}@lake/s\n")
    with pytest.raises(SpecError, match=r"run.yaml:3: an address holds no credentials") as caught:
        load_spec(tmp_path / "run.yaml", [])
    assert SECRET not in str(caught.value)


def test_what_stays_here_has_a_folder_of_its_own_for_each_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADRACE_WORK", raising=False)
    assert Lake(ObjectStore("s3://lake/a")).work == tmp_path / ".headrace" / "s3" / "lake" / "a"
    monkeypatch.setenv("HEADRACE_WORK", "/disk")
    assert Lake(ObjectStore("az://lake/a")).work == Path("/disk/az/lake/a")


def test_each_store_is_told_what_it_needs_and_no_credentials(monkeypatch: pytest.MonkeyPatch):
    bounds = {"max_retries": "3", "retry_timeout": "30s"}
    assert delta_options(ObjectStore("s3://lake/a")) == {"conditional_put": "etag", **bounds}
    assert delta_options(ObjectStore("gs://lake/a")) == bounds
    assert delta_options(ObjectStore("az://lake/a")) == bounds
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    assert ObjectStore("az://lake/a/b").client().config == {"container_name": "lake"}
    assert ObjectStore("az://lake/a/b").client().prefix == "a/b"
    assert ObjectStore("gs://lake/a").client().config == {"bucket": "lake"}
    assert ObjectStore("gs://lake/a").client().prefix == "a"


def test_commands_for_folders_say_so(tmp_path: Path):
    with pytest.raises(LakeError, match="folders of this machine only, and s3://lake/a is an object store"):
        Lake(ObjectStore("s3://lake/a")).path("runs")


def test_errors_about_a_folder_pass_as_they_are(tmp_path: Path):
    with pytest.raises(OSError, match="403 Forbidden"), said_plainly(tmp_path):
        raise OSError("403 Forbidden")
