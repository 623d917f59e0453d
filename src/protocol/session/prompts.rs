//! Prompts (`wire.md`, section 4): reserved tools that ask the person at a client.

use super::{
    Session,
    peer::{Feature, Remote},
};
use crate::{
    protocol::frame::{Message, ToolUseRequest},
    tool::ToolName,
    transport::Identity,
    value::Value,
};

/// The prompt whose URL is for one person's eyes.
const AUTHORIZE: &str = "bridge.authorize";

/// Whether a name is a prompt's.
pub(super) fn is_prompt(tool: &str) -> bool {
    ToolName::PROMPTS.contains(&tool)
}

/// Whether a client may be asked prompts: it lists them, and we are its assistant, with which alone it registers.
pub(super) fn takes_prompts(remote: &Remote) -> bool {
    remote.pair.registered && remote.lists(Feature::Prompt)
}

impl Session {
    /// Whether we list this feature: a client lists prompts if its author answers them.
    pub(super) fn has_feature(&self, feature: Feature) -> bool {
        match feature {
            Feature::Prompt => self.is_client() && self.config.prompts,
            Feature::Stream => self.config.streams,
            Feature::FastLane => self.config.has_fast_lane(),
            _ => true,
        }
    }

    /// Client: whether this call is a prompt that its author answers.
    pub(super) fn answers_prompt(&self, tool: &str) -> bool {
        self.config.prompts && is_prompt(tool)
    }

    /// Client: whether a person can be asked one more thing.
    pub(super) fn has_attention(&self, caller: &Identity, tool: &str) -> bool {
        if !is_prompt(tool) {
            return true;
        }
        let asked = self.jobs.values().filter(|job| job.caller == *caller && job.tool.is_prompt());
        let claims = self.tables.get(caller).into_iter().flat_map(|table| table.claims.values());
        asked.count() + claims.filter(|claim| claim.tool.is_prompt()).count() < self.config.caps.open_prompts
    }
}

/// A request as observers see it: without the URL by which somebody signs in.
pub(super) fn for_observers(message: Message) -> Message {
    match message {
        Message::ToolUseRequest(request) if request.tool_name == AUTHORIZE => {
            Message::ToolUseRequest(ToolUseRequest { parameters: Value::empty(), ..request })
        }
        other => other,
    }
}
