//! Offers an assistant as a tool source that tells apart the clients that offer the same tool.

use std::collections::BTreeMap;

use super::Assistant;
use crate::{
    runtime::source::{ToolContext, ToolSource},
    tool::{NameMap, NameRules, Offer, Outcome, Tool, ToolName},
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
        let local = self.assistant.identity().clone();
        let mut by_tool = BTreeMap::<ToolName, Vec<Offer>>::new();
        for offer in self.assistant.tools() {
            by_tool.entry(offer.tool.name().clone()).or_default().push(offer);
        }
        let mut tools = BTreeMap::new();
        let mut of_owners = BTreeMap::new();
        for (name, mut offers) in by_tool {
            // A call of a tool that the assistant offers too is never ambiguous.
            let local = offers.iter().position(|offer| offer.owner == local);
            match (local, offers.len()) {
                (Some(at), _) => _ = tools.insert(name, offers.swap_remove(at)),
                (None, 1) => tools.extend(offers.pop().map(|offer| (name, offer))),
                _ => of_owners.extend(offers.into_iter().map(|it| (format!("{}.{name}", it.owner), it))),
            }
        }
        // Identities may be long and contain any character.
        let taken = tools.keys().map(ToString::to_string);
        let names = NameMap::new(NameRules::Tool, taken.chain(of_owners.keys().cloned()));
        for (long, offer) in of_owners {
            let name = names.converted(&long).and_then(|name| name.parse::<ToolName>().ok());
            if let Some(name) = name.filter(|name| !tools.contains_key(name)) {
                tools.insert(name, offer);
            }
        }
        tools
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
