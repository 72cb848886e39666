//! One Parquet file, from its first row to its name.
//!
//! A half-written file must never carry a name that a reader's glob finds, and a disk that lies must be found out before the row counts as done.
//! So: written as `.partial` in `state/`, synced, opened again and compared, renamed.
//!
//! The bytes follow from the rows alone: fixed writer properties, no time, no version of this program, one row group a call of [`PartWriter::write`].

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{Field, Int64Type, Schema, SchemaRef};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::arrow::arrow_writer::{ArrowWriter, ArrowWriterOptions};
use parquet::basic::Compression;
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterVersion};

use super::folder::commit;
use crate::error::{Error, Kind, Result};

const CREATED_BY: &str = "nightshift";
const SCHEMA_ROOT: &str = "schema";

/// A Parquet file that has no name yet.
pub(super) struct PartWriter {
    path: PathBuf,
    schema: SchemaRef,
    writer: ArrowWriter<File>,
    rows: u64,
}

/// A written and synced file that is not checked yet.
pub(super) struct Unchecked {
    path: PathBuf,
    rows: u64,
}

impl PartWriter {
    /// Starts the file at `path`; a leftover of the same name is overwritten.
    pub(super) fn create(path: PathBuf, fields: Vec<Field>) -> Result<Self> {
        let file = File::create(&path).map_err(|e| Error::io(Kind::Storage, "create", &path, &e))?;
        let schema = Arc::new(Schema::new(fields));
        let properties = WriterProperties::builder()
            .set_created_by(CREATED_BY.into())
            .set_writer_version(WriterVersion::PARQUET_1_0)
            // Every reader has it, and its bytes do not change with a C library's version.
            .set_compression(Compression::SNAPPY)
            // Pages have no index: it grows with the part and lies in memory until the end.
            .set_statistics_enabled(EnabledStatistics::Chunk)
            .set_offset_index_disabled(true)
            // A row group is what one call of `write` brings.
            .set_max_row_group_row_count(None)
            .build();
        // Readers take the types from the Parquet schema, never from a note for Arrow alone.
        let options =
            ArrowWriterOptions::new().with_properties(properties).with_skip_arrow_metadata(true).with_schema_root(SCHEMA_ROOT.into());
        let writer = ArrowWriter::try_new_with_options(file, Arc::clone(&schema), options).map_err(|e| fault("write", &path, &e))?;
        Ok(PartWriter { path, schema, writer, rows: 0 })
    }

    /// Appends one row group.
    pub(super) fn write(&mut self, columns: Vec<ArrayRef>) -> Result<()> {
        let batch = RecordBatch::try_new(Arc::clone(&self.schema), columns)
            .map_err(|e| Error::storage(format!("cannot write {}: {e}", self.path.display())))?;
        self.rows += batch.num_rows() as u64;
        self.writer.write(&batch).and_then(|()| self.writer.flush()).map_err(|e| fault("write", &self.path, &e))
    }

    /// Ends the file and waits until the disk has it.
    pub(super) fn close(self) -> Result<Unchecked> {
        let PartWriter { path, writer, rows, .. } = self;
        let file = writer.into_inner().map_err(|e| fault("write", &path, &e))?;
        file.sync_all().map_err(|e| Error::io(Kind::Storage, "sync", &path, &e))?;
        Ok(Unchecked { path, rows })
    }
}

impl Unchecked {
    /// Opens the file again, compares its rows with what was written, then gives it its name.
    pub(super) fn commit(&self, finished: &Path) -> Result<()> {
        let reader = self.open()?;
        let rows = u64::try_from(reader.metadata().file_metadata().num_rows()).unwrap_or(0);
        if rows != self.rows {
            return Err(Error::storage(format!("{} holds {rows} rows of the {} written to it", self.path.display(), self.rows)));
        }
        commit(&self.path, finished)
    }

