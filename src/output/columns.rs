//! The columns of `data/`: one schema for every part of every job.
//!
//! Readers break on null-typed, unsigned, dictionary and view columns and on parts whose schemas differ, so every column stands in every
//! part with its own type, also where no row fills it.

use std::iter::repeat_n;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, Float32Builder, Int32Builder, Int64Builder, ListBuilder, PrimitiveBuilder, StringArray, StringBuilder, new_null_array,
};
use arrow::datatypes::{ArrowPrimitiveType, DataType, Field, Fields};

use super::answer::Answer;

/// The output's own columns in their order; kept columns follow them and may not carry their names.
pub fn data_fields() -> Vec<Field> {
    use DataType::{Float32, Int32, Int64, Utf8};
    let label_score = Fields::from(vec![Field::new("label", Utf8, false), Field::new("logprob", Float32, false)]);
    vec![
        Field::new("custom_id", Utf8, false),
        Field::new("row_index", Int64, false),
        Field::new("status", Utf8, false),
        Field::new("text", Utf8, true),
        Field::new("reasoning", Utf8, true),
        Field::new("label", Utf8, true),
        Field::new("label_scores", list_of(DataType::Struct(label_score), false), true),
        Field::new("parsed", Utf8, true),
        Field::new("finish_reason", Utf8, true),
        Field::new("stop_reason", Utf8, true),
        Field::new("error_code", Utf8, true),
        Field::new("error_message", Utf8, true),
        Field::new("prompt_tokens", Int32, false),
        Field::new("completion_tokens", Int32, false),
        Field::new("total_tokens", Int32, false),
        Field::new("truncated_tokens", Int32, false),
        Field::new("token_ids", list_of(Int32, false), true),
        Field::new("logprobs", list_of(Float32, false), true),
        Field::new("prompt_logprobs", list_of(Float32, true), true),
        Field::new("seed", Int64, false),
        Field::new("prompt_sha256", Utf8, true),
        Field::new("model", Utf8, false),
        Field::new("system_fingerprint", Utf8, false),
    ]
}

/// A list whose element carries the name that Parquet's three-level lists give it.
pub(super) fn list_of(element: DataType, nullable: bool) -> DataType {
    DataType::List(Arc::new(Field::new("element", element, nullable)))
}

/// A builder of [`list_of`].
pub(super) fn list_builder<T: ArrowPrimitiveType>(nullable: bool) -> ListBuilder<PrimitiveBuilder<T>> {
    ListBuilder::new(PrimitiveBuilder::<T>::new()).with_field(Field::new("element", T::DATA_TYPE, nullable))
}

/// Gathers answers, row by row, into the output's own columns.
pub(super) struct DataColumns {
    rows: usize,
    custom_id: StringBuilder,
    row_index: Int64Builder,
    status: StringBuilder,
    text: StringBuilder,
    reasoning: StringBuilder,
    finish_reason: StringBuilder,
    stop_reason: StringBuilder,
    error_code: StringBuilder,
    error_message: StringBuilder,
    prompt_tokens: Int32Builder,
    completion_tokens: Int32Builder,
    total_tokens: Int32Builder,
    truncated_tokens: Int32Builder,
    token_ids: ListBuilder<Int32Builder>,
    logprobs: ListBuilder<Float32Builder>,
    prompt_logprobs: ListBuilder<Float32Builder>,
    seed: Int64Builder,
    prompt_sha256: StringBuilder,
}

impl DataColumns {
    pub(super) fn new() -> Self {
        DataColumns {
            rows: 0,
            custom_id: StringBuilder::new(),
            row_index: Int64Builder::new(),
            status: StringBuilder::new(),
            text: StringBuilder::new(),
            reasoning: StringBuilder::new(),
            finish_reason: StringBuilder::new(),
            stop_reason: StringBuilder::new(),
            error_code: StringBuilder::new(),
            error_message: StringBuilder::new(),
            prompt_tokens: Int32Builder::new(),
            completion_tokens: Int32Builder::new(),
            total_tokens: Int32Builder::new(),
            truncated_tokens: Int32Builder::new(),
            token_ids: list_builder(false),
            logprobs: list_builder(false),
            prompt_logprobs: list_builder(true),
            seed: Int64Builder::new(),
            prompt_sha256: StringBuilder::new(),
        }
    }

    pub(super) fn push(&mut self, answer: &Answer) {
        self.rows += 1;
        self.custom_id.append_value(&answer.custom_id);
        self.row_index.append_value(i64::try_from(answer.row_index).expect("an input has fewer than 2^63 rows"));
        self.status.append_value(if answer.fault.is_none() { "succeeded" } else { "errored" });
        self.text.append_option(answer.text.as_deref());
        self.reasoning.append_option(answer.reasoning.as_deref());
        self.finish_reason.append_option(answer.finish_reason);
        self.stop_reason.append_option(answer.stop_reason.as_deref());
        self.error_code.append_option(answer.fault.as_ref().map(|fault| fault.code.as_str()));
        self.error_message.append_option(answer.fault.as_ref().map(|fault| fault.message.as_str()));
        self.prompt_tokens.append_value(count(answer.prompt_tokens));
        self.completion_tokens.append_value(count(answer.completion_tokens));
        self.total_tokens.append_value(count(answer.prompt_tokens + answer.completion_tokens));
        self.truncated_tokens.append_value(count(answer.truncated_tokens as usize));
        self.token_ids.append_option(answer.token_ids.as_ref().map(|ids| ids.iter().map(|&id| Some(count(id as usize)))));
        self.logprobs.append_option(answer.logprobs.as_ref().map(|list| list.iter().map(|&value| Some(value))));
        self.prompt_logprobs.append_option(answer.prompt_logprobs.as_ref().map(|list| list.iter().copied()));
        self.seed.append_value(answer.seed);
        self.prompt_sha256.append_option(answer.prompt_sha256.as_deref());
    }

