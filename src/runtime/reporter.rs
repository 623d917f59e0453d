//! Reports what happens outside of calls to the room: the calls of another system, and views.

use std::{fmt, sync::Arc};

use serde::Serialize;

use crate::{
    tool::{CallId, JobKey, Outcome, Progress, ReportError, ToolError},
    value::{EncodeError, Value},
};

/// Reports calls and views to the room, for an adapter whose system does something that no call of the room asked for.
///
/// A running tool gets it from [`ToolContext::reporter`](crate::ToolContext::reporter), and may keep it after its call.
/// It does not keep the participant in the room. After the participant has left, each report is
/// [`Closed`](ReportError::Closed).
#[derive(Clone)]
pub struct Reporter {
    room: Arc<dyn ReportTo>,
}

/// Where reports go. The participant implements it.
pub(crate) trait ReportTo: Send + Sync {
    fn begin(&self, report: NewReport) -> Result<(JobKey, CallId), ReportError>;
    fn progress(&self, key: JobKey, progress: Progress);
    fn finish(&self, key: JobKey, outcome: Outcome);
    fn show_view(&self, view: &str, content: Value, text: Option<String>) -> Result<(), ReportError>;
}

/// A report that begins.
#[derive(Debug)]
pub(crate) struct NewReport {
    pub(crate) tool: String,
    pub(crate) arguments: Value,
    pub(crate) meta: Vec<(String, Value)>,
}

impl Reporter {
    pub(crate) fn new(room: Arc<dyn ReportTo>) -> Self {
        Self { room }
    }

    /// Creates the report of a call that another system makes: see [`Assistant::report`](crate::Assistant::report).
    pub fn report(&self, tool: &str, arguments: impl Serialize) -> Report {
        let begun = Value::encode(&arguments).and_then(Value::into_arguments);
        let begun = begun.map(|arguments| NewReport { tool: tool.to_owned(), arguments, meta: Vec::new() });
        Report { room: Arc::clone(&self.room), begun }
    }

    /// Shows a view to the clients: see [`Assistant::show_view`](crate::Assistant::show_view).
    ///
    /// # Errors
    /// As there.
    pub fn show_view(
        &self,
        view: &str,
        content: impl Serialize,
        text: Option<&str>,
    ) -> Result<(), ReportError> {
        let content = Value::encode(&content).map_err(ReportError::Arguments)?;
        self.room.show_view(view, content, text.map(str::to_owned))
    }
}

impl fmt::Debug for Reporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reporter").finish_non_exhaustive()
    }
}

/// A reported call that has not begun.
#[must_use = "a report is sent when it is started"]
pub struct Report {
    room: Arc<dyn ReportTo>,
    begun: Result<NewReport, EncodeError>,
}

impl Report {
    /// Adds an entry to the request's `meta`.
    pub fn meta(mut self, key: &str, value: impl Serialize) -> Self {
        self.begun = self.begun.and_then(|mut begun| {
            begun.meta.push((key.to_owned(), Value::encode(&value)?));
            Ok(begun)
        });
        self
    }

    /// Shows the call to the room as one that runs.
    ///
    /// # Errors
    /// The name or the arguments are not valid, a limit is exceeded, or the participant has left.
    pub fn start(self) -> Result<Reported, ReportError> {
        let (key, id) = self.room.begin(self.begun.map_err(ReportError::Arguments)?)?;
        Ok(Reported { room: self.room, key, id, is_finished: false })
    }
}

impl fmt::Debug for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Report").field("begun", &self.begun).finish_non_exhaustive()
    }
}

/// A reported call in progress. Dropping it without [`finish`](Reported::finish) ends it as a failure.
#[must_use = "dropping a reported call ends it as a failure"]
pub struct Reported {
    room: Arc<dyn ReportTo>,
    key: JobKey,
    id: CallId,
    is_finished: bool,
}

impl Reported {
    /// Returns the call's id, which the room knows.
    pub fn id(&self) -> &CallId {
        &self.id
    }

    /// Reports progress. At most ten updates a second are sent, and the last is always sent.
    pub fn progress(&self, progress: impl Into<Progress>) {
        self.room.progress(self.key, progress.into());
    }

    /// Ends the call. After its time limit, or a stop, this has no effect.
    pub fn finish(mut self, outcome: Outcome) {
        self.is_finished = true;
        self.room.finish(self.key, outcome);
    }
}

impl Drop for Reported {
    fn drop(&mut self) {
        if !self.is_finished {
            self.room.finish(self.key, Err(ToolError::from("the call ended without a result")));
        }
    }
}

impl fmt::Debug for Reported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reported").field("id", &self.id).finish_non_exhaustive()
    }
}
