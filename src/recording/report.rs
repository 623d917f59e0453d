//! Writes a session as one self-contained HTML file that works offline.

mod data;
mod numbers;
mod page;
mod text;

use std::io::{self, Write};

use super::{Entry, RecordedCall};

/// Returns an HTML page that shows the calls of a recording over time, with their frames.
///
/// The page loads nothing: its content security policy allows one script and one style sheet, by hash, and no
/// connections. The recorded data is embedded as JSON, and the script inserts it as text, so that it cannot become
/// markup or code. Control, bidi and invisible characters are shown as escapes.
///
/// A result with parts ([`ToolResult`](crate::ToolResult)) is drawn as a person sees it: text, Markdown, JSON, code,
/// diffs, forms and the output of terminals. Media are a line with their type and size. Only `http` and `https` links
/// can be opened. The text that is spoken and the result's native document stand below.
///
/// The states of views stand below the calls: the steps of a plan, otherwise the text or the content of the view.
///
/// `calls` must be the calls of these entries; [`RecordedCall::entries`] counts them. The entries are read once, and
/// only what the page shows is kept. The page has limits and reports what exceeds them: 32 MiB of data, 16 KiB of
/// JSON for a frame's body, 16 KiB for a result's parts, in at most 32 sections of 200 lines, 16 KiB of a native document,
/// 200 frames per call, 100,000 calls, 5,000 room events, 1,000 states of views of 4 KiB, 1,000 participants, 1,000 tools, and 200 bytes for a name. The
/// totals count every call.
///
/// ```
/// use toolbridge::recording::report;
///
/// let page = report(Vec::new(), &[], "Tuesday's session");
/// assert!(page.starts_with("<!doctype html>"));
/// ```
pub fn report(entries: impl IntoIterator<Item = Entry>, calls: &[RecordedCall], title: &str) -> String {
    let mut page = Vec::new();
    // Writing to memory cannot fail, and a page is valid UTF-8.
    let _ = write_report(entries, calls, title, &[], &mut page);
    String::from_utf8(page).unwrap_or_default()
}

/// Writes the page of [`report`] piece by piece, to save memory. `notes` stand at its top, for example that the file is
/// damaged; at most 20 are shown.
///
/// # Errors
/// Returns an error if writing fails.
pub fn write_report(
    entries: impl IntoIterator<Item = Entry>,
    calls: &[RecordedCall],
    title: &str,
    notes: &[String],
    out: &mut impl Write,
) -> io::Result<()> {
    page::write(&data::block(entries, calls, title, notes), out)
}
