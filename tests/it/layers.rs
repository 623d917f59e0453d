//! Who may know whom: the arrows of `ARCHITECTURE.md`, read off the `use` lines and paths.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// For each room of the house, the rooms it may use.
const MAY_USE: &[(&str, &[&str])] = &[
    ("body", &[]),
    ("link", &[]),
    ("tool", &["body", "link"]),
    ("wire", &["body", "link", "tool"]),
    ("session", &["body", "link", "tool", "wire"]),
    ("source", &["body", "link", "tool"]),
    ("schema", &["body", "link", "tool"]),
    ("registry", &["body", "link", "tool", "source", "schema"]),
    ("executor", &["body", "link", "tool", "source", "schema"]),
    ("programs", &["body", "link", "tool", "source"]),
    ("transport", &["link"]),
    ("recording", &["body", "link", "tool", "wire", "transport"]),
    ("replay", &["body", "link", "tool", "wire", "session", "recording"]),
    // The live replays are users of the public API, as adapters are; the dry one knows no room.
    ("replay/live", &["replay", "body", "link", "tool", "source", "recording", "bridge"]),
    ("token", &["link"]),
    // Which hosts are this machine: a leaf.
    ("host", &[]),
    ("room", &["host", "link", "transport"]),
    // A server of LiveKit's words: nothing of ours but what a lane is.
    ("dev_room", &["host", "link"]),
    (
        "bridge",
        &[
            "body",
            "link",
            "tool",
            "wire",
            "session",
            "source",
            "registry",
            "executor",
            "transport",
            "room",
            "recording",
            // Whether the token of a join fits.
            "token",
        ],
    ),
    ("adapter", &["body", "link", "tool", "source", "session", "bridge"]),
];

/// Words that no line of the core may hold.
const NOT_IN_THE_CORE: &[&str] =
    &["tokio", "std::net", "std::thread", "std::fs", "Instant::now", "SystemTime", "rand::"];

const CORE: &[&str] = &["body", "link", "tool", "wire", "session"];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|it| it == "rs") {
            found.push(path);
        }
    }
}

/// The room that a file belongs to: the first part of its path below `src`, or the room inside that room.
fn room(path: &Path, src: &Path) -> String {
    let parts: Vec<_> = path.strip_prefix(src).unwrap().iter().map(|it| it.to_str().unwrap()).collect();
    let inner = parts.iter().take(2).map(|part| part.trim_end_matches(".rs")).collect::<Vec<_>>().join("/");
    if MAY_USE.iter().any(|(name, _)| *name == inner) {
        return inner;
    }
    parts[0].trim_end_matches(".rs").to_owned()
}

/// The lines that are compiled into the library: no comments, nothing below `#[cfg(test)]`.
fn code(text: &str) -> String {
    let until = text.find("#[cfg(test)]\nmod ").unwrap_or(text.len());
    let lines = text[..until].lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// Every room that the code names as `crate::room`, also inside `use crate::{…}`.
fn named(code: &str) -> Vec<String> {
    let mut rooms = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        if let Some(list) = rest.strip_prefix('{') {
            rooms.extend(heads(list));
        } else {
            rooms.push(word(rest));
        }
    }
    rooms
}

/// The first words of a brace list, up to its closing brace.
fn heads(list: &str) -> Vec<String> {
    let (mut depth, mut at_head, mut heads) = (0, true, Vec::new());
    for (at, character) in list.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => at_head = true,
            it if at_head && (it.is_alphabetic() || it == '_') => {
                heads.push(word(&list[at..]));
                at_head = false;
            }
            _ => {}
        }
    }
    heads
}

fn word(text: &str) -> String {
    text.chars().take_while(|it| it.is_alphanumeric() || *it == '_').collect()
}

/// Items that `lib.rs` exports at the top, and the rooms they come from.
fn exports(src: &Path) -> BTreeMap<String, String> {
    let text = code(&fs::read_to_string(src.join("lib.rs")).unwrap());
    let mut exports = BTreeMap::new();
    for (at, _) in text.match_indices("pub use ") {
        let line: String = text[at + 8..].chars().take_while(|it| *it != ';').collect();
        let (room, items) = line.split_once("::").unwrap_or((&line, ""));
        for item in items.split([',', '{', '}', ' ', '\n']).filter(|it| !it.is_empty()) {
            exports.insert(item.to_owned(), room.to_owned());
        }
    }
    exports
}

#[test]
fn nobody_knows_whom_he_may_not() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let exports = exports(&src);
    let (mut files, mut wrong) = (Vec::new(), Vec::new());
    sources(&src, &mut files);
    for path in &files {
        let room = room(path, &src);
        // Tests in files of their own use whom they test with.
        let is_test =
            path.strip_prefix(&src).unwrap().iter().any(|part| part == "tests" || part == "tests.rs");
        if is_test || ["lib", "main", "cli"].contains(&room.as_str()) {
            continue;
        }
        let Some((_, may)) = MAY_USE.iter().find(|(name, _)| *name == room) else {
            wrong.push(format!("{}: a room that the plan does not have", path.display()));
            continue;
        };
        let text = code(&fs::read_to_string(path).unwrap());
        for name in named(&text) {
            let target = exports.get(&name).unwrap_or(&name);
            if *target != room && !may.contains(&target.as_str()) {
                wrong.push(format!("{}: {room} may not use {target} ({name})", path.display()));
            }
        }
        if CORE.contains(&room.as_str()) {
            for word in NOT_IN_THE_CORE.iter().filter(|word| text.contains(**word)) {
                wrong.push(format!("{}: {word} in the core", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}