    /// The columns of [`data_fields`], one value a row pushed.
    pub(super) fn finish(mut self, model: &str, system_fingerprint: &str) -> Vec<ArrayRef> {
        let rows = self.rows;
        let constant = |value: &str| Arc::new(StringArray::from_iter_values(repeat_n(value, rows))) as ArrayRef;
        let [label, label_scores, parsed] = ["label", "label_scores", "parsed"].map(|name| unfilled(name, rows));
        vec![
            Arc::new(self.custom_id.finish()),
            Arc::new(self.row_index.finish()),
            Arc::new(self.status.finish()),
            Arc::new(self.text.finish()),
            Arc::new(self.reasoning.finish()),
            label,
            label_scores,
            parsed,
            Arc::new(self.finish_reason.finish()),
            Arc::new(self.stop_reason.finish()),
            Arc::new(self.error_code.finish()),
            Arc::new(self.error_message.finish()),
            Arc::new(self.prompt_tokens.finish()),
            Arc::new(self.completion_tokens.finish()),
            Arc::new(self.total_tokens.finish()),
            Arc::new(self.truncated_tokens.finish()),
            Arc::new(self.token_ids.finish()),
            Arc::new(self.logprobs.finish()),
            Arc::new(self.prompt_logprobs.finish()),
            Arc::new(self.seed.finish()),
            Arc::new(self.prompt_sha256.finish()),
            constant(model),
            constant(system_fingerprint),
        ]
    }
}

/// A column that no row fills, with the type it has in [`data_fields`].
fn unfilled(name: &str, rows: usize) -> ArrayRef {
    let fields = data_fields();
    let field = fields.iter().find(|field| field.name() == name).expect("a column of the output");
    new_null_array(field.data_type(), rows)
}

fn count(n: usize) -> i32 {
    i32::try_from(n).expect("sequences and vocabularies are shorter than 2^31")
}

/// The Parquet schema of `fields`, a line each, as a reader sees it.
#[cfg(test)]
pub(super) fn parquet_lines(fields: Vec<Field>) -> Vec<String> {
    let schema = arrow::datatypes::Schema::new(fields);
    let converted = parquet::arrow::ArrowSchemaConverter::new().convert(&schema).expect("types that Parquet has");
    let mut text = Vec::new();
    parquet::schema::printer::print_schema(&mut text, converted.root_schema());
    let text = String::from_utf8(text).expect("text");
    text.lines().map(str::trim).filter(|line| !line.starts_with("message") && *line != "}").map(String::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_input_knows_every_name_that_is_taken() {
        assert_eq!(data_fields().iter().map(|field| field.name().as_str()).collect::<Vec<_>>(), crate::input::TAKEN);
    }

    #[test]
    fn parquet_types_are_the_promised_ones() {
        // Who reads two jobs at once breaks when a line here changes.
        let expected = [
            "REQUIRED BYTE_ARRAY custom_id (STRING);",
            "REQUIRED INT64 row_index;",
            "REQUIRED BYTE_ARRAY status (STRING);",
            "OPTIONAL BYTE_ARRAY text (STRING);",
            "OPTIONAL BYTE_ARRAY reasoning (STRING);",
            "OPTIONAL BYTE_ARRAY label (STRING);",
            "OPTIONAL group label_scores (LIST) {",
            "REPEATED group list {",
            "REQUIRED group element {",
            "REQUIRED BYTE_ARRAY label (STRING);",
            "REQUIRED FLOAT logprob;",
            "OPTIONAL BYTE_ARRAY parsed (STRING);",
            "OPTIONAL BYTE_ARRAY finish_reason (STRING);",
            "OPTIONAL BYTE_ARRAY stop_reason (STRING);",
            "OPTIONAL BYTE_ARRAY error_code (STRING);",
            "OPTIONAL BYTE_ARRAY error_message (STRING);",
            "REQUIRED INT32 prompt_tokens;",
            "REQUIRED INT32 completion_tokens;",
            "REQUIRED INT32 total_tokens;",
            "REQUIRED INT32 truncated_tokens;",
            "OPTIONAL group token_ids (LIST) {",
            "REPEATED group list {",
            "REQUIRED INT32 element;",
            "OPTIONAL group logprobs (LIST) {",
            "REPEATED group list {",
            "REQUIRED FLOAT element;",
            "OPTIONAL group prompt_logprobs (LIST) {",
            "REPEATED group list {",
            "OPTIONAL FLOAT element;",
            "REQUIRED INT64 seed;",
            "OPTIONAL BYTE_ARRAY prompt_sha256 (STRING);",
            "REQUIRED BYTE_ARRAY model (STRING);",
            "REQUIRED BYTE_ARRAY system_fingerprint (STRING);",
        ];
        assert_eq!(parquet_lines(data_fields()), expected);
    }
}
