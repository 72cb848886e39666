//! Columns that travel with a row from the input to the output, untouched by the model.
//!
//! They lie in an Arrow file of our own beside the spool, in input order, already in the types that readers share: the output takes them by
//! ranges of rows, and memory holds one batch.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, StringBuilder, new_null_array};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::ipc::reader::FileReader;
use arrow::ipc::writer::FileWriter;
use serde_json::{Map, Value};

use super::files::Format;
use super::portable::{Use, convert, portable};
use crate::error::{Error, Kind, Result};

const FILE: &str = "kept.arrow";
/// Footer key: after how many rows each batch ends, as decimal numbers with commas.
const ENDS: &str = "ends";
/// Rows and bytes of a batch of JSON values.
const BATCH_ROWS: usize = 1024;
const BATCH_BYTES: usize = 8 << 20;
/// A kept column whose name, in upper or lower case, is among the output's own gets this before it.
const PREFIX: &str = "input_";
/// The output's own columns, in its order; a test of `output/` holds this list to what it writes.
pub(crate) const TAKEN: [&str; 23] = [
    "custom_id",
    "row_index",
    "status",
    "text",
    "reasoning",
    "label",
    "label_scores",
    "parsed",
    "finish_reason",
    "stop_reason",
    "error_code",
    "error_message",
    "prompt_tokens",
    "completion_tokens",
    "total_tokens",
    "truncated_tokens",
    "token_ids",
    "logprobs",
    "prompt_logprobs",
    "seed",
    "prompt_sha256",
    "model",
    "system_fingerprint",
];

/// One kept column as far as files have shown it.
struct Column {
    name: String,
    output: String,
    /// Its type and the file that gave it.
    typed: Option<(DataType, Format, PathBuf)>,
}

/// Which columns are kept, under which names and as which types.
pub(super) struct KeptPlan {
    columns: Vec<Column>,
}

impl KeptPlan {
    /// # Errors
    /// Usage: a column is named twice, or its output name is taken.
    pub(super) fn new(keep: &[String]) -> Result<Self> {
        let mut used: BTreeSet<String> = TAKEN.iter().map(|name| name.to_string()).collect();
        let mut columns = Vec::new();
        for name in keep {
            let taken = TAKEN.contains(&name.to_lowercase().as_str());
            let output = if taken { format!("{PREFIX}{name}") } else { name.clone() };
            if !used.insert(output.to_lowercase()) {
                return Err(Error::usage(format!(
                    "output.keep: `{name}` would be the second output column `{output}`; rename it in the input"
                )));
            }
            columns.push(Column { name: name.clone(), output, typed: None });
        }
        Ok(KeptPlan { columns })
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.columns.iter().map(|column| column.name.as_str())
    }

    /// The file `path` is of this `format`; a Parquet file has this `schema`.
    ///
    /// # Errors
    /// Refused: a column has another type than in an earlier file, or one that no reader would share.
    pub(super) fn file(&mut self, path: &Path, format: Format, schema: Option<&Schema>) -> Result<()> {
        for column in &mut self.columns {
            let name = &column.name;
            let kept = match schema.map(|schema| schema.field_with_name(name)) {
                None => DataType::Utf8,
                Some(Err(_)) => continue,
                Some(Ok(field)) => portable(field.data_type(), Use::Output)
                    .map_err(|why| Error::refused(format!("{}: output.keep cannot keep the column `{name}`: {why}", path.display())))?,
            };
            match &column.typed {
                Some((other, from, first)) if (other, from) != (&kept, &format) => {
                    let (first, path) = (first.display(), path.display());
                    return Err(Error::refused(format!(
                        "output.keep: the column `{name}` is {} in {first} and {} in {path}; a column has one type",
                        shown(other, *from),
                        shown(&kept, format)
                    )));
                }
                Some(_) => {}
                None => column.typed = Some((kept, format, path.to_path_buf())),
            }
        }
        Ok(())
    }

