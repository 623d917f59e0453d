//! `toolbridge report`: where the page is written, who may read it, and what is never overwritten.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use crate::{
    cli::{complaint, run, text},
    folder::Folder,
    report_sample::afternoon,
    report_sample::write_recording,
};

/// A recording of an afternoon in a temporary folder.
fn recorded() -> (Folder, String) {
    let folder = Folder::new();
    let path = folder.file("afternoon.mcap");
    write_recording(&path, afternoon().entries());
    let path = path.to_str().unwrap().to_owned();
    (folder, path)
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn page_is_written_next_to_the_recording_for_its_owner_only() {
    let (folder, path) = recorded();
    let output = run(&["report", &path]);
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
    assert!(text(&output.stderr).contains("afternoon.html: 64 calls"), "{output:?}");
    let page = folder.file("afternoon.html");
    assert_eq!(mode(&page), 0o600);
    let page = fs::read_to_string(page).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains("\"title\":\"afternoon.mcap\""));
}

#[test]
fn existing_page_is_replaced_only_with_force() {
    let (folder, path) = recorded();
    let page = folder.file("page.html");
    fs::write(&page, "mine").unwrap();
    let page = page.to_str().unwrap();
    complaint(&run(&["report", &path, "-o", page]), 2);
    assert_eq!(fs::read_to_string(page).unwrap(), "mine");
    let output = run(&["report", &path, "-o", page, "--force", "--title", "Tuesday <b>"]);
    assert!(output.status.success(), "{output:?}");
    assert!(fs::read_to_string(page).unwrap().contains("Tuesday \\u003cb\\u003e"));
    assert_eq!(mode(Path::new(page)), 0o600);
}

#[test]
fn page_on_standard_output_is_the_only_output() {
    let (folder, path) = recorded();
    let output = run(&["report", &path, "--output", "-"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    assert!(text(&output.stdout).ends_with("</html>\n"));
    assert!(!folder.file("afternoon.html").exists());
}

#[test]
fn recording_is_never_overwritten_by_its_page() {
    let (_folder, path) = recorded();
    let before = fs::read(&path).unwrap();
    complaint(&run(&["report", &path, "-o", &path, "--force"]), 2);
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[test]
fn file_that_is_not_a_recording_makes_no_page() {
    let folder = Folder::new();
    let path = folder.file("notes.txt");
    complaint(&run(&["report", path.to_str().unwrap()]), 2);
    fs::write(&path, "no MCAP").unwrap();
    complaint(&run(&["report", path.to_str().unwrap()]), 1);
    assert!(!folder.file("notes.html").exists());
}

#[test]
fn damaged_recording_makes_a_page_that_says_so() {
    let (folder, path) = recorded();
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    let output = run(&["report", &path]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(text(&output.stderr).contains("damaged at byte"), "{output:?}");
    assert!(
        fs::read_to_string(folder.file("afternoon.html"))
            .unwrap()
            .contains("The recording is damaged at byte")
    );
}