    /// As `commit`, and each row's id must be the one that `ids` was given, in the same order.
    pub(super) fn commit_checked(&self, finished: &Path, ids: &IdDigest) -> Result<()> {
        let reader = self.open()?;
        let mask = ProjectionMask::columns(reader.parquet_schema(), ["custom_id", "row_index"]);
        let batches = reader.with_projection(mask).build().map_err(|e| fault("read", &self.path, &e))?;
        let mut found = IdDigest::default();
        for batch in batches {
            let batch = batch.map_err(|e| Error::storage(format!("cannot read {}: {e}", self.path.display())))?;
            let (names, indexes) = (batch.column(0).as_string::<i32>(), batch.column(1).as_primitive::<Int64Type>());
            for row in 0..names.len() {
                found.push(u64::try_from(indexes.value(row)).unwrap_or(u64::MAX), names.value(row));
            }
        }
        if found != *ids {
            return Err(Error::storage(format!("{} does not hold the rows written to it: the disk lost data", self.path.display())));
        }
        self.commit(finished)
    }

    fn open(&self) -> Result<ParquetRecordBatchReaderBuilder<File>> {
        let file = File::open(&self.path).map_err(|e| Error::io(Kind::Storage, "open", &self.path, &e))?;
        ParquetRecordBatchReaderBuilder::try_new(file).map_err(|e| fault("read", &self.path, &e))
    }
}

/// Which ids came, in which order, in a few bytes.
#[derive(Default)]
pub(super) struct IdDigest {
    hasher: blake3::Hasher,
}

impl IdDigest {
    pub(super) fn push(&mut self, index: u64, id: &str) {
        self.hasher.update(&index.to_le_bytes());
        self.hasher.update(&(id.len() as u64).to_le_bytes());
        self.hasher.update(id.as_bytes());
    }
}

impl PartialEq for IdDigest {
    fn eq(&self, other: &Self) -> bool {
        self.hasher.finalize() == other.hasher.finalize()
    }
}

fn fault(what: &str, path: &Path, error: &ParquetError) -> Error {
    Error::storage(format!("cannot {what} {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use arrow::array::{Int64Array, StringArray};
    use arrow::datatypes::DataType;

    use super::*;

    fn written(path: &Path, ids: &[&str]) -> Unchecked {
        let fields = vec![Field::new("custom_id", DataType::Utf8, false), Field::new("row_index", DataType::Int64, false)];
        let mut part = PartWriter::create(path.to_path_buf(), fields).expect("started");
        let indexes = Int64Array::from_iter_values(0..ids.len() as i64);
        part.write(vec![Arc::new(StringArray::from(ids.to_vec())), Arc::new(indexes)]).expect("written");
        part.close().expect("closed")
    }

    fn digest(ids: &[&str]) -> IdDigest {
        let mut digest = IdDigest::default();
        for (index, id) in ids.iter().enumerate() {
            digest.push(index as u64, id);
        }
        digest
    }

    #[test]
    fn a_part_with_the_right_rows_gets_its_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let (partial, finished) = (folder.path().join("a.partial"), folder.path().join("a.parquet"));
        written(&partial, &["a", "bc"]).commit_checked(&finished, &digest(&["a", "bc"])).expect("committed");
        assert!(finished.exists() && !partial.exists());
    }

    #[test]
    fn other_ids_get_no_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let (partial, finished) = (folder.path().join("a.partial"), folder.path().join("a.parquet"));
        for wrong in [["bc", "a"], ["ab", "c"], ["a", "bd"]] {
            let error = written(&partial, &["a", "bc"]).commit_checked(&finished, &digest(&wrong)).expect_err("other rows");
            assert_eq!(error.kind, Kind::Storage);
            assert!(!finished.exists());
        }
    }

    #[test]
    fn a_file_that_changed_on_disk_gets_no_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let (partial, finished) = (folder.path().join("a.partial"), folder.path().join("a.parquet"));
        let lost_rows = written(&partial, &["a", "bc"]);
        written(&partial, &["a"]);
        assert!(lost_rows.commit(&finished).expect_err("a row is lost").message.contains("1 rows of the 2"));
        let cut = written(&partial, &["a", "bc"]);
        std::fs::write(&partial, b"PAR1").expect("cut");
        assert_eq!(cut.commit(&finished).expect_err("no Parquet").kind, Kind::Storage);
        assert!(!finished.exists());
    }
}
