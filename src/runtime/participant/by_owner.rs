//! Offers an assistant as a tool source that tells apart the clients that offer the same tool.

use std::collections::BTreeMap;

use super::Assistant;
use crate::{
    runtime::source::{ToolContext, ToolSource},
    tool::{Offer, Outcome, Tool, ToolName, model::by_owner},
    value::Value,
};

/// An [`Assistant`] as a tool source that tells apart the clients that offer the same tool: see
/// [`Assistant::by_owner`].
#[derive(Clone, Debug)]
pub struct ByOwner {
    assistant: Assistant,
}

impl ByOwner {
    pub(super) fn new(assistant: Assistant) -> Self {
        Self { assistant }
    }

    /// Returns the tools that can be called now, with their owners and their original names, by the names under which
    /// they are listed.
    pub fn offers(&self) -> BTreeMap<ToolName, Offer> {
        by_owner(self.assistant.tools(), false)
    }
}

impl ToolSource for ByOwner {
    fn list(&self) -> Vec<Tool> {
        self.offers().into_iter().map(|(name, offer)| offer.tool.renamed(name)).collect()
    }

    async fn execute(&self, tool: &ToolName, arguments: Value, context: ToolContext) -> Outcome {
        match self.offers().remove(tool) {
            Some(offer) if offer.tool.name() != tool => {
                self.assistant.run(offer.tool.name(), Some(offer.owner), arguments, context).await
            }
            // A name that was listed before and has become ambiguous is an error that says so.
            _ => self.assistant.run(tool, None, arguments, context).await,
        }
    }

    fn changed(&self) -> impl Future<Output = ()> + Send {
        self.assistant.changed()
    }
}
