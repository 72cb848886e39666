//! Parquet files as other writers make them.

use std::fs::File;
use std::sync::Arc;

use ::parquet::arrow::ArrowWriter;
use arrow::array::{ArrayRef, AsArray, Int32Array, ListArray, RecordBatch, StringArray, UInt64Array};
use arrow::datatypes::{DataType, Int32Type, Int64Type, TimeUnit};

use super::super::KeptReader;
use super::*;

fn fixture(name: &str) -> PathBuf {
    fixtures().join("parquet").join(name)
}

fn write(bench: &mut Bench, name: &str, columns: Vec<(&str, ArrayRef)>) {
    let path = bench.folder.path().join(name);
    let batch = RecordBatch::try_from_iter(columns).expect("a batch");
    let mut writer = ArrowWriter::try_new(File::create(&path).expect("a file"), batch.schema(), None).expect("a writer");
    writer.write(&batch).expect("written");
    writer.close().expect("closed");
    bench.section.paths.push(path);
}

#[test]
fn codecs_encodings_and_row_groups_give_the_same_rows() {
    let rows = |names: &[&str]| {
        let mut bench = Bench::new().template("{{ text }}");
        bench.section.paths = names.iter().map(|name| fixture(name)).collect();
        bench.requests()
    };
    let plain = rows(&["none.parquet"]);
    assert_eq!(plain.len(), 50);
    assert_eq!(plain[1].prompt, user("x }} 👍 <|close|>"));
    for name in ["snappy", "gzip", "brotli", "lz4", "zstd", "page-v2", "delta-byte-array", "delta-length-byte-array", "groups-of-7"] {
        assert_eq!(rows(&[&format!("{name}.parquet")]), plain, "{name}");
    }
    let mut bench = Bench::new().template("{{ text }}");
    bench.section.paths = vec![fixture("snappy.parquet"), fixture("brotli.parquet")];
    bench.refused(Kind::Refused, &["`r0`", "snappy.parquet row 1", "brotli.parquet row 1"]);
}

#[test]
fn every_string_layout_is_text() {
    for column in ["plain", "large", "view", "dictionary"] {
        let mut bench = Bench::new().template(&format!("{{{{ {column} }}}}"));
        bench.section.paths = vec![fixture("layouts.parquet")];
        // the fixture's `params` holds 4.5 tokens in row 2
        let requests = bench.requests();
        assert_eq!(bench.codes(), ["", "", "bad_max_tokens", ""], "{column}");
        assert_eq!((requests[0].prompt.clone(), requests[1].prompt.clone()), (user("a b"), user("é")), "{column}");
        assert_eq!(requests[0].id, "10");
    }
}

#[test]
fn every_list_layout_is_a_list_and_structs_have_absent_fields() {
    let layouts = File::open(fixture("layouts.parquet")).expect("the fixture");
    let reader = ::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder::try_new(layouts).expect("Parquet");
    let batch = reader.build().expect("a reader").next().expect("a batch").expect("read");
    let as_column = |from: &str, to: &str| {
        let mut bench = Bench::new();
        let column = batch.column_by_name(from).expect("a column").clone();
        write(&mut bench, "a.parquet", vec![("id", batch.column(0).clone()), (to, column)]);
        bench
    };
    for column in ["ids", "large_ids", "fixed_ids"] {
        let bench = as_column(column, "prompt_token_ids");
        assert_eq!(bench.requests()[0].prompt, [1, 2], "{column}");
        assert_eq!(bench.codes()[3], "no_prompt", "{column}");
    }
    assert_eq!(as_column("ids", "prompt_token_ids").codes(), ["", "", "empty_prompt", "no_prompt"]);
    let bench = as_column("messages", "messages");
    assert_eq!(bench.codes(), ["", "", "bad_messages", "no_prompt"]);
    assert_eq!(bench.requests()[0].prompt, user("a b"));
    assert_eq!(as_column("large_messages", "messages").codes(), ["", "bad_messages", "no_prompt", ""]);
    let mut bench = Bench::new();
    bench.section.paths = vec![fixture("list-view.parquet")];
    bench.section.id = Some("id".into());
    assert_eq!(bench.codes(), ["no_prompt", "no_prompt"]);
}

#[test]
fn params_of_a_struct_column_count() {
    let mut bench = Bench::new().template("{{ u8 }}");
    bench.section.paths = vec![fixture("layouts.parquet")];
    let requests = bench.requests();
    assert_eq!(requests.iter().map(|r| r.sampling.max_tokens).collect::<Vec<_>>(), [4, 7, 7, 7]);
    assert_eq!((requests[0].sampling.temperature, requests[0].sampling.stop.as_slice()), (0.1, ["x".to_string()].as_slice()));
    assert_eq!(requests[3].prompt, user("255"));
}

