//! Templates over columns, and columns that are kept.

use arrow::array::AsArray;
use arrow::datatypes::DataType;

use super::super::KeptReader;
use super::*;

#[test]
fn a_column_that_no_row_has_is_named_with_the_nearest() {
    let rows = "{\"id\":1,\"text\":\"x\"}\n{\"id\":2,\"text\":\"y\",\"lang\":\"en\"}\n";
    Bench::of(rows).template("{{ txt }}").refused(Kind::Usage, &["input.template", "`txt`", "`text`"]);
    let mut bench = Bench::of(rows).template("{{ text }}");
    bench.section.keep = vec!["lnag".into()];
    bench.refused(Kind::Usage, &["output.keep", "`lnag`", "`lang`"]);
    bench.section.keep.clear();
    bench.section.id = Some("ID".into());
    bench.refused(Kind::Usage, &["input.id", "`ID`", "`id`"]);
    Bench::of(rows).template("{{ text").refused(Kind::Usage, &["input.template"]);
}

#[test]
fn a_null_or_absent_column_is_an_errored_row() {
    let rows = "{\"id\":1,\"text\":\"x\"}\n{\"id\":2,\"text\":null}\n{\"id\":3,\"other\":1}\n{\"id\":4,\"text\":\"\"}\n";
    let bench = Bench::of(rows).template("Q\n\n{{ text }}");
    assert_eq!(bench.codes(), ["", "missing_column", "missing_column", ""]);
    assert_eq!(bench.requests()[3].prompt, user("Q\n\n"));
}

#[test]
fn a_document_is_data_and_its_twin_as_messages_is_the_same_prompt() {
    let text = "  {{ 7*7 }} {% if x %} {# c #} {{text}} & <b> 'q' \n";
    let flat = serde_json::json!({ "text": text, "prompt": 7, "temperature": "hot", "body": "mail", "params": { "max_tokens": 2 } });
    let twin = serde_json::json!({ "messages": [{ "role": "user", "content": format!("Which section?\n\n{text}") }] });
    let bench = Bench::of(format!("{flat}\n{twin}")).template("Which section?\n\n{{ text }}");
    let requests = bench.requests();
    assert_eq!(requests[0].prompt, requests[1].prompt);
    assert_eq!(requests[0].prompt, user(&format!("Which section?\n\n{text}")));
    assert_eq!(requests[0].sampling.max_tokens, 2);
}

#[test]
fn kept_columns_come_back_in_input_order() {
    let mut lines: Vec<String> = (0..3000).map(|n| format!("{{\"prompt\":\"x\",\"n\":{n},\"text\":\"t{n}\"}}")).collect();
    lines[5] = "{\"prompt\":\"x\",\"n\":null}".into();
    lines[6] = "{\"prompt\":\"x\",\"n\":{\"b\":1,\"a\":[2.0]}}".into();
    lines[7] = "torn".into();
    let mut bench = Bench::of(lines.join("\n"));
    bench.section.on_bad_line = OnBadLine::Row;
    bench.section.keep = vec!["n".into(), "text".into()];
    let names: Vec<String> = bench.read().expect("read").kept.iter().map(|field| field.name().clone()).collect();
    assert_eq!(names, ["n", "input_text"]);
    let mut reader = KeptReader::open(&bench.state()).expect("kept columns");
    assert_eq!(reader.len(), 3000);
    assert_eq!(reader.fields()[0].data_type(), &DataType::Utf8);
    for range in [0..10, 1020..1030, 2999..3000, 0..3000, 7..7, 1024..2048] {
        let batch = reader.rows(range.clone()).expect("rows");
        assert_eq!(batch.num_rows() as u64, range.end - range.start);
        for (row, at) in range.zip(0..) {
            let cell = |column: usize| {
                batch.column(column).as_string_opt::<i32>().expect("text").iter().nth(at).expect("a row").map(str::to_string)
            };
            match row {
                5 => assert_eq!((cell(0), cell(1)), (None, None)),
                6 => assert_eq!(cell(0).as_deref(), Some("{\"b\":1,\"a\":[2.0]}")),
                7 => assert_eq!((cell(0), cell(1)), (None, None)),
                _ => assert_eq!((cell(0), cell(1)), (Some(row.to_string()), Some(format!("\"t{row}\"")))),
            }
        }
    }
}

#[test]
fn taken_names_get_a_prefix_or_are_refused() {
    let keep = |names: &[&str]| {
        let mut bench = Bench::of("{\"prompt\":\"x\",\"Text\":1,\"input_text\":2,\"SEED\":3,\"seed2\":4,\"Seed2\":5}");
        bench.section.keep = names.iter().map(|name| name.to_string()).collect();
        bench
    };
    let names: Vec<String> = keep(&["Text", "SEED", "seed2"]).read().expect("read").kept.iter().map(|f| f.name().clone()).collect();
    assert_eq!(names, ["input_Text", "input_SEED", "seed2"]);
    keep(&["Text", "input_text"]).refused(Kind::Usage, &["output.keep", "`input_text`"]);
    keep(&["seed2", "Seed2"]).refused(Kind::Usage, &["output.keep", "`Seed2`"]);
}
