//! The report: a session as one HTML file, to be opened anywhere, without a network.

mod data;
mod numbers;
mod page;
mod text;

use std::io::{self, Write};

use super::{Entry, RecordedCall};

/// A page that shows the calls of a recording over time, with their frames.
///
/// It is one file of HTML that asks for nothing else: its policy allows one script and one style sheet, both by their
/// hash, and no connection. What was recorded is in it as JSON that the script reads and puts into the page as text, so
/// nothing in it can become an element or a program. Control, bidi and invisible characters are shown as escapes.
///
/// `calls` are the calls of these very entries; [`RecordedCall::entries`] counts them. The entries are read once, and
/// only what the page holds is kept. The page has limits, and says what was left out because of them: its data 32 MiB,
/// a frame's body 16 KiB as JSON, 200 frames a call, 100,000 calls, 5,000 events of the room, 1,000 participants and as
/// many tools, 200 bytes of a name. Its numbers count every call all the same.
///
/// ```
/// use toolbridge::recording::report;
///
/// let page = report(Vec::new(), &[], "Tuesday's session");
/// assert!(page.starts_with("<!doctype html>"));
/// ```
pub fn report(entries: impl IntoIterator<Item = Entry>, calls: &[RecordedCall], title: &str) -> String {
    report_with_notes(entries, calls, title, &[])
}

/// As [`report`], with sentences above all else: that the file is damaged, say. At most 20 of them are shown.
pub fn report_with_notes(
    entries: impl IntoIterator<Item = Entry>,
    calls: &[RecordedCall],
    title: &str,
    notes: &[String],
) -> String {
    let mut page = Vec::new();
    // Writing to memory cannot fail, and a page is text.
    let _ = write_report(entries, calls, title, notes, &mut page);
    String::from_utf8(page).unwrap_or_default()
}

/// As [`report_with_notes`], written piece by piece, so that the page need not be held in memory.
///
/// # Errors
/// When writing fails.
pub fn write_report(
    entries: impl IntoIterator<Item = Entry>,
    calls: &[RecordedCall],
    title: &str,
    notes: &[String],
    out: &mut impl Write,
) -> io::Result<()> {
    page::write(&data::block(entries, calls, title, notes), out)
}
