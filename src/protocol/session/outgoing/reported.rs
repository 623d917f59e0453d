//! Shows calls that another system makes and runs, and that the assistant reports to the room (`wire.md`,
//! section 4.14).

use super::{Call, Core, JobKey, Outgoing, Request};
use crate::{
    tool::{CallId, ReportError, ToolName},
    transport::CloseReason,
};

/// The key of a request's `meta` that marks a reported call.
const REPORTED: &str = "bridge.reported";

impl Outgoing {
    /// Shows a call to the room that runs elsewhere.
    pub(crate) fn report(
        &mut self,
        core: &mut Core,
        mut request: Request,
    ) -> Result<(JobKey, CallId), ReportError> {
        request.arguments = request.arguments.into_arguments().map_err(ReportError::Arguments)?;
        let tool = self.check_report(core, &request)?;
        request.meta.set_bool(REPORTED, true);
        let limit = *request.timeout.get_or_insert(core.cx.config.times.longest_call);
        let new = Call::new(core, request, limit, limit);
        let call = Call { named: None, turn: None, detached: true, ..new };
        let id = call.id.clone();
        let key = self.insert_call(core, call);
        match self.report_job(core, key, &tool) {
            Some(job) => Ok((job, id)),
            None => Err(ReportError::Closed(CloseReason::Closed)), // the call was inserted just now
        }
    }

    fn check_report(&mut self, core: &Core, request: &Request) -> Result<ToolName, ReportError> {
        let caps = &core.cx.config.caps;
        if core.cx.is_client() {
            return Err(ReportError::NotAnAssistant);
        }
        let tool: ToolName = request.tool.parse()?;
        if tool.is_reserved() && tool.as_str() != ToolName::EVENT {
            return Err(ReportError::Reserved { tool });
        }
        let (size, limit) =
            (request.arguments.as_bytes().len() + request.meta.size(), caps.frames.max_frame_of_others);
        if size > limit {
            return Err(ReportError::TooLarge { size, limit });
        }
        let (open, limit) = (core.jobs.reported(), caps.calls.open_per_peer);
        if open >= limit {
            return Err(ReportError::TooMany { open, limit });
        }
        let limit = caps.requests.calls_per_second;
        // Last, since it counts: a report that is refused for another reason takes no place in this second.
        if !self.reports.admits(core.cx.now, limit) {
            return Err(ReportError::TooOften { limit });
        }
        Ok(tool)
    }
}
