//! Rules about the sources: module dependencies, as in `ARCHITECTURE.md`, checked against every path, and seeds of tests.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// The modules of the library, and the modules that each may use. A file belongs to the longest name that fits its
/// path.
const MAY_USE: &[(&str, &[&str])] = &[
    ("clock", &[]),
    ("value", &[]),
    ("escape", &[]),
    ("sorted", &[]),
    ("process", &[]),
    ("tools_file", &["process", "tool"]),
    ("net", &[]),
    ("transport", &[]),
    ("memory", &["transport"]),
    ("livekit", &["clock", "net", "transport"]),
    ("dev_server", &["net", "transport", "livekit"]),
    ("tool", &["clock", "value", "escape", "transport"]),
    ("protocol/frame", &["value", "transport", "tool"]),
    ("protocol/rpc", &["value", "transport", "tool", "protocol/frame"]),
    ("protocol/deflate", &[]),
    (
        "protocol/session",
        &[
            "clock",
            "value",
            "sorted",
            "transport",
            "tool",
            "protocol/frame",
            "protocol/rpc",
            "protocol/deflate",
        ],
    ),
    (
        "recording",
        &["value", "escape", "transport", "tool", "protocol/frame", "protocol/rpc", "protocol/deflate"],
    ),
    ("runtime", &["clock", "value", "transport", "tool"]),
    ("runtime/programs", &["value", "process", "tools_file", "tool", "runtime"]),
    (
        "runtime/participant",
        &[
            "clock",
            "value",
            "transport",
            "livekit",
            "tool",
            "protocol/frame",
            "protocol/session",
            "recording",
            "runtime",
        ],
    ),
    (
        "replay",
        &[
            "clock",
            "value",
            "transport",
            "tool",
            "protocol/frame",
            "protocol/deflate",
            "protocol/session",
            "recording",
        ],
    ),
    // Adapters use only the public API, and share the reader of `tools.toml`.
    (
        "adapter",
        &[
            "value",
            "net",
            "process",
            "tools_file",
            "memory",
            "transport",
            "tool",
            "runtime",
            "runtime/programs",
            "runtime/participant",
            "protocol/session",
        ],
    ),
    ("engine", &["clock", "sorted", "transport", "tool", "protocol/session"]),
    ("vocabulary", &["clock", "escape", "value", "transport", "tool", "protocol/frame", "protocol/session"]),
    // Live replays use only the public API.
    ("replay/live", &["replay", "value", "transport", "tool", "runtime", "runtime/participant", "recording"]),
];

/// Files with declarations only: the crate root, and a module that contains nothing but its two submodules.
const DECLARATIONS: &[&str] = &["cli_support.rs", "lib.rs", "protocol.rs"];

/// Identifiers that must not appear in the core.
const NOT_IN_THE_CORE: &[&str] =
    &["tokio", "std::net", "std::thread", "std::fs", "Instant::now", "SystemTime", "rand::"];

/// The core, which builds without an async runtime and for browsers.
const CORE: &[&str] = &["clock", "value", "escape", "sorted", "transport/types", "tool", "protocol"];

#[test]
fn mutations_fit_the_sources() {
    for entry in fs::read_dir("tests/mutations").unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|it| it != "toml") {
            continue; // the results
        }
        let list: toml::Table = fs::read_to_string(&path).unwrap().parse().unwrap();
        let root = Path::new(list["root"].as_str().unwrap());
        for mutation in list["mutation"].as_array().unwrap() {
            let text = |key: &str| mutation[key].as_str().unwrap();
            let source = fs::read_to_string(root.join(text("file"))).unwrap();
            assert_eq!(source.matches(text("find")).count(), 1, "{}: {}", path.display(), text("rule"));
        }
    }
}

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

/// Returns whether a module path is this module or below it.
fn is_in(path: &str, module: &str) -> bool {
    path.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns the longest listed module that contains the path.
fn module(path: &str) -> Option<&'static str> {
    let fitting = MAY_USE.iter().map(|(name, _)| *name).filter(|name| is_in(path, name));
    fitting.max_by_key(|name| name.len())
}

