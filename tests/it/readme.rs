//! What the README promises is shown by the tests that it names.

use std::{fs, path::Path};

/// All text of the Rust files under a folder.
fn sources(folder: &Path, text: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            sources(&path, text);
        } else if path.extension().is_some_and(|it| it == "rs") {
            text.push_str(&fs::read_to_string(path).unwrap());
        }
    }
}

#[test]
fn each_row_of_what_happens_when_names_a_test_that_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    let mut text = String::new();
    for folder in ["src", "tests"] {
        sources(&root.join(folder), &mut text);
    }
    let (_, table) = readme.split_once("## What happens when").unwrap();
    let rows: Vec<_> = table.lines().skip_while(|line| !line.starts_with("| ---")).skip(1).collect();
    let rows = rows.split(|line| !line.starts_with('|')).next().unwrap();
    assert!(rows.len() > 25, "{} rows", rows.len());
    for row in rows {
        let named = row.trim_end_matches('|').rsplit('|').next().unwrap();
        let mut names = named.split('`').skip(1).step_by(2).peekable();
        assert!(names.peek().is_some(), "no test is named: {row}");
        for name in names {
            let exact = text.contains(&format!("fn {name}("));
            let group = name.len() < 8 && text.contains(&format!("fn {name}_"));
            assert!(exact || group, "there is no test {name}: {row}");
        }
    }
}
