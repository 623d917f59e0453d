//! The README stays short, and each failure that the guide describes names the test that checks it.

use std::{fs, path::Path};

/// Appends the text of all files in a folder whose names end so.
fn sources(folder: &Path, end: &str, text: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") && !path.ends_with("node_modules") {
            sources(&path, end, text);
        } else if path.to_string_lossy().ends_with(end) {
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
    let (mut rust, mut typescript, mut python) = (String::new(), String::new(), String::new());
    for folder in ["src", "tests"] {
        sources(&root.join(folder), ".rs", &mut rust);
    }
    sources(&root.join("bindings/js/test"), ".test.mjs", &mut typescript);
    sources(&root.join("bindings/python/tests"), ".py", &mut python);
    let (_, table) = guide.split_once("## What happens when").unwrap();
    let rows: Vec<_> = table.lines().skip_while(|line| !line.starts_with("| ---")).skip(1).collect();
    let rows = rows.split(|line| !line.starts_with('|')).next().unwrap();
    assert!(rows.len() > 25, "{} rows", rows.len());
    let (mut in_typescript, mut in_python) = (0, 0);
    for row in rows {
        let mut columns = row.trim_end_matches('|').rsplit('|');
        let mut next = || columns.next().unwrap().split('`').skip(1).step_by(2).collect::<Vec<_>>();
        let (third, second, first) = (next(), next(), next());
        assert!(!first.is_empty(), "no test is named: {row}");
        for name in first {
            let exact = rust.contains(&format!("fn {name}("));
            let group = name.len() < 8 && rust.contains(&format!("fn {name}_"));
            assert!(exact || group, "there is no test {name}: {row}");
        }
        in_typescript += second.len();
        for name in second {
            // Or a test for each pair of participants, whose name begins with the pair.
            let exists =
                [format!("test('{name}',"), format!("}}: {name}`,")].iter().any(|it| typescript.contains(it));
            assert!(exists, "there is no test '{name}' in bindings/js/test: {row}");
        }
        in_python += third.len();
        for name in third {
            // Or the beginning of the names of several tests.
            let exists = python.contains(&format!("def {name}("))
                || name.ends_with('_') && python.contains(&format!("def {name}"));
            assert!(exists, "there is no test {name} in bindings/python/tests: {row}");
        }
    }
    assert!(in_python > 25, "{in_python} tests in Python");
    assert!(in_typescript > 10, "{in_typescript} tests in TypeScript");
}