    fn schema(&self) -> SchemaRef {
        let kind = |column: &Column| column.typed.as_ref().map_or(DataType::Utf8, |typed| typed.0.clone());
        Arc::new(Schema::new(self.columns.iter().map(|column| Field::new(&column.output, kind(column), true)).collect::<Vec<_>>()))
    }
}

fn shown(kind: &DataType, format: Format) -> String {
    match format {
        Format::Jsonl => "JSON text".to_string(),
        Format::Parquet => kind.to_string(),
    }
}

/// Writes kept columns row by row, in input order.
pub(super) struct KeptWriter {
    path: PathBuf,
    names: Vec<String>,
    schema: SchemaRef,
    writer: FileWriter<BufWriter<File>>,
    builders: Vec<StringBuilder>,
    /// Rows and bytes in `builders`.
    pending: (usize, usize),
    rows: u64,
    ends: Vec<u64>,
}

impl KeptWriter {
    /// # Errors
    /// Storage: the file cannot be created in `state`.
    pub(super) fn create(plan: &KeptPlan, state: &Path) -> Result<Self> {
        let path = state.join(FILE);
        let file = File::create(&path).map_err(|e| Error::io(Kind::Storage, "create", &path, &e))?;
        let schema = plan.schema();
        let writer = FileWriter::try_new(BufWriter::new(file), &schema).map_err(|e| fault("write", &path, &e))?;
        let names: Vec<String> = plan.names().map(str::to_string).collect();
        let builders = names.iter().map(|_| StringBuilder::new()).collect();
        Ok(KeptWriter { path, names, schema, writer, builders, pending: (0, 0), rows: 0, ends: Vec::new() })
    }

    /// The columns under their output names.
    pub(super) fn fields(&self) -> Vec<Field> {
        self.schema.fields().iter().map(|field| field.as_ref().clone()).collect()
    }

    /// A row of a JSON file; `None`, a line that is no row.
    pub(super) fn push_json(&mut self, row: Option<&Map<String, Value>>) -> Result<()> {
        for (name, builder) in self.names.iter().zip(&mut self.builders) {
            match row.and_then(|row| row.get(name)) {
                None | Some(Value::Null) => builder.append_null(),
                Some(value) => {
                    let text = value.to_string();
                    self.pending.1 += text.len();
                    builder.append_value(text);
                }
            }
        }
        self.pending.0 += 1;
        if self.pending.0 == BATCH_ROWS || self.pending.1 >= BATCH_BYTES { self.flush() } else { Ok(()) }
    }

    /// Rows of a Parquet file, the first of which is the file's `row`, counted from 1.
    pub(super) fn push_batch(&mut self, path: &Path, row: u64, batch: &RecordBatch) -> Result<()> {
        self.flush()?;
        let column = |(name, field): (&String, &Arc<Field>)| match batch.column_by_name(name) {
            None => Ok(new_null_array(field.data_type(), batch.num_rows())),
            Some(array) => convert(array, field.data_type()).map_err(|e| unfit(path, row, name, array, field.data_type(), &e)),
        };
        let columns = self.names.iter().zip(self.schema.fields()).map(column).collect::<Result<Vec<_>>>()?;
        self.write(columns, batch.num_rows())
    }

    fn flush(&mut self) -> Result<()> {
        let rows = std::mem::take(&mut self.pending).0;
        if rows == 0 {
            return Ok(());
        }
        let columns = self.builders.iter_mut().map(|builder| Arc::new(builder.finish()) as ArrayRef).collect();
        self.write(columns, rows)
    }

    fn write(&mut self, columns: Vec<ArrayRef>, rows: usize) -> Result<()> {
        let batch = RecordBatch::try_new(self.schema.clone(), columns).map_err(|e| fault("write", &self.path, &e))?;
        self.writer.write(&batch).map_err(|e| fault("write", &self.path, &e))?;
        self.rows += rows as u64;
        self.ends.push(self.rows);
        Ok(())
    }

    /// Closes the file; its columns under their output names.
    pub(super) fn finish(mut self) -> Result<Vec<Field>> {
        self.flush()?;
        let ends: Vec<String> = self.ends.iter().map(u64::to_string).collect();
        self.writer.write_metadata(ENDS, ends.join(","));
        self.writer.finish().map_err(|e| fault("write", &self.path, &e))?;
        Ok(self.fields())
    }
}

