//! Reports what an assistant shows to its room: calls of other systems, and views.

use std::sync::{Arc, Weak};

use serde::Serialize;

use super::{Assistant, Shared, now};
use crate::{
    protocol::session::Request,
    runtime::reporter::{NewReport, Report, ReportTo, Reporter},
    tool::{CallError, CallId, JobKey, Outcome, Progress, ReportError},
    transport::CloseReason,
    value::Value,
};

impl Assistant {
    /// Creates the report of a call that another system makes and runs. `()` means no arguments; any other value must
    /// encode to a map.
    ///
    /// The room sees it as a call that this assistant runs itself: the request when it is
    /// [started](Report::start), progress, and one outcome. It is in the [call log](Assistant::calls) and in
    /// recordings. Nothing runs, and the tool need not be offered. At most 64 reported calls are open, 50 begin in a
    /// second, and each may take [`Times::longest_call`](crate::Times::longest_call); its arguments have at most 256 KiB.
    ///
    /// [`ToolName::EVENT`](crate::ToolName::EVENT) is the tool of what belongs to an earlier call; its arguments name
    /// that call. [`late_results`](Assistant::late_results) returns such events, so that the model learns of them.
    ///
    /// ```
    /// # async fn example(assistant: toolbridge::Assistant) -> Result<(), Box<dyn std::error::Error>> {
    /// use serde_json::json;
    /// use toolbridge::Value;
    ///
    /// let edit = assistant.report("edit_file", json!({"path": "/srv/notes.md"})).start()?;
    /// edit.progress("2 of 3 lines");
    /// edit.finish(Ok(Value::encode(&json!({"lines": 3}))?));
    /// # Ok(())
    /// # }
    /// ```
    pub fn report(&self, tool: &str, arguments: impl Serialize) -> Report {
        self.reporter().report(tool, arguments)
    }

    /// Shows the state of a view, such as a chart or a list that changes while the conversation goes on, to the clients
    /// that list the feature `view_update`. They get it as [`Event::View`](crate::Event::View).
    ///
    /// The latest state replaces the one before, and is sent to clients that join later. `()` as content ends the view.
    /// At most ten states of one view are sent in a second; the last is always sent. `text` says the same for people
    /// without a screen.
    ///
    /// # Errors
    /// [`View`](ReportError::View) for a name that is empty or longer than 128 bytes, [`TooMany`](ReportError::TooMany)
    /// beyond 16 views, [`TooLarge`](ReportError::TooLarge) beyond 64 KiB of content and text,
    /// [`Arguments`](ReportError::Arguments) if the content cannot be encoded, [`Closed`](ReportError::Closed) if this
    /// assistant has left.
    pub fn show_view(
        &self,
        view: &str,
        content: impl Serialize,
        text: Option<&str>,
    ) -> Result<(), ReportError> {
        self.reporter().show_view(view, content, text)
    }

    /// Returns what reports calls and views, for a part of the program that must not keep this assistant in the room.
    pub fn reporter(&self) -> Reporter {
        reporter(&self.handle().0)
    }
}

/// Returns the reporter of this participant.
pub(super) fn reporter(shared: &Arc<Shared>) -> Reporter {
    Reporter::new(Arc::new(RoomReports(Arc::downgrade(shared))))
}

/// A participant, as long as it is in the room.
struct RoomReports(Weak<Shared>);

impl RoomReports {
    /// Gives the session a command.
    fn act<T>(
        &self,
        command: impl FnOnce(&mut super::Inner) -> Result<T, ReportError>,
    ) -> Result<T, ReportError> {
        let shared = self.0.upgrade().ok_or(ReportError::Closed(CloseReason::Closed))?;
        let mut inner = shared.lock();
        if let Some(CallError::NotInRoom(reason)) = shared.refusal(&inner) {
            return Err(ReportError::Closed(reason));
        }
        let done = command(&mut inner);
        drop(inner);
        shared.wake.notify_one();
        done
    }

    /// Gives the session a command that may come while the participant leaves.
    fn end(&self, command: impl FnOnce(&mut super::Inner)) {
        if let Some(shared) = self.0.upgrade() {
            command(&mut shared.lock());
            shared.wake.notify_one();
        }
    }
}

impl ReportTo for RoomReports {
    fn begin(&self, report: NewReport) -> Result<(JobKey, CallId), ReportError> {
        let mut request = Request::new(report.tool, report.arguments);
        for (key, value) in report.meta {
            request = request.meta(&key, value);
        }
        self.act(|inner| inner.session.report(now(), request))
    }

    fn progress(&self, key: JobKey, progress: Progress) {
        self.end(|inner| inner.session.progress(now(), key, progress));
    }

    fn finish(&self, key: JobKey, outcome: Outcome) {
        self.end(|inner| inner.session.settle(now(), key, outcome));
    }

    fn show_view(&self, view: &str, content: Value, text: Option<String>) -> Result<(), ReportError> {
        self.act(|inner| inner.session.show_view(now(), view, content, text))
    }
}
