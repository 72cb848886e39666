//! From files to the spool: every row read once, in order, each handed on before the next is looked at.

use std::collections::HashSet;
use std::path::Path;

use arrow::datatypes::Schema;
use serde_json::{Map, Value};

use super::columns::Columns;
use super::files::{Format, Source};
use super::ids::{Ids, USUAL};
use super::jsonl::{self, Lines};
use super::kept::{KeptPlan, KeptWriter};
use super::parquet::{self, Batches};
use super::request::{CONTENT, FRAME, Forms};
use super::room;
use super::template::Template;
use super::{Ingested, InputFile, Place, cells};
use crate::error::{Error, Result};
use crate::job::{InputSection, OnBadLine};
use crate::request::{Request, RowFacts};
use crate::spool::SpoolWriter;

/// Rows between two calls of the watch.
const WATCH_ROWS: u64 = 1024;

/// What is known of all files before the first row is read.
pub(super) struct Survey {
    columns: Columns,
    kept: Option<KeptPlan>,
}

/// Looks at every file's head: kinds, schemas, codecs, columns.
///
/// # Errors
/// Refused: a file that cannot be read to its end later on. Usage: a column that no file has, where schemas can tell.
pub(super) fn survey(sources: &[Source], section: &InputSection, template: Option<&Template>) -> Result<Survey> {
    let mut columns = Columns::new();
    if let Some(id) = &section.id {
        columns.want("input.id", id);
    }
    for name in template.map_or(&[][..], Template::columns) {
        columns.want("input.template", name);
    }
    for name in &section.keep {
        columns.want("output.keep", name);
    }
    let mut kept = (!section.keep.is_empty()).then(|| KeptPlan::new(&section.keep)).transpose()?;
    for Source { path, format, .. } in sources {
        let schema = match format {
            Format::Jsonl => Lines::open(path).map(|_| None)?,
            Format::Parquet => Some(survey_parquet(path, section, template)?),
        };
        if let Some(schema) = &schema {
            columns.saw(schema.fields().iter().map(|field| field.name().as_str()));
        }
        if let Some(kept) = &mut kept {
            kept.file(path, *format, schema.as_deref())?;
        }
    }
    if sources.iter().all(|source| source.format == Format::Parquet) {
        columns.check()?;
    }
    Ok(Survey { columns, kept })
}

fn survey_parquet(path: &Path, section: &InputSection, template: Option<&Template>) -> Result<arrow::datatypes::SchemaRef> {
    let schema = parquet::footer(path, &|name| frame(section, template, name) || section.keep.iter().any(|keep| keep == name))?;
    let needs = Needs::of(&schema, section, template);
    for field in schema.fields().iter().filter(|field| needs.row.contains(field.name())) {
        let (file, name) = (path.display(), field.name());
        cells::readable(field.data_type()).map_err(|why| Error::refused(format!("{file}: the column `{name}` cannot be read: {why}")))?;
    }
    let mut names = HashSet::new();
    if let Some(twice) = schema.fields().iter().find(|field| !names.insert(field.name())) {
        return Err(Error::refused(format!("{} has two columns `{}`", path.display(), twice.name())));
    }
    Ok(schema)
}

/// Whether a row's form may need the column `name`.
fn frame(section: &InputSection, template: Option<&Template>, name: &str) -> bool {
    let id = match &section.id {
        Some(id) => id == name,
        None => USUAL.contains(&name),
    };
    id || CONTENT.contains(&name) || FRAME.contains(&name) || template.is_some_and(|template| template.columns().iter().any(|c| c == name))
}

/// The columns of one Parquet file that are read.
struct Needs {
    /// For the request.
    row: Vec<String>,
    /// For the request or for the output.
    all: Vec<String>,
}

impl Needs {
    fn of(schema: &Schema, section: &InputSection, template: Option<&Template>) -> Self {
        let names = || schema.fields().iter().map(|field| field.name().clone());
        let templated = template.filter(|template| names().any(|name| template.columns().contains(&name)) || template.columns().is_empty());
        // where the template decides, other columns are data of any type
        let is_data = |name: &String| {
            templated.is_some_and(|template| {
                (CONTENT.contains(&name.as_str()) || FRAME.contains(&name.as_str()))
                    && name != "params"
                    && !template.columns().contains(name)
            })
        };
        let row: Vec<String> =
            names().filter(|name| frame(section, template, name) && (!is_data(name) || section.id.as_ref() == Some(name))).collect();
        let all = names().filter(|name| row.contains(name) || section.keep.contains(name)).collect();
        Needs { row, all }
    }
}

/// The reading under way.
pub(super) struct Intake<'j> {
    forms: Forms<'j>,
    columns: Columns,
    kept: Option<KeptWriter>,
    spool: SpoolWriter,
    ids: Ids<'j>,
    facts: Vec<RowFacts>,
    files: Vec<InputFile>,
    row_bytes: u64,
    watch: &'j mut dyn FnMut(u64),
}

impl<'j> Intake<'j> {
    /// # Errors
    /// Storage: a file cannot be created in `state`.
    pub(super) fn start(survey: Survey, forms: Forms<'j>, state: &Path, watch: &'j mut dyn FnMut(u64)) -> Result<Self> {
        Ok(Intake {
            columns: survey.columns,
            kept: survey.kept.map(|plan| KeptWriter::create(&plan, state)).transpose()?,
            spool: SpoolWriter::create(state)?,
            ids: Ids::new(forms.section.id.as_deref()),
            facts: Vec::new(),
            files: Vec::new(),
            row_bytes: 0,
            forms,
            watch,
        })
    }

