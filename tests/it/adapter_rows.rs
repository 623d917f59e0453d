//! The checklists in `src/adapter/README.md`, compared with the names of the tests.

use std::{
    collections::BTreeSet,
    fs,
    ops::RangeInclusive,
    path::{Path, PathBuf},
};

/// The rows that each checklist has: its prefix, the letter of its rows, and their numbers. A checklist may have more.
const ROWS: [(&str, char, RangeInclusive<u32>); 5] = [
    ("agent_air_", 'G', 0..=11),
    ("wxo_", 'W', 1..=20),
    ("rap_", 'R', 1..=29),
    ("acp_", 'C', 1..=22),
    ("common_", 'X', 1..=10),
];

/// The rows that have no test, because what they ask for is left out.
const LEFT_OUT: [(&str, &str); 1] = [("rap_", "R25")];

/// A section of the page: its prefix, and the row, tests and state of each line of its table.
struct Section {
    prefix: String,
    rows: Vec<Row>,
}

struct Row {
    name: String,
    tests: Vec<String>,
    state: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

/// Returns the texts between backticks.
fn quoted(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

fn read_sections(page: &str) -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    for line in page.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            let prefix = quoted(heading).pop().unwrap_or_else(|| panic!("no prefix in {line:?}"));
            sections.push(Section { prefix, rows: Vec::new() });
        }
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let is_row = line.starts_with('|') && !line.starts_with("| ---") && !line.starts_with("| row ");
        if !is_row {
            continue;
        }
        let [name, _, tests, state] = cells[..] else { panic!("not four cells: {line:?}") };
        let row = Row { name: name.to_owned(), tests: quoted(tests), state: state.to_owned() };
        sections.last_mut().expect("a row stands in a section").rows.push(row);
    }
    sections
}

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") && !path.ends_with("node_modules") {
            files(&path, found);
        } else if path.extension().is_some_and(|it| it == "rs") {
            found.push(path);
        }
    }
}

/// Returns whether a name is that of a row's test: the prefix, the row, and what is tested.
fn is_of_row(name: &str, prefix: &str) -> bool {
    let row = name.strip_prefix(prefix).and_then(|rest| rest.split('_').next()).unwrap_or_default();
    let mut row = row.chars();
    row.next().is_some_and(char::is_lowercase) && row.clone().count() > 0 && row.all(|it| it.is_ascii_digit())
}

/// Returns the names of all tests that start with a prefix: functions, and the trials of `e2e`, which have their names in
/// texts.
fn tests_with(prefix: &str) -> BTreeSet<String> {
    let mut paths = Vec::new();
    for folder in ["tests", "src"] {
        files(&root().join(folder), &mut paths);
    }
    let start = format!("fn {prefix}");
    let mut names = BTreeSet::new();
    for path in paths {
        let text = fs::read_to_string(&path).unwrap();
        if path.starts_with(root().join("tests/e2e")) {
            let trials = text.split('"').flat_map(|text| text.split("::"));
            names.extend(trials.filter(|name| is_of_row(name, prefix)).map(str::to_owned));
        }
        for line in text.lines().map(str::trim_start) {
            let line = line.strip_prefix("async ").unwrap_or(line);
            if line.starts_with(&start) {
                let name = line["fn ".len()..].split('(').next().unwrap();
                names.insert(name.to_owned());
            }
        }
    }
    names
}

#[test]
fn rows_of_the_checklists_and_names_of_the_tests_agree() {
    let page = fs::read_to_string(root().join("src/adapter/README.md")).unwrap();
    let sections = read_sections(&page);
    assert!(!sections.is_empty());
    assert_eq!(sections.len(), ROWS.len());
    for (Section { prefix, rows }, (of, letter, numbers)) in sections.into_iter().zip(ROWS) {
        assert_eq!(prefix, of);
        for name in numbers.map(|number| format!("{letter}{number}")) {
            let state = if LEFT_OUT.contains(&(of, &name)) { "open" } else { "tested" };
            let found = rows.iter().filter(|row| row.name == name && row.state == state).count();
            assert_eq!(found, 1, "{prefix} has no test of row {name}, or the row is there twice");
        }
        let mut listed = BTreeSet::new();
        for Row { name, tests, state } in rows {
            let expected = if tests.is_empty() { "open" } else { "tested" };
            assert_eq!(state, expected, "row {name} of {prefix}");
            let start = format!("{prefix}{}_", name.to_lowercase());
            for test in tests {
                assert!(test.starts_with(&start), "row {name}: {test} does not start with {start}");
                assert!(listed.insert(test.clone()), "{test} is listed twice");
            }
        }
        assert_eq!(listed, tests_with(&prefix), "left: in the table, right: tests named {prefix}…");
    }
}
