//! The order of the house: who imports whom, where unsafe code and families' names may stand, that documents name what exists.

use std::fs;
use std::path::{Path, PathBuf};

/// A room and what it may import beside the word files. The house's picture is in ARCHITECTURE.md.
const ROOMS: &[(&str, &[&str])] = &[
    ("kernels", &[]),
    ("machine", &["kernels", "model", "store"]),
    ("tokenizer", &[]),
    ("plan", &[]),
    ("job", &["plan", "kernels"]),
    ("cli", &["job"]),
    ("model", &["kernels"]),
    ("store", &["model"]),
    ("sample", &["tokenizer", "kernels"]),
    ("input", &["job", "tokenizer"]),
    ("execute", &["plan", "model", "store", "kernels", "sample"]),
    ("output", &["sample"]),
    ("report", &["machine", "output"]),
    (
        "commands",
        &["cli", "execute", "input", "job", "kernels", "machine", "model", "output", "plan", "report", "sample", "store", "tokenizer"],
    ),
];

/// Words that every room may use.
const WORDS: &[&str] = &["error", "event", "learned", "memory", "request", "routes", "scratch", "spool", "units"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every file under `folder` with this ending, and its text.
fn files(folder: &Path, ending: &str) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder of the repository") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files(&path, ending));
        } else if path.to_string_lossy().ends_with(ending) {
            let text = fs::read_to_string(&path).expect("source is UTF-8");
            found.push((path, text));
        }
    }
    found.sort();
    found
}

/// The room that a source file belongs to: the first name under src/.
fn room(path: &Path) -> String {
    let inside = path.strip_prefix(root().join("src")).expect("a source file");
    let first = inside.components().next().expect("a name").as_os_str().to_string_lossy();
    first.trim_end_matches(".rs").to_string()
}

/// A file without its modules of tests; those may import what they like.
fn without_tests(text: &str) -> String {
    let mut kept = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("#[cfg(test)]\n") {
        kept.push_str(before);
        let item = after.split_once(['{', ';']).map_or(after, |(head, _)| head);
        rest = if item.contains("mod ") && after[item.len()..].starts_with('{') {
            after.split_once("\n}\n").map_or("", |(_, behind)| behind)
        } else {
            after.split_once('\n').map_or("", |(_, behind)| behind)
        };
    }
    kept + rest
}

/// The names that follow `crate::` in a file, each of a list in braces.
fn imports(text: &str) -> Vec<String> {
    let code: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let name = |path: &str| path.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let mut names = Vec::new();
    for rest in code.join("\n").split("crate::").skip(1) {
        let Some(list) = rest.strip_prefix('{') else {
            names.push(name(rest));
            continue;
        };
        let (mut depth, mut item) = (0, String::new());
        for c in list.chars() {
            match c {
                ',' | '}' if depth == 0 => names.push(name(&std::mem::take(&mut item))),
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => item.push(c),
            }
            if c == '}' && depth == 0 && item.is_empty() {
                break;
            }
        }
    }
    names.retain(|name| !name.is_empty());
    names
}

#[test]
fn imports_are_seen_however_they_are_written() {
    let text = "use crate::{error::Error, plan::{Limits, allot},\n job};\n// crate::report\nfn f() { crate::units::show(1) }\n#[cfg(test)]\nmod tests {\n    use crate::store;\n}\nuse crate::output;\n#[cfg(test)]\nmod more;\nuse crate::model;\n";
    assert_eq!(imports(&without_tests(text)), ["error", "plan", "job", "units", "output", "model"]);
}

#[test]
fn rooms_import_only_what_the_house_allows() {
    for (path, text) in files(&root().join("src"), ".rs") {
        let room = room(&path);
        if ["main", "lib"].contains(&room.as_str()) || path.ends_with("tests.rs") {
            continue;
        }
        if WORDS.contains(&room.as_str()) {
            for name in imports(&without_tests(&text)) {
                assert!(WORDS.contains(&name.as_str()), "{}: a word file imports {name}", path.display());
            }
            continue;
        }
        let (_, allowed) = ROOMS.iter().find(|(name, _)| *name == room).unwrap_or_else(|| panic!("{room} is no room of the house"));
        for name in imports(&without_tests(&text)) {
            let fine = name == room || WORDS.contains(&name.as_str()) || allowed.contains(&name.as_str());
            assert!(fine, "{}: {room} may not import {name}", path.display());
        }
    }
}