    /// Reads all of `sources`.
    pub(super) fn run(mut self, sources: &[Source]) -> Result<Ingested> {
        for source in sources {
            let before = self.facts.len();
            let blake3 = match source.format {
                Format::Jsonl => self.lines(&source.path)?,
                Format::Parquet => self.batches(&source.path)?,
            };
            let rows = (self.facts.len() - before) as u64;
            if rows == 0 {
                return Err(Error::refused(format!("the input {} holds no rows", source.path.display())));
            }
            self.files.push(InputFile { path: source.path.clone(), bytes: source.bytes, rows, blake3 });
        }
        self.finish(sources)
    }

    fn lines(&mut self, path: &Path) -> Result<[u8; 32]> {
        let room = self.forms.room;
        let mut lines = Lines::within(path, room)?;
        while let Some((number, line)) = lines.next()? {
            let place = Place { path, unit: "line", number };
            self.row_bytes = self.row_bytes.max(room.check(&place, room::line_bytes(line))?);
            match jsonl::object(line) {
                Ok(row) => {
                    self.columns.saw(row.keys().map(String::as_str));
                    self.keep_json(Some(&row))?;
                    self.row(&row, place)?;
                }
                Err(why) if self.forms.section.on_bad_line == OnBadLine::Row => {
                    self.keep_json(None)?;
                    let (index, id) = (self.facts.len() as u64, self.ids.skip());
                    self.push(&self.forms.bad_line(index, id, format!("{place} is not a JSON object: {why}")))?;
                }
                Err(why) => {
                    return Err(Error::refused(format!(
                        "{place} is not a JSON object: {why}; mend the file, or set input.on_bad_line = \"row\" to answer the other lines"
                    )));
                }
            }
        }
        Ok(lines.blake3())
    }

    fn keep_json(&mut self, row: Option<&Map<String, Value>>) -> Result<()> {
        self.kept.as_mut().map_or(Ok(()), |kept| kept.push_json(row))
    }

    fn batches(&mut self, path: &Path) -> Result<[u8; 32]> {
        let schema = parquet::footer(path, &|_| false)?;
        let needs = Needs::of(&schema, self.forms.section, self.forms.template);
        let mut batches = Batches::open(path, &|name| needs.all.iter().any(|need| need == name))?;
        let mut number = 1;
        while let Some(batch) = batches.next()? {
            if let Some(kept) = &mut self.kept {
                kept.push_batch(path, number, &batch)?;
            }
            let broken = |name: &str, e: &dyn std::fmt::Display| {
                Error::refused(format!("{}: the column `{name}` cannot be read from row {number} on: {e}", path.display()))
            };
            let mut columns = Vec::new();
            for name in &needs.row {
                if let Some(array) = batch.column_by_name(name) {
                    columns.push((name, cells::plain(array).map_err(|e| broken(name, &e))?));
                }
            }
            for at in 0..batch.num_rows() {
                let value = |(name, array): &(&String, arrow::array::ArrayRef)| {
                    Ok(((*name).clone(), cells::cell(array, at).map_err(|e| broken(name, &e))?))
                };
                let row = columns.iter().map(value).collect::<Result<Map<_, _>>>()?;
                let place = Place { path, unit: "row", number: number + at as u64 };
                self.row_bytes = self.row_bytes.max(self.forms.room.check(&place, room::row_bytes(row.values()))?);
                self.row(&row, place)?;
            }
            number += batch.num_rows() as u64;
        }
        parquet::blake3(path)
    }

    fn row(&mut self, row: &Map<String, Value>, place: Place<'_>) -> Result<()> {
        let index = self.facts.len() as u64;
        let id = self.ids.take(row, place)?;
        let request = self.forms.request(index, id, row);
        if let Some(error) = self.forms.trouble.take() {
            return Err(Error { message: format!("{place}: {}", error.message), ..error });
        }
        self.push(&request)
    }

    fn push(&mut self, request: &Request) -> Result<()> {
        self.spool.push(request)?;
        self.facts.push(RowFacts::of(request));
        let rows = self.facts.len() as u64;
        if rows.is_multiple_of(WATCH_ROWS) {
            (self.watch)(rows);
        }
        Ok(())
    }

    fn finish(self, sources: &[Source]) -> Result<Ingested> {
        self.columns.check()?;
        let kept = self.kept.map_or(Ok(Vec::new()), KeptWriter::finish)?;
        let spool = self.spool.finish()?;
        self.ids.check(&spool, |index| locate(sources, &self.files, index))?;
        (self.watch)(self.facts.len() as u64);
        let mut hash = blake3::Hasher::new();
        for file in &self.files {
            hash.update(&file.blake3);
        }
        Ok(Ingested {
            spool,
            kept,
            facts: self.facts,
            row_bytes: self.row_bytes,
            files: self.files,
            fingerprint: *hash.finalize().as_bytes(),
        })
    }
}

/// Where the row `index` stands, for a message; reads its file once more.
fn locate(sources: &[Source], files: &[InputFile], index: u64) -> Result<String> {
    let mut before = index;
    for (source, file) in sources.iter().zip(files) {
        if before >= file.rows {
            before -= file.rows;
            continue;
        }
        let path = &source.path;
        return Ok(match source.format {
            Format::Jsonl => Place { path, unit: "line", number: jsonl::line_of(path, before)? }.to_string(),
            Format::Parquet => Place { path, unit: "row", number: before + 1 }.to_string(),
        });
    }
    Ok(format!("row {index}"))
}