/// Returns the lines that are compiled into the library: no comments, no tests at the end of the file.
fn code(text: &str) -> String {
    let until = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    let lines = text[..until].lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns every path that starts with `crate::`, also inside `use crate::{…}`, with `/` between its parts.
fn named(code: &str) -> Vec<String> {
    let mut paths = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        expand(&code[at + "crate::".len()..], "", &mut paths);
    }
    paths
}

/// Reads one tree of a `use`, and returns the text after it.
fn expand<'a>(tree: &'a str, before: &str, paths: &mut Vec<String>) -> &'a str {
    let tree = tree.trim_start();
    if let Some(mut rest) = tree.strip_prefix('{') {
        loop {
            rest = rest.trim_start_matches(|it: char| it.is_whitespace() || it == ',');
            if rest.is_empty() {
                return rest;
            }
            if let Some(rest) = rest.strip_prefix('}') {
                return rest;
            }
            let after = expand(rest, before, paths);
            // An alias, or text that does not belong to a tree.
            let next = after.find([',', '}', '{']).unwrap_or(after.len());
            rest = &after[next..];
        }
    }
    let end = tree.find(|it: char| !it.is_alphanumeric() && it != '_').unwrap_or(tree.len());
    let path = format!("{before}{}", &tree[..end]);
    match tree[end..].strip_prefix("::") {
        Some(rest) => expand(rest, &format!("{path}/"), paths),
        None => {
            paths.push(path);
            &tree[end..]
        }
    }
}

/// The modules of the public API that hold nothing but items of others, which `lib.rs` names.
const FACADES: &[&str] = &["prompt", "result", "session", "tools"];

/// The most names at the crate's root, other than modules.
const MAX_AT_ROOT: usize = 45;

#[test]
fn crate_root_has_few_names() {
    let text = code(&fs::read_to_string("src/lib.rs").unwrap());
    let mut names = Vec::new();
    for (at, found) in text.match_indices("\npub use ") {
        expand(&text[at + found.len()..], "", &mut names);
    }
    let modules = ["protocol/frame", "runtime/chat", "runtime/programs"];
    names.retain(|name| !modules.contains(&name.as_str()));
    assert!((30..=MAX_AT_ROOT).contains(&names.len()), "{} names: {names:?}", names.len());
}

/// Returns the items that `lib.rs` exports, and their modules.
fn exports(src: &Path) -> BTreeMap<String, String> {
    let text = code(&fs::read_to_string(src.join("lib.rs")).unwrap());
    let mut paths = Vec::new();
    for (at, found) in text.match_indices("pub use ") {
        expand(&text[at + found.len()..], "", &mut paths);
    }
    let items = paths.into_iter().map(|path| path.trim_start_matches("crate/").to_owned());
    items.map(|path| (path.rsplit('/').next().unwrap().to_owned(), path)).collect()
}

/// Returns the module path of a path that starts with `crate::`, which may name an item by its public path.
fn target<'a>(named: &'a str, exports: &'a BTreeMap<String, String>) -> &'a str {
    let mut parts = named.split('/').skip_while(|part| FACADES.contains(part));
    parts.next().and_then(|name| exports.get(name)).map_or(named, String::as_str)
}

