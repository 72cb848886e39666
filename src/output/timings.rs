//! The columns of `timings/`: what each row cost, apart from what it says.
//!
//! Times are the machine's and differ from run to run, so none of this stands in `data/`. `queue_ms` runs from the job's start to
//! admission, `prefill_ms` from there to the first token, `decode_ms` from there to the end; `ttft_ms` is the first two together. A row that was never
//! admitted (its stamp starts at 0), or that made no token, has nulls where there is nothing to measure.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, Float64Builder, Int32Builder, Int64Array, Int64Builder, ListBuilder, StringArray, StringBuilder, TimestampMicrosecondBuilder,
};
use arrow::datatypes::{DataType, Field, TimeUnit};

use super::columns::{list_builder, list_of};
use crate::event::Stamp;

const MICROSECONDS_PER_MILLISECOND: f64 = 1e3;
const MICROSECONDS_PER_SECOND: f64 = 1e6;
/// A first run; nothing continues a row inside itself yet.
const FIRST_ATTEMPT: i32 = 1;
const FROM_THE_START: i32 = 0;

/// The columns of `timings/` in their order.
pub(super) fn timing_fields() -> Vec<Field> {
    use DataType::{Float64, Int32, Int64, Utf8};
    let time = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
    vec![
        Field::new("custom_id", Utf8, false),
        Field::new("run_id", Utf8, false),
        Field::new("attempt", Int32, false),
        Field::new("group_id", Int64, true),
        Field::new("started_at", time.clone(), true),
        Field::new("first_token_at", time.clone(), true),
        Field::new("finished_at", time, true),
        Field::new("queue_ms", Float64, true),
        Field::new("prefill_ms", Float64, true),
        Field::new("decode_ms", Float64, true),
        Field::new("ttft_ms", Float64, true),
        Field::new("tokens_per_second", Float64, true),
        Field::new("bytes_read", Int64, false),
        Field::new("expert_hits", Int64, false),
        Field::new("expert_misses", Int64, false),
        Field::new("resumed_from_token", Int32, false),
        Field::new("token_us", list_of(Int64, false), false),
        Field::new("token_bytes_read", list_of(Int64, false), false),
        Field::new("token_rows", list_of(Int32, false), false),
    ]
}

/// Gathers stamps, row by row, into the columns of `timings/`.
pub(super) struct TimingColumns {
    rows: usize,
    custom_id: StringBuilder,
    group_id: Int64Builder,
    /// started, first token, finished
    moments: [TimestampMicrosecondBuilder; 3],
    /// queue, prefill, decode, time to first token, tokens a second
    measures: [Float64Builder; 5],
    /// bytes read, expert hits, expert misses
    counts: [Vec<i64>; 3],
    token_us: ListBuilder<Int64Builder>,
    token_bytes_read: ListBuilder<Int64Builder>,
    token_rows: ListBuilder<Int32Builder>,
}

impl TimingColumns {
    pub(super) fn new() -> Self {
        TimingColumns {
            rows: 0,
            custom_id: StringBuilder::new(),
            group_id: Int64Builder::new(),
            moments: std::array::from_fn(|_| TimestampMicrosecondBuilder::new().with_timezone("UTC")),
            measures: std::array::from_fn(|_| Float64Builder::new()),
            counts: std::array::from_fn(|_| Vec::new()),
            token_us: list_builder(false),
            token_bytes_read: list_builder(false),
            token_rows: list_builder(false),
        }
    }