#[test]
fn columns_are_checked_before_the_first_row() {
    let mut bench = Bench::new().template("Which section?\n\n{{ txt }}");
    bench.section.paths = vec![fixture("none.parquet")];
    bench.refused(Kind::Usage, &["`txt`", "`text`"]);
    assert!(!bench.state().join("requests.spool").exists(), "nothing was read");
    bench = bench.template("{{ ns }} {{ when }} {{ half }} {{ u64_big }}");
    bench.section.paths = vec![fixture("layouts.parquet")];
    assert_eq!(bench.requests()[0].prompt, user("1970-01-01T00:00:01Z 1970-01-02 0.5 1"));
    bench = bench.template("{{ pairs }}");
    bench.section.paths = vec![fixture("layouts.parquet")];
    bench.refused(Kind::Refused, &["layouts.parquet", "`pairs`", "Map"]);
}

#[test]
fn kept_columns_take_types_that_readers_share() {
    let mut bench = Bench::new().template("{{ id }}");
    bench.section.paths = vec![fixture("layouts.parquet")];
    bench.section.keep = ["u8", "u64", "half", "ns", "view", "dictionary", "fixed_ids", "nested"].map(String::from).to_vec();
    let kinds: Vec<DataType> = bench.read().expect("read").kept.iter().map(|field| field.data_type().clone()).collect();
    assert_eq!(
        kinds[..6],
        [
            DataType::Int64,
            DataType::Int64,
            DataType::Float32,
            DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
            DataType::Utf8,
            DataType::Utf8
        ]
    );
    let DataType::List(element) = &kinds[6] else { panic!("{}", kinds[6]) };
    assert_eq!(element.data_type(), &DataType::Int64);
    assert!(!format!("{}", kinds[7]).contains("UInt"), "{}", kinds[7]);
    let batch = KeptReader::open(&bench.state()).expect("kept").rows(1..4).expect("rows");
    assert_eq!(batch.column(1).as_primitive::<Int64Type>().value(2), i64::MAX);
    assert_eq!(batch.column(4).as_string::<i32>().value(2), "日本 and a longer text than twelve bytes");
    assert!(batch.column(5).is_null(1));
    assert_eq!(batch.column(6).as_list::<i32>().value(0).as_primitive::<Int64Type>().values(), &[3, 4]);

    bench.section.keep = vec!["u64_big".into()];
    bench.refused(Kind::Refused, &["layouts.parquet row 4", "`u64_big`", "9223372036854775808"]);
    bench.section.keep = vec!["pairs".into()];
    bench.refused(Kind::Refused, &["layouts.parquet", "`pairs`"]);
}

#[test]
fn a_kept_column_has_one_type_over_all_files() {
    let ids = |ids: [&str; 2]| Arc::new(StringArray::from(ids.to_vec())) as ArrayRef;
    let mut bench = Bench::new().template("{{ id }}");
    bench.section.keep = vec!["n".into()];
    write(&mut bench, "a.parquet", vec![("id", ids(["a", "b"])), ("n", Arc::new(Int32Array::from(vec![1, 2])))]);
    write(&mut bench, "b.parquet", vec![("id", ids(["c", "d"]))]);
    bench.read().expect("a column that one file lacks is null there");
    let batch = KeptReader::open(&bench.state()).expect("kept").rows(0..4).expect("rows");
    assert_eq!(batch.column(0).as_primitive::<Int32Type>().iter().collect::<Vec<_>>(), [Some(1), Some(2), None, None]);
    write(&mut bench, "c.parquet", vec![("id", ids(["e", "f"])), ("n", Arc::new(UInt64Array::from(vec![1, 2])))]);
    bench.refused(Kind::Refused, &["`n`", "a.parquet", "c.parquet", "Int32", "Int64"]);
    bench.section.paths.pop();
    bench.add("d.jsonl", "{\"id\":\"g\",\"n\":1}");
    bench.refused(Kind::Refused, &["`n`", "a.parquet", "d.jsonl", "JSON text"]);
}

#[test]
fn damaged_files_are_refused_and_never_panic() {
    let whole = fs::read(fixture("zstd.parquet")).expect("the fixture");
    let mut bench = Bench::new().template("{{ text }}");
    bench.add("a.parquet", &whole);
    for at in (4..whole.len()).step_by(7) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0xff;
        bench.put("a.parquet", &bytes);
        if let Err(error) = bench.read() {
            assert!(error.kind == Kind::Usage || error.message.contains("a.parquet"), "{error}");
        }
        bench.put("a.parquet", &whole[..at]);
        bench.refused(Kind::Refused, &["a.parquet"]);
    }
    let none = StringArray::from(Vec::<&str>::new());
    let mut bench = Bench::new();
    write(&mut bench, "none.parquet", vec![("prompt", Arc::new(none))]);
    bench.refused(Kind::Refused, &["none.parquet", "no rows"]);
}

#[test]
fn long_prompts_of_ids_survive_the_way() {
    let ids: Vec<Option<i32>> = (0..20_000).map(|n| Some(n % 4096)).collect();
    let mut bench = Bench::new();
    let list = ListArray::from_iter_primitive::<Int32Type, _, _>([Some(ids.clone()), None]);
    write(&mut bench, "a.parquet", vec![("prompt_token_ids", Arc::new(list))]);
    let requests = bench.requests();
    assert_eq!(requests[0].prompt.len(), ids.len());
    assert_eq!(requests[1].fault.as_ref().map(|fault| fault.code.as_str()), Some("no_prompt"));
}