/// The first row whose value has no place in the output's type, by name.
fn unfit(path: &Path, row: u64, name: &str, array: &ArrayRef, to: &DataType, error: &ArrowError) -> Error {
    let at = (0..array.len()).find(|&at| convert(&array.slice(at, 1), to).is_err()).unwrap_or(0);
    let value = arrow::util::display::array_value_to_string(array, at).unwrap_or_else(|_| error.to_string());
    let place = super::Place { path, unit: "row", number: row + at as u64 };
    Error::refused(format!(
        "{place}: the kept column `{name}` holds {value}, which {to} cannot; leave it out of output.keep or make it text"
    ))
}

fn fault(what: &str, path: &Path, error: &ArrowError) -> Error {
    Error::storage(format!("cannot {what} {}: {error}", path.display()))
}

/// Kept columns by ranges of rows, read from disk as they are asked for.
pub struct KeptReader {
    path: PathBuf,
    reader: FileReader<BufReader<File>>,
    ends: Vec<u64>,
    /// The batch read last.
    last: Option<(usize, RecordBatch)>,
}

impl KeptReader {
    /// Opens the file that reading the input left in `state`.
    ///
    /// # Errors
    /// Storage: it is missing or damaged.
    pub fn open(state: &Path) -> Result<Self> {
        let path = state.join(FILE);
        let file = File::open(&path).map_err(|e| Error::io(Kind::Storage, "open", &path, &e))?;
        let reader = FileReader::try_new(BufReader::new(file), None).map_err(|e| fault("read", &path, &e))?;
        let ends = reader.custom_metadata().get(ENDS).map_or("", String::as_str);
        let ends: Vec<u64> = ends.split(',').filter_map(|end| end.parse().ok()).collect();
        if ends.len() != reader.num_batches() || !ends.is_sorted() {
            return Err(Error::storage(format!("{} is damaged: run the job afresh", path.display())));
        }
        Ok(KeptReader { path, reader, ends, last: None })
    }

    /// The columns under their output names, in the job's order.
    pub fn fields(&self) -> Vec<Field> {
        self.reader.schema().fields().iter().map(|field| field.as_ref().clone()).collect()
    }

    /// Number of rows, those of errored rows included.
    pub fn len(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The columns of the rows `range`, in input order; `range` ends within [`KeptReader::len`].
    ///
    /// # Errors
    /// Storage: the file cannot be read.
    pub fn rows(&mut self, range: Range<u64>) -> Result<RecordBatch> {
        assert!(range.start <= range.end && range.end <= self.len(), "rows {range:?} of {}", self.len());
        let mut parts = Vec::new();
        let mut at = self.ends.partition_point(|&end| end <= range.start);
        while at < self.ends.len() && (at == 0 || self.ends[at - 1] < range.end) && range.start < range.end {
            let start = if at == 0 { 0 } else { self.ends[at - 1] };
            let batch = self.batch(at)?;
            let (from, to) = (range.start.max(start) - start, range.end.min(self.ends[at]) - start);
            if to > batch.num_rows() as u64 {
                return Err(Error::storage(format!("{} is damaged: run the job afresh", self.path.display())));
            }
            parts.push(batch.slice(from as usize, (to - from) as usize));
            at += 1;
        }
        concat_batches(&self.reader.schema(), &parts).map_err(|e| fault("read", &self.path, &e))
    }

    fn batch(&mut self, at: usize) -> Result<RecordBatch> {
        if let Some((last, batch)) = &self.last
            && *last == at
        {
            return Ok(batch.clone());
        }
        self.reader.set_index(at).map_err(|e| fault("read", &self.path, &e))?;
        let missing = || Error::storage(format!("{} is cut short: run the job afresh", self.path.display()));
        let batch = self.reader.next().ok_or_else(missing)?.map_err(|e| fault("read", &self.path, &e))?;
        self.last = Some((at, batch.clone()));
        Ok(batch)
    }
}
