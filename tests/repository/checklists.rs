//! The rows of `tests/checklists.md` and `SECURITY.md`, compared with the names of the tests.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    ops::RangeInclusive,
    path::{Path, PathBuf},
};

/// The rows of a checklist: the page, the prefix of its tests, and the letters of its rows with their numbers. A
/// checklist may have more.
type Rows = (&'static str, &'static str, &'static [(char, RangeInclusive<u32>)]);

const ROWS: [Rows; 7] = [
    ("tests/checklists.md", "protocol_", &[('A', 1..=25)]),
    ("tests/checklists.md", "agent_air_", &[('G', 0..=11)]),
    ("tests/checklists.md", "wxo_", &[('W', 1..=20)]),
    ("tests/checklists.md", "rap_", &[('R', 1..=29)]),
    ("tests/checklists.md", "acp_", &[('C', 1..=22)]),
    ("tests/checklists.md", "common_", &[('X', 1..=10)]),
    (
        "SECURITY.md",
        "sec_",
        &[('I', 1..=10), ('C', 1..=5), ('R', 1..=4), ('P', 1..=3), ('Y', 1..=2), ('X', 1..=3), ('A', 1..=3)],
    ),
];

/// What stands in place of the tests of a row that has none.
const LEFT_OUT: &str = "none: left out";

/// The line above the rows of a table. Tables with another one are not read.
const HEADER: &str = "| row | ";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

/// Returns the texts between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Returns the cells in a row of a table.
fn cells(line: &str) -> Vec<&str> {
    line.trim_matches('|').split('|').map(str::trim).collect()
}

/// Reads a page: by prefix and row, the cell with the row's tests. A heading names the prefix of the tables below it.
fn read_rows<'a>(page: &str, text: &'a str, faults: &mut Vec<String>) -> BTreeMap<(String, String), &'a str> {
    let (mut prefix, mut is_table, mut rows) = ("", false, BTreeMap::new());
    for line in text.lines() {
        if line.starts_with("## ") {
            prefix = quoted(line).next().unwrap_or_default();
        }
        is_table = line.starts_with(HEADER) || is_table && line.starts_with('|');
        if !is_table || line.starts_with(HEADER) || line.starts_with("| ---") {
            continue;
        }
        let cells = cells(line);
        let name = cells[0].to_owned();
        if prefix.is_empty() {
            faults.push(format!("{page}: the heading above row {name} names no prefix"));
        }
        if rows.insert((prefix.to_owned(), name.clone()), cells[cells.len() - 1]).is_some() {
            faults.push(format!("{page}: row {name} of `{prefix}` is there twice"));
        }
    }
    rows
}

/// Returns the row of a test by its name, if it has one: `sec_i10_question_…` is of row I10.
fn row_of(name: &str, prefix: &str) -> Option<String> {
    let (row, _) = name.strip_prefix(prefix)?.split_once('_')?;
    let number = row.strip_prefix(|first: char| first.is_ascii_lowercase())?;
    number.parse::<u32>().ok().map(|_| row.to_uppercase())
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

/// Returns the names that begin with a prefix, each with its file: functions, and trials of `e2e`. A trial has its name
/// in a text, so a text counts only if it names a row.
fn names_with(prefix: &str) -> BTreeMap<String, PathBuf> {
    let mut paths = Vec::new();
    for folder in ["tests", "src"] {
        files(&root().join(folder), &mut paths);
    }
    let mut names = BTreeMap::new();
    for path in paths {
        let text = fs::read_to_string(&path).unwrap();
        let path = path.strip_prefix(root()).unwrap();
        if path.starts_with("tests/e2e") {
            let trials = text.split('"').flat_map(|text| text.split("::"));
            let of_rows = trials.filter(|name| row_of(name, prefix).is_some());
            names.extend(of_rows.map(|name| (name.to_owned(), path.to_owned())));
        }
        for line in text.lines().map(str::trim_start) {
            let line = line.strip_prefix("async ").unwrap_or(line);
            if let Some((name, _)) = line.strip_prefix("fn ").and_then(|rest| rest.split_once('('))
                && name.starts_with(prefix)
            {
                names.insert(name.to_owned(), path.to_owned());
            }
        }
    }
    names
}

#[test]
fn rows_of_the_checklists_and_names_of_the_tests_agree() {
    let mut faults = Vec::new();
    let pages = BTreeSet::from(ROWS.map(|(page, ..)| page));
    let texts: BTreeMap<_, _> =
        pages.into_iter().map(|page| (page, fs::read_to_string(root().join(page)).unwrap())).collect();
    let rows: BTreeMap<_, _> =
        texts.iter().map(|(page, text)| (*page, read_rows(page, text, &mut faults))).collect();
    for (page, prefix, needed) in ROWS {
        let found = names_with(prefix);
        for (letter, numbers) in needed {
            for row in numbers.clone().map(|number| format!("{letter}{number}")) {
                if !rows[page].contains_key(&(prefix.to_owned(), row.clone())) {
                    faults.push(format!("{page}: `{prefix}` has no row {row}"));
                }
            }
        }
        let mut listed = BTreeSet::new();
        for ((_, row), tests) in rows[page].iter().filter(|((of, _), _)| of == prefix) {
            if *tests == LEFT_OUT {
                continue;
            }
            if quoted(tests).next().is_none() {
                faults.push(format!("{page}: row {row} of `{prefix}` names no test, and not \"{LEFT_OUT}\""));
            }
            for test in quoted(tests) {
                if row_of(test, prefix).as_ref() != Some(row) {
                    faults.push(format!(
                        "{page}: row {row} of `{prefix}` names `{test}`, which is of another row"
                    ));
                }
                if !found.contains_key(test) {
                    faults.push(format!(
                        "{page}: row {row} of `{prefix}` names `{test}`, and there is no such test"
                    ));
                }
                if !listed.insert(test) {
                    faults.push(format!("{page}: `{test}` is named twice"));
                }
            }
        }
        for (name, path) in found.iter().filter(|(name, _)| !listed.contains(name.as_str())) {
            match row_of(name, prefix) {
                Some(row) => faults.push(format!(
                    "{page}: row {row} of `{prefix}` does not name `{name}` in {}",
                    path.display()
                )),
                // Other functions may have a protocol in their names.
                None if prefix == "protocol_" => {}
                None => faults.push(format!("`{name}` in {} names no row of {page}", path.display())),
            }
        }
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}
