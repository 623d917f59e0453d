//! The README stays short, and each failure that the guide describes names the test that checks it.

use std::{fs, path::Path};

/// Appends the text of all Rust files in a folder.
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
fn readme_has_at_most_150_lines_and_1300_words() {
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    let (lines, words) = (readme.lines().count(), readme.split_whitespace().count());
    assert!(lines <= 150 && words <= 1_300, "README.md has {lines} lines and {words} words");
}

#[test]
fn guide_failures_name_existing_tests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let guide = fs::read_to_string(root.join("src/guide/reliability.md")).unwrap();
    let mut text = String::new();
    for folder in ["src", "tests"] {
        sources(&root.join(folder), &mut text);
    }
    let (_, table) = guide.split_once("## What happens when").unwrap();
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