    pub(super) fn push(&mut self, custom_id: &str, stamp: &Stamp) {
        self.rows += 1;
        self.custom_id.append_value(custom_id);
        let admitted = stamp.started_us != 0;
        let spoke = admitted && !stamp.token_us.is_empty();
        self.group_id.append_option(admitted.then_some(stamp.group_id));

        let after_start = |us: i64| stamp.started_us.saturating_add(us);
        let [started, first_token, finished] = &mut self.moments;
        started.append_option(admitted.then_some(stamp.started_us));
        first_token.append_option(spoke.then(|| after_start(stamp.first_token_us)));
        finished.append_option(admitted.then(|| after_start(stamp.finished_us)));

        let ms = |us: i64| us as f64 / MICROSECONDS_PER_MILLISECOND;
        let [queue, prefill, decode, ttft, rate] = &mut self.measures;
        queue.append_option(admitted.then(|| ms(stamp.queue_us)));
        prefill.append_option(admitted.then(|| ms(if spoke { stamp.first_token_us } else { stamp.finished_us })));
        decode.append_option(spoke.then(|| ms(stamp.finished_us.saturating_sub(stamp.first_token_us))));
        ttft.append_option(spoke.then(|| ms(stamp.queue_us.saturating_add(stamp.first_token_us))));
        let seconds = stamp.finished_us as f64 / MICROSECONDS_PER_SECOND;
        rate.append_option((spoke && seconds > 0.0).then(|| stamp.token_us.len() as f64 / seconds));

        let [bytes_read, hits, misses] = &mut self.counts;
        bytes_read.push(stamp.bytes_read);
        hits.push(stamp.expert_hits);
        misses.push(stamp.expert_misses);
        self.token_us.append_value(stamp.token_us.iter().map(|&us| Some(us)));
        self.token_bytes_read.append_value(stamp.token_bytes_read.iter().map(|&bytes| Some(bytes)));
        self.token_rows.append_value(stamp.token_rows.iter().map(|&rows| Some(rows)));
    }

    /// The columns of [`timing_fields`], one value a row pushed.
    pub(super) fn finish(mut self, run_id: &str) -> Vec<ArrayRef> {
        let rows = self.rows;
        let number = |value: i32| Arc::new(arrow::array::Int32Array::from_value(value, rows)) as ArrayRef;
        let mut columns: Vec<ArrayRef> = vec![
            Arc::new(self.custom_id.finish()),
            Arc::new(StringArray::from_iter_values(std::iter::repeat_n(run_id, rows))),
            number(FIRST_ATTEMPT),
            Arc::new(self.group_id.finish()),
        ];
        columns.extend(self.moments.iter_mut().map(|builder| Arc::new(builder.finish()) as ArrayRef));
        columns.extend(self.measures.iter_mut().map(|builder| Arc::new(builder.finish()) as ArrayRef));
        columns.extend(self.counts.into_iter().map(|values| Arc::new(Int64Array::from(values)) as ArrayRef));
        columns.push(number(FROM_THE_START));
        columns.push(Arc::new(self.token_us.finish()));
        columns.push(Arc::new(self.token_bytes_read.finish()));
        columns.push(Arc::new(self.token_rows.finish()));
        columns
    }
}

#[cfg(test)]
mod tests {
    use super::super::columns::parquet_lines;
    use super::*;

    #[test]
    fn parquet_types_are_the_promised_ones() {
        let expected = [
            "REQUIRED BYTE_ARRAY custom_id (STRING);",
            "REQUIRED BYTE_ARRAY run_id (STRING);",
            "REQUIRED INT32 attempt;",
            "OPTIONAL INT64 group_id;",
            "OPTIONAL INT64 started_at (TIMESTAMP(MICROS,true));",
            "OPTIONAL INT64 first_token_at (TIMESTAMP(MICROS,true));",
            "OPTIONAL INT64 finished_at (TIMESTAMP(MICROS,true));",
            "OPTIONAL DOUBLE queue_ms;",
            "OPTIONAL DOUBLE prefill_ms;",
            "OPTIONAL DOUBLE decode_ms;",
            "OPTIONAL DOUBLE ttft_ms;",
            "OPTIONAL DOUBLE tokens_per_second;",
            "REQUIRED INT64 bytes_read;",
            "REQUIRED INT64 expert_hits;",
            "REQUIRED INT64 expert_misses;",
            "REQUIRED INT32 resumed_from_token;",
            "REQUIRED group token_us (LIST) {",
            "REPEATED group list {",
            "REQUIRED INT64 element;",
            "REQUIRED group token_bytes_read (LIST) {",
            "REPEATED group list {",
            "REQUIRED INT64 element;",
            "REQUIRED group token_rows (LIST) {",
            "REPEATED group list {",
            "REQUIRED INT32 element;",
        ];
        assert_eq!(parquet_lines(timing_fields()), expected);
    }
}