#[test]
fn module_dependencies_are_respected() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let exports = exports(&src);
    assert_eq!(exports["Session"], "protocol/session/Session");
    let (mut files, mut wrong, mut used) = (Vec::new(), Vec::new(), 0);
    sources(&src, &mut files);
    for path in &files {
        let name = path.strip_prefix(&src).unwrap().to_str().unwrap().replace('\\', "/");
        let path_in_crate = name.trim_end_matches(".rs");
        // The command line is another crate, and tests in their own files may use other modules.
        let is_binary = is_in(path_in_crate, "cli") || name == "main.rs";
        let is_test = name.split('/').any(|part| part == "tests" || part == "tests.rs");
        if is_binary || is_test || DECLARATIONS.contains(&name.as_str()) {
            continue;
        }
        let Some(own) = module(path_in_crate) else {
            wrong.push(format!("{name}: a module that the plan does not have"));
            continue;
        };
        let may = MAY_USE.iter().find(|(name, _)| *name == own).unwrap().1;
        let text = code(&fs::read_to_string(path).unwrap());
        for named in named(&text) {
            match module(target(&named, &exports)) {
                Some(target) if target == own || may.contains(&target) => used += 1,
                Some(target) => wrong.push(format!("{name}: {own} may not use {target} ({named})")),
                None => wrong.push(format!("{name}: `crate::{named}` is in no module of the plan")),
            }
        }
        let is_in_any = |modules: &[&str]| modules.iter().any(|module| is_in(path_in_crate, module));
        if is_in_any(CORE) {
            for word in NOT_IN_THE_CORE.iter().filter(|word| text.contains(**word)) {
                wrong.push(format!("{name}: {word} in the core"));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    assert!(used > 500, "only {used} paths were read");
}

#[test]
fn modules_of_the_development_server_do_not_use_each_other_in_circles() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/dev_server");
    let (mut files, mut used) = (Vec::new(), BTreeMap::<String, BTreeSet<String>>::new());
    sources(&root, &mut files);
    for path in &files {
        let name = path.strip_prefix(&root).unwrap().to_str().unwrap().replace('\\', "/");
        if name.split('/').any(|part| ["tests", "tests.rs", "test_hooks.rs"].contains(&part)) {
            continue;
        }
        let text = code(&fs::read_to_string(path).unwrap());
        let of_the_server = named(&text).into_iter();
        let of_the_server =
            of_the_server.filter_map(|path| path.strip_prefix("dev_server/").map(str::to_owned));
        let mut paths: Vec<_> = of_the_server.collect();
        if !name.contains('/') {
            for (at, found) in text.match_indices("super::") {
                expand(&text[at + found.len()..], "", &mut paths);
            }
        }
        let first = |path: &str| path.split('/').next().unwrap().to_owned();
        let own = first(name.trim_end_matches(".rs"));
        let others = paths.iter().map(|path| first(path)).filter(|other| *other != own);
        used.entry(own.clone()).or_default().extend(others);
    }
    assert!(used["room"].contains("agents") && used["event_loop"].contains("room"));
    while !used.is_empty() {
        let known: Vec<_> = used.keys().cloned().collect();
        used.retain(|_, others| known.iter().any(|it| others.contains(it)));
        assert!(used.len() < known.len(), "a circle, and what uses it: {used:?}");
    }
}

#[test]
fn paths_of_nested_imports_are_read() {
    let code = "use crate::{a::{B, c::D}, e::F as G}; fn f(x: crate::h::I) { crate::J }";
    assert_eq!(named(code), ["a/B", "a/c/D", "e/F", "h/I", "J"]);
}

#[test]
fn property_tests_have_a_fixed_seed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    sources(&root.join("src"), &mut files);
    sources(&root.join("tests"), &mut files);
    let opening = concat!("proptest", "! {");
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let (blocks, seeds) =
            (text.matches(opening).count(), text.matches("rng_seed: RngSeed::Fixed").count());
        assert!(
            blocks <= seeds,
            "{}: a property test without `rng_seed` draws other cases in each run",
            file.display()
        );
    }
}

/// Whoever filters by itself forgets a way out: `tool/result` decides what is for the model alone, and the rest is made of
/// what it returns.
#[test]
fn only_results_decide_what_is_for_the_model_alone() {
    let mut found = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
    for path in found.iter().filter(|path| !path.to_str().unwrap().contains("src/tool/result")) {
        let text = fs::read_to_string(path).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap();
        for line in
            code.lines().filter(|line| line.contains("Audience::Model") && !line.trim().starts_with("//"))
        {
            // To set the audience of what comes from a document is not to decide about a way out.
            assert!(line.contains("with_audience"), "{}: {line}", path.display());
        }
    }
}

#[test]
fn core_alone_has_the_dependencies_of_the_library() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let all = fs::read_to_string(root.join("Cargo.toml")).unwrap().replace(", optional = true", "");
    // A published package has no other packages in it.
    let Ok(core) = fs::read_to_string(root.join("tests/core/Cargo.toml")) else {
        return println!("skipped: tests/core is not here");
    };
    let dependencies = core.split("[dependencies]\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let version = core.lines().filter(|line| line.starts_with("version = "));
    for line in dependencies.lines().chain(version) {
        assert!(all.lines().any(|other| other == line), "not in Cargo.toml: {line}");
    }
}