#[test]
fn unsafe_code_stands_in_two_rooms() {
    for (path, text) in files(&root().join("src"), ".rs") {
        let may = ["kernels", "store"].contains(&room(&path).as_str());
        assert!(may || !text.contains("unsafe "), "{} holds unsafe code", path.display());
        assert!(may || !text.contains("allow(unsafe_code)"), "{} allows unsafe code", path.display());
    }
}

#[test]
fn families_are_named_in_model_and_tokenizer_alone() {
    for (path, text) in files(&root().join("src"), ".rs") {
        if ["model", "tokenizer"].contains(&room(&path).as_str()) || path.ends_with("tests.rs") {
            continue;
        }
        let lower = without_tests(&text).to_lowercase();
        for family in ["kimi", "k3", "qwen", "olmo", "gpt-oss", "gpt_oss", "deepseek"] {
            assert!(!lower.contains(family), "{} names {family}", path.display());
        }
    }
}

#[test]
fn phases_are_unknown_where_rows_are_just_rows() {
    for (path, text) in files(&root().join("src"), ".rs") {
        if !["model", "kernels", "store"].contains(&room(&path).as_str()) {
            continue;
        }
        let lower = text.to_lowercase();
        for word in ["prefill", "wave", "resume"] {
            assert!(!lower.contains(word), "{} says {word}", path.display());
        }
    }
}

#[test]
fn a_walk_knows_spans_and_not_phases() {
    for (path, text) in files(&root().join("src/execute"), ".rs") {
        let lower = without_tests(&text).to_lowercase();
        let inside = path.strip_prefix(root()).expect("a source file");
        let tests = inside.components().any(|part| part.as_os_str().to_string_lossy().starts_with("tests"));
        for word in ["prefill", "decoding"] {
            assert!(tests || !lower.contains(word), "{} says {word}", path.display());
        }
    }
}

#[test]
fn the_plan_and_the_models_see_no_file_no_clock_and_no_chance() {
    for (path, text) in files(&root().join("src"), ".rs") {
        if !["plan", "model", "sample"].contains(&room(&path).as_str()) || path.ends_with("tests.rs") {
            continue;
        }
        let code = without_tests(&text);
        for word in ["std::fs", "std::io", "std::net", "std::time", "Instant", "SystemTime", "std::env", "std::process", "RandomState"] {
            assert!(!code.contains(word), "{} uses {word}", path.display());
        }
    }
}

#[test]
fn commands_are_short() {
    for (path, text) in files(&root().join("src/commands"), ".rs") {
        let lines = text.lines().count();
        assert!(lines < 150, "{} has {lines} lines; a command hands out and calls, and works nothing out", path.display());
    }
}

/// What stands between backticks in a document.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split("```").step_by(2).flat_map(|plain| plain.split('`').skip(1).step_by(2))
}

#[test]
fn documents_name_paths_and_tests_that_exist() {
    let sources = [files(&root().join("src"), ".rs"), files(&root().join("tests"), ".rs")].concat();
    for name in ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "fixtures/README.md", "benches/README.md"] {
        let path = root().join(name);
        let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{name}: {e}"));
        for word in quoted(&text) {
            let first = word.split(['/', ' ']).next().expect("a piece");
            if ["src", "tests", "benches", "fixtures", "pipelines", ".ci"].contains(&first)
                && word.contains('/')
                && !word.contains(['*', ' ', '{'])
            {
                assert!(root().join(word).exists(), "{name} names {word}, which does not exist");
            }
            if let Some(test) = word.strip_prefix("test ") {
                let head = format!("fn {test}(");
                assert!(sources.iter().any(|(_, text)| text.contains(&head)), "{name} names the test {test}, which does not exist");
            }
        }
    }
}
