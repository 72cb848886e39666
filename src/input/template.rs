//! What does a job's template make of a row? The content of one user message.
//!
//! A misspelt column must not render as nothing, a null not as the word "none", and braces in a document are text like any other: so the
//! template may look up nothing that the row lacks, and columns enter as values, which nothing evaluates.

use std::collections::BTreeMap;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, ErrorKind, UndefinedBehavior, escape_formatter};
use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::request::Fault;

const NAME: &str = "input.template";
/// Steps of one row, and about 64 bytes of text each: 130 MB.
const FUEL: u64 = 2_000_000;

/// Why a row has no message.
#[derive(Debug)]
pub(super) enum Failed {
    /// Something in the row.
    Row(Fault),
    /// The template asks for what does not exist, whatever the row.
    Job(Error),
}

/// A compiled template and the columns that it looks up.
pub(super) struct Template {
    environment: Environment<'static>,
    columns: Vec<String>,
}

impl Template {
    /// # Errors
    /// Usage: the syntax, with the line.
    pub(super) fn new(text: &str) -> Result<Self> {
        let mut environment = Environment::new();
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_fuel(Some(FUEL));
        let syntax = SyntaxConfig::builder().keep_trailing_newline(true).build();
        environment.set_syntax(syntax.map_err(|e| Error::usage(format!("{NAME}: {e}")))?);
        environment.set_formatter(|out, state, value| {
            if value.is_none() {
                return Err(minijinja::Error::new(ErrorKind::InvalidOperation, "a null has no text"));
            }
            escape_formatter(out, state, value)
        });
        environment.add_template_owned(NAME, text.to_string()).map_err(|e| Error::usage(said(&e)))?;
        let mut names = environment.get_template(NAME).map_err(|e| Error::usage(e.to_string()))?.undeclared_variables(false);
        for (global, _) in environment.globals() {
            names.remove(global);
        }
        let mut columns: Vec<String> = names.into_iter().collect();
        columns.sort();
        let template = Template { environment, columns };
        template.refuse_unknown_names()?;
        Ok(template)
    }

    /// Filters and tests are looked up only when a row comes by them: a misspelt one would make an error of every row, so a row of
    /// made-up text looks for them first. What else it runs into is no fault of the template.
    fn refuse_unknown_names(&self) -> Result<()> {
        let row: BTreeMap<&str, &str> = self.columns.iter().map(|name| (name.as_str(), "text")).collect();
        let tried = self.environment.get_template(NAME).and_then(|template| template.render(minijinja::Value::from(Serde(&row))));
        match tried {
            Err(e) if matches!(e.kind(), ErrorKind::UnknownFilter | ErrorKind::UnknownTest | ErrorKind::UnknownFunction) => {
                Err(Error::usage(said(&e)))
            }
            _ => Ok(()),
        }
    }

    /// The columns that a row must have, sorted.
    pub(super) fn columns(&self) -> &[String] {
        &self.columns
    }

    /// Whether a row with these columns takes this template's form at all.
    pub(super) fn fits(&self, row: &Map<String, Value>) -> bool {
        self.columns.is_empty() || self.columns.iter().any(|name| row.contains_key(name))
    }

    /// The message of `row`.
    pub(super) fn render(&self, row: &Map<String, Value>) -> std::result::Result<String, Failed> {
        let mut values = BTreeMap::new();
        for name in &self.columns {
            let state = match row.get(name) {
                None => "is missing",
                Some(Value::Null) => "is null",
                Some(value) => {
                    values.insert(name.as_str(), value);
                    continue;
                }
            };
            return Err(Failed::Row(Fault::new("missing_column", format!("the template's column `{name}` {state} in this row"))));
        }
        let template = self.environment.get_template(NAME).map_err(|e| failed(&e))?;
        template.render(minijinja::Value::from(Serde(&values))).map_err(|e| failed(&e))
    }
}

/// The message of a template that nobody can use: place and problem.
fn said(error: &minijinja::Error) -> String {
    let what = error.detail().map_or_else(|| error.kind().to_string(), str::to_string);
    format!("{NAME} line {}: {what}", error.line().unwrap_or(1))
}

fn failed(error: &minijinja::Error) -> Failed {
    match error.kind() {
        ErrorKind::UnknownFilter | ErrorKind::UnknownTest | ErrorKind::UnknownFunction => Failed::Job(Error::usage(said(error))),
        _ => Failed::Row(Fault::new("template_failed", error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(json: &str) -> Map<String, Value> {
        serde_json::from_str(json).expect("an object")
    }

    fn render(template: &str, json: &str) -> std::result::Result<String, String> {
        Template::new(template).expect("a template").render(&row(json)).map_err(|failed| match failed {
            Failed::Row(fault) => fault.code,
            Failed::Job(error) => format!("{:?}", error.kind),
        })
    }

    #[test]
    fn column_text_is_data_and_keeps_its_white_space() {
        let text = "  {{ 7*7 }} {% if x %} {# c #} {{text}} & <b> 'q' \n";
        let json = serde_json::json!({ "text": text }).to_string();
        assert_eq!(render("Q?\n\n{{ text }}", &json), Ok(format!("Q?\n\n{text}")));
        assert_eq!(render("{{ text }}\n", &json), Ok(format!("{text}\n")));
    }

    #[test]
    fn nothing_renders_as_nothing() {
        assert_eq!(render("{% if a == 7 %}{{ a|uper }}{% endif %}", r#"{"a":7}"#), Err("Usage".into()));
        assert_eq!(render("{{ a }}{{ b }}", r#"{"a":1}"#), Err("missing_column".into()));
        assert_eq!(render("{{ a }}", r#"{"a":null}"#), Err("missing_column".into()));
        assert_eq!(render("{{ a.b }}", r#"{"a":{"c":1}}"#), Err("template_failed".into()));
        assert_eq!(render("{{ a.b }}", r#"{"a":{"b":null}}"#), Err("template_failed".into()));
        assert_eq!(render("{% if a.b %}x{% endif %}", r#"{"a":{}}"#), Err("template_failed".into()));
        assert_eq!(
            render("{% for i in range(a) %}{% for j in range(a) %}{% endfor %}{% endfor %}", r#"{"a":9000}"#),
            Err("template_failed".into())
        );
        assert_eq!(render("{{ a }} {{ b }} {{ c }}", r#"{"a":4.0,"b":4,"c":true}"#), Ok("4.0 4 True".into()));
    }

    #[test]
    fn an_unknown_filter_is_the_jobs_fault() {
        for template in ["a\n{{ text | uper }}", "a\n{% if text is evn %}x{% endif %}"] {
            let error = Template::new(template).err().expect("refused");
            assert!(error.message.starts_with("input.template line 2: ") && error.message.contains("is unknown"), "{error}");
        }
        assert!(Template::new("{{ 1 + text }}{{ text | upper }}").is_ok(), "made-up text proves nothing else");
    }

    #[test]
    fn only_what_the_template_does_not_define_is_a_column() {
        let template =
            Template::new("{% for m in list %}{{ loop.index }}{{ m }}{{ other }}{% endfor %}{% set x = 1 %}{{ x }}{{ range(3) }}");
        assert_eq!(template.expect("a template").columns(), ["list", "other"]);
        assert!(Template::new("{% include '/etc/passwd' %}").is_err(), "a template reads no file");
        let error = Template::new("a\n{{ text").err().expect("refused");
        assert_eq!(error.kind, crate::error::Kind::Usage);
        assert!(error.message.starts_with("input.template line 2: "), "{error}");
    }
}
