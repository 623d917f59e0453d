//! What a tool reports without being asked: events of subscriptions, late results, and views. Only an assistant can show
//! them to its model and to the room.

use serde_json::Value as Json;

use crate::{
    ToolContext, ToolName,
    adapter::rap::{RapResult, document::Event},
};

/// Reports on behalf of a call, also after its end.
#[derive(Clone)]
pub(super) struct Reports {
    context: ToolContext,
}

/// The call that a report belongs to.
#[derive(Clone, Debug)]
pub(super) struct Origin {
    pub(super) id: String,
    pub(super) tool: ToolName,
}

impl Reports {
    pub(super) fn of(context: &ToolContext) -> Self {
        Self { context: context.clone() }
    }

    pub(super) fn can_report(&self) -> bool {
        let _ = &self.context;
        false
    }

    pub(super) fn event(&self, _origin: &Origin, _event: &Event, _text: &str) -> bool {
        false
    }

    pub(super) fn late(&self, _origin: &Origin, _result: RapResult) -> bool {
        false
    }

    pub(super) fn view(&self, _view: &str, _content: Json) -> bool {
        false
    }
}
