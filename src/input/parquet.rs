//! Parquet: bytes -> batches of the columns that the job needs.
//!
//! Everything that can be known of a file before its first page is read is asked at the start, of all files: in a list of a hundred a
//! codec that cannot be read must not come up at the ninetieth.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};
use parquet::basic::Compression;

use crate::error::{Error, Kind, Result};

/// Most rows of a batch.
const BATCH_ROWS: u64 = 1024;
/// Bytes of a batch, uncompressed and about.
const BATCH_BYTES: u64 = 8 << 20;
const MAGIC: &[u8; 4] = b"PAR1";

type Builder = ParquetRecordBatchReaderBuilder<File>;

/// The schema in the footer of `path`; `needed` says which columns will be read.
///
/// # Errors
/// Refused, naming file, column and codec: no Parquet file, or a column that cannot be read.
pub(super) fn footer(path: &Path, needed: &dyn Fn(&str) -> bool) -> Result<SchemaRef> {
    let builder = open(path)?;
    let metadata = builder.metadata();
    for group in metadata.row_groups() {
        for column in group.columns() {
            let parts = column.column_path().parts();
            let root = parts.first().map_or("", String::as_str);
            if needed(root) && column.compression() == Compression::LZO {
                let name = path.display();
                return Err(Error::refused(format!(
                    "{name}: the column `{root}` has the codec LZO, which cannot be read: write it with zstd"
                )));
            }
        }
    }
    if metadata.file_metadata().num_rows() < 1 {
        return Err(Error::refused(format!("the input {} holds no rows", path.display())));
    }
    Ok(builder.schema().clone())
}

/// The batches of one file.
pub(super) struct Batches<'p> {
    path: &'p Path,
    reader: ParquetRecordBatchReader,
}

impl<'p> Batches<'p> {
    /// Opens `path` for its `needed` columns.
    pub(super) fn open(path: &'p Path, needed: &dyn Fn(&str) -> bool) -> Result<Self> {
        let builder = open(path)?;
        let roots: Vec<usize> =
            builder.schema().fields().iter().enumerate().filter(|(_, field)| needed(field.name())).map(|(at, _)| at).collect();
        let groups = builder.metadata().row_groups();
        let bytes: u64 = groups.iter().map(|group| u64::try_from(group.total_byte_size()).unwrap_or(0)).fold(0, u64::saturating_add);
        let rows: u64 = groups.iter().map(|group| u64::try_from(group.num_rows()).unwrap_or(0)).fold(0, u64::saturating_add);
        let row_bytes = bytes / rows.max(1) + 1;
        let batch = (BATCH_BYTES / row_bytes).clamp(1, BATCH_ROWS) as usize;
        let mask = ProjectionMask::roots(builder.parquet_schema(), roots);
        let reader = guarded(path, || builder.with_projection(mask).with_batch_size(batch).build())?;
        Ok(Batches { path, reader })
    }

    /// The next batch.
    pub(super) fn next(&mut self) -> Result<Option<RecordBatch>> {
        guarded(self.path, || self.reader.next().transpose())
    }
}

fn open(path: &Path) -> Result<Builder> {
    let fault = |e: &std::io::Error| Error::io(Kind::Refused, "read", path, e);
    let mut file = File::open(path).map_err(|e| fault(&e))?;
    let mut magic = [0; 4];
    if file.metadata().map_err(|e| fault(&e))?.len() >= 12 {
        file.read_exact(&mut magic).map_err(|e| fault(&e))?;
        file.seek(SeekFrom::Start(0)).map_err(|e| fault(&e))?;
    }
    if &magic != MAGIC {
        return Err(broken(path, "it does not begin with PAR1"));
    }
    guarded(path, || Builder::try_new(file))
}

fn broken(path: &Path, why: &str) -> Error {
    Error::refused(format!("{} cannot be read as Parquet: {why}", path.display()))
}

/// A decoder of other people's bytes may panic on hostile ones; here that is a fault of the file.
fn guarded<T, E: std::fmt::Display>(path: &Path, work: impl FnOnce() -> std::result::Result<T, E>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(e)) => Err(broken(path, &e.to_string())),
        Err(_) => Err(broken(path, "its pages are damaged")),
    }
}

/// BLAKE3 of a file's bytes.
pub(super) fn blake3(path: &Path) -> Result<[u8; 32]> {
    let fault = |e: &std::io::Error| Error::io(Kind::Refused, "read", path, e);
    let mut hash = blake3::Hasher::new();
    hash.update_reader(File::open(path).map_err(|e| fault(&e))?).map_err(|e| fault(&e))?;
    Ok(*hash.finalize().as_bytes())
}
