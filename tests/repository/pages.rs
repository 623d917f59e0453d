//! The pages: how long their lines are, and where their links lead.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// The longest line of a page, in characters. Rows of tables are not wrapped, and a word can be longer.
const MAX_LINE: usize = 120;

/// The first line below the heading of a page of the guide that links to items of the crate.
const NOTE: &str = "*Links to items of the crate work where rustdoc renders this page, as on [docs.rs](https://docs.rs/toolbridge).*";

/// What rustdoc reads before each page of the guide: where links to other pages lead.
const LINKS: &str = "src/guide/links.md";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

fn find_pages(folder: &Path, found: &mut BTreeMap<PathBuf, String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy();
        if path.is_dir() && !name.starts_with('.') && name != "target" && name != "node_modules" {
            find_pages(&path, found);
        } else if path.extension().is_some_and(|it| it == "md") {
            let text = fs::read_to_string(&path).unwrap();
            found.insert(path.strip_prefix(root()).unwrap().to_owned(), text);
        }
    }
}

/// Returns all pages of the repository: path and text.
fn pages() -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    find_pages(&root(), &mut found);
    assert!(found.len() > 20, "{found:?}");
    found
}

/// Returns the lines of a page outside of its code blocks, without the code in them.
fn prose(text: &str) -> impl Iterator<Item = String> {
    let mut is_code = false;
    text.lines().filter_map(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        (!is_code && !is_fence).then(|| line.split('`').step_by(2).collect())
    })
}

/// Returns the definition of a link: its label and its target.
fn definition(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix('[')?.split_once("]: ")
}

/// Returns the targets of the links and definitions in a line.
fn targets(line: &str) -> Vec<&str> {
    let inline = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    inline.chain(definition(line).map(|(_, target)| target)).collect()
}

fn is_of_the_guide(path: &Path) -> bool {
    path.starts_with("src/guide") && path != Path::new(LINKS)
}

#[test]
fn lines_of_pages_have_at_most_120_characters() {
    let mut long = Vec::new();
    for (path, text) in pages() {
        for (number, line) in text.lines().enumerate() {
            let length = line.chars().count();
            let has_long_word = line.split(' ').any(|word| word.chars().count() > MAX_LINE - 10);
            if length > MAX_LINE && !line.starts_with('|') && !has_long_word {
                long.push(format!("{}:{} has {length}", path.display(), number + 1));
            }
        }
    }
    assert!(long.is_empty(), "the limit is {MAX_LINE} characters:\n{}", long.join("\n"));
}

#[test]
fn links_of_pages_lead_to_files() {
    let mut broken = Vec::new();
    for (path, text) in pages() {
        let folder = root().join(path.parent().unwrap());
        for line in prose(&text) {
            for target in targets(&line) {
                let is_elsewhere = target.contains("://") || target.contains("::") || target.starts_with('#');
                let file = target.split('#').next().unwrap();
                if !is_elsewhere && !folder.join(file).exists() {
                    broken.push(format!("{}: {target}", path.display()));
                }
            }
        }
    }
    assert!(broken.is_empty(), "links to files that are not there:\n{}", broken.join("\n"));
}

/// A link between pages has a definition for GitHub at the end of its page, and one for rustdoc in `links.md`.
#[test]
fn links_between_pages_of_the_guide_work_on_github_and_in_rustdoc() {
    let all = pages();
    let of_rustdoc: BTreeMap<_, _> = all[Path::new(LINKS)].lines().filter_map(definition).collect();
    let mut faults = Vec::new();
    for (path, text) in all.iter().filter(|(path, _)| is_of_the_guide(path)) {
        let page = path.display();
        let lines: Vec<String> = prose(text).collect();
        for (label, target) in lines.iter().filter_map(|line| definition(line)) {
            let expected = format!("crate::guide::{}", target.replacen(".md", "", 1));
            if of_rustdoc.get(label) != Some(&expected.as_str()) {
                faults.push(format!("{page}: {LINKS} does not have [{label}]: {expected}"));
            }
        }
        let inline = |line: &String| line.split("](").skip(1).any(|rest| rest.starts_with("crate::guide"));
        if lines.iter().any(inline) {
            faults.push(format!("{page}: a link to a page needs a label, such as [MCP][mcp]"));
        }
        let links_to_items = lines.iter().any(|line| line.contains("](crate::") || line.contains("](std::"));
        if links_to_items && text.lines().nth(2) != Some(NOTE) {
            faults.push(format!("{page}: the third line must be {NOTE}"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
