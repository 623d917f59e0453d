//! The shells check the names of times and limits themselves: they list those that the core takes.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::{collections::BTreeSet, fs, path::Path};

/// The words in quotes between two texts of a file.
fn quoted(file: &str, from: &str, to: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file)).unwrap();
    let (_, rest) = text.split_once(from).unwrap();
    let (between, _) = rest.split_once(to).unwrap();
    between.split(['"', '\'']).skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn shells_know_the_times_and_limits_of_the_core() {
    for (function, ts, python) in [
        ("fn set_time", "TIME_NAMES = [", "_TIME_NAMES = ("),
        ("fn set_cap", "CAP_NAMES = [", "_CAP_NAMES = ("),
    ] {
        let mut core = quoted("face/src/to_core.rs", function, "_ => return Err");
        core.retain(|name| !name.is_empty());
        assert!(core.len() > 10, "{core:?}");
        assert_eq!(core, quoted("js/ts/options.ts", ts, "] as const"), "{ts}");
        assert_eq!(core, quoted("python/toolbridge/_options.py", python, ")  # fmt"), "{python}");
    }
}
