//! Reads what a person at an editor asks for, and says why a turn has ended.

use std::fmt;

use crate::result::{BlockKind, ContentBlock};

/// What the person at an editor asks for. `Debug` shows only the number of its parts.
#[derive(Clone)]
pub struct UserPrompt {
    blocks: Vec<ContentBlock>,
}

impl UserPrompt {
    pub(super) fn new(blocks: Vec<ContentBlock>) -> Self {
        Self { blocks }
    }

    /// Returns its texts, the texts of embedded files and the addresses of linked ones, joined by line breaks.
    pub fn text(&self) -> String {
        let texts = self.blocks.iter().filter_map(|block| match block.kind() {
            BlockKind::Text(text) => Some(&**text),
            BlockKind::Link { uri, .. } => Some(&**uri),
            BlockKind::Resource(resource) => resource.text.as_deref().or(Some(&*resource.uri)),
            _ => None,
        });
        texts.collect::<Vec<_>>().join("\n")
    }

    /// Returns its parts.
    pub fn blocks(&self) -> &[ContentBlock] {
        &self.blocks
    }
}

impl fmt::Debug for UserPrompt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UserPrompt").field("blocks", &self.blocks.len()).finish_non_exhaustive()
    }
}

/// Why a turn has ended. A turn that the person cancels ends as cancelled, whatever its future returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum TurnEnd {
    /// The agent has finished.
    #[default]
    EndTurn,
    /// The model has reached its limit of tokens.
    MaxTokens,
    /// The agent has reached its limit of requests to the model.
    MaxTurnRequests,
    /// The agent refuses to continue.
    Refusal,
}

impl TurnEnd {
    /// Returns the value on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::EndTurn => "end_turn",
            Self::MaxTokens => "max_tokens",
            Self::MaxTurnRequests => "max_turn_requests",
            Self::Refusal => "refusal",
        }
    }
}
