"""The last stage of a chunk: rows become Parquet on the workers, and one commit makes them part of the table."""

from collections.abc import Iterator

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import WindowedValue

from transforms.lake.files import FileAction
from transforms.lake.table import CommitResult, Lake


class WriteToDelta(beam.PTransform):
    """Write a chunk's rows into a table, exactly once per (application id, version).

    In:   row dicts that fit the table's schema, in any order; none at all also commits, and marks the chunk as done.
    Out:  one CommitResult.
    Cost: holds `rows_per_file` rows a worker; only small file records are shuffled. A retry writes new files and
          commits nothing if the first try had committed. Raises as Lake.write_files and Lake.commit do.
    """

    def __init__(self, lake: Lake, table: str, *, app_id: str, version: int, rows_per_file: int = 10_000) -> None:
        super().__init__()
        self.lake = lake
        self.table = table
        self.app_id = app_id
        self.version = version
        self.rows_per_file = rows_per_file

    def expand(self, rows: beam.PCollection[dict[str, object]]) -> beam.PCollection[CommitResult]:
        """Write on the workers, gather the file records, commit in one place."""
        write = _WriteFiles(self.lake, self.table, self.rows_per_file)
        # Reshuffle settles the files: without it a retried commit could see others than the first try did.
        files = rows | "Write files" >> beam.ParDo(write) | "Settle files" >> beam.Reshuffle()
        return (
            rows.pipeline
            | "Once" >> beam.Create([None])
            | "Commit" >> beam.Map(self._commit, files=beam.pvalue.AsList(files)).with_output_types(CommitResult)
        )

    def _commit(self, _: None, files: list[FileAction]) -> CommitResult:
        return self.lake.commit(self.table, files, app_id=self.app_id, version=self.version)


class _WriteFiles(beam.DoFn):
    """Rows -> FileAction, in files of `rows_per_file` rows at most a partition."""

    def __init__(self, lake: Lake, table: str, rows_per_file: int) -> None:
        self.lake = lake
        self.table = table
        self.rows_per_file = rows_per_file

    def start_bundle(self) -> None:
        self.waiting: list[dict[str, object]] = []

    def process(self, row: dict[str, object]) -> Iterator[FileAction]:  # ty: ignore[incompatible-method-override]
        self.waiting.append(row)
        if len(self.waiting) >= self.rows_per_file:
            yield from self._write()

    def finish_bundle(self) -> Iterator[WindowedValue]:
        for file in self._write():
            yield WindowedValue(file, GlobalWindow().max_timestamp(), [GlobalWindow()])

    def _write(self) -> list[FileAction]:
        rows, self.waiting = self.waiting, []
        return self.lake.write_files(self.table, rows)
