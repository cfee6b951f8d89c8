"""The last stage of a chunk: rows become Parquet on the workers, and one commit makes them part of the table."""

from collections.abc import Iterator

import apache_beam as beam
import pyarrow as pa
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import WindowedValue

from transforms.lake.files import FileAction
from transforms.lake.rows import to_arrow
from transforms.lake.table import CommitResult, Lake

_ROWS_AT_ONCE = 128
"""Dicts converted together: as Arrow they take a third of the memory."""
_BYTES_PER_FILE = 96 << 20
"""Arrow bytes after which a file is written: what bounds the memory where rows are wide."""

Rows = dict[str, object] | pa.RecordBatch


class WriteToDelta(beam.PTransform):
    """Write a chunk's rows into a table, exactly once per (application id, version).

    In:   row dicts that fit the table's schema, or Arrow batches of exactly that schema, in any order; none at all also
          commits, and marks the chunk as done.
    Out:  one CommitResult.
    Cost: holds `rows_per_file` rows or 96 MiB of them a worker, and a batch; only small file records are shuffled. A
          retry writes new files and commits nothing if the first try had committed. Raises as Lake.write_batches and
          Lake.commit do.
    """

    def __init__(self, lake: Lake, table: str, *, app_id: str, version: int, rows_per_file: int = 10_000) -> None:
        super().__init__()
        self.lake = lake
        self.table = table
        self.app_id = app_id
        self.version = version
        self.rows_per_file = rows_per_file

    def expand(self, rows: beam.PCollection[Rows]) -> beam.PCollection[CommitResult]:
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
    """Rows -> FileAction, in files of `rows_per_file` rows or `_BYTES_PER_FILE` Arrow bytes a partition, about."""

    def __init__(self, lake: Lake, table: str, rows_per_file: int) -> None:
        self.lake = lake
        self.table = table
        self.rows_per_file = rows_per_file

    def start_bundle(self) -> None:
        self.dicts: list[dict[str, object]] = []
        self.batches: list[pa.RecordBatch] = []
        self.held_rows = self.held_bytes = 0

    def process(self, rows: Rows) -> Iterator[FileAction]:  # ty: ignore[incompatible-method-override]
        if isinstance(rows, pa.RecordBatch):
            self._hold([*self._converted(), rows])
        else:
            self.dicts.append(rows)
            if len(self.dicts) >= min(_ROWS_AT_ONCE, self.rows_per_file):
                self._hold(self._converted())
        if self.held_rows >= self.rows_per_file or self.held_bytes >= _BYTES_PER_FILE:
            yield from self._write()

    def finish_bundle(self) -> Iterator[WindowedValue]:
        self._hold(self._converted())
        for file in self._write():
            yield WindowedValue(file, GlobalWindow().max_timestamp(), [GlobalWindow()])

    def _converted(self) -> list[pa.RecordBatch]:
        dicts, self.dicts = self.dicts, []
        return to_arrow(self.table, dicts).to_batches()

    def _hold(self, batches: list[pa.RecordBatch]) -> None:
        self.batches += batches
        self.held_rows += sum(batch.num_rows for batch in batches)
        self.held_bytes += sum(batch.nbytes for batch in batches)

    def _write(self) -> list[FileAction]:
        batches, self.batches = self.batches, []
        self.held_rows = self.held_bytes = 0
        return self.lake.write_batches(self.table, batches)
