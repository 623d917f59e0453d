//! Selects among several clients that offer a tool, or among several assistants that a client may bind.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use super::keys::SelectionKey;
use crate::{
    tool::Tool,
    transport::{Identity, Participant},
};

/// The policy for choosing among several participants.
///
/// An assistant uses it when several clients offer one tool, and neither the call nor a pin names one. A client uses it
/// when several participants may be its assistant and none was configured. A bound assistant stays bound until it
/// leaves.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum SelectionPolicy {
    /// Selects none. The call fails as [ambiguous](crate::CallError::Ambiguous); a client binds no assistant and
    /// [reports the candidates](crate::protocol::session::Event::AmbiguousAssistant).
    #[default]
    Nobody,
    /// The client that registered first, or the assistant that sent a frame first. A participant that returns within
    /// the grace period keeps its rank.
    First,
    /// The client that registered last, or the assistant whose first frame came last. A changed registration does not count
    /// as a new one.
    Last,
    /// The participant that sent the latest frame.
    LastHeard,
    /// The participant that a function names; see [`by`](SelectionPolicy::by).
    By(SelectionFn),
}

/// Selects one of several candidates for a tool, or an assistant if there is no tool. See [`SelectionPolicy::by`].
pub type SelectionFn = Arc<dyn Fn(Option<&str>, &[Candidate]) -> Option<Identity> + Send + Sync>;

impl SelectionPolicy {
    /// Selects with a function. It receives the name of the tool, or `None` when a client selects its assistant, and the
    /// candidates in the order of [`SelectionPolicy::First`], and returns the identity of one of them.
    ///
    /// If the function returns `None` or an unknown identity, or panics, the policy acts as [`SelectionPolicy::Nobody`]. The
    /// function runs on the participant's task, so it must be quick. It may use handles of the same participant.
    ///
    /// ```
    /// use toolbridge::session::SelectionPolicy;
    ///
    /// let kitchen_first = SelectionPolicy::by(|_tool, candidates| {
    ///     let kitchen = candidates.iter().find(|it| it.identity.as_str().starts_with("kitchen"));
    ///     kitchen.or(candidates.first()).map(|it| it.identity.clone())
    /// });
    /// # let _ = kitchen_first;
    /// ```
    pub fn by(
        choose: impl Fn(Option<&str>, &[Candidate]) -> Option<Identity> + Send + Sync + 'static,
    ) -> Self {
        Self::By(Arc::new(choose))
    }
}

impl fmt::Debug for SelectionPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nobody => "Nobody",
            Self::First => "First",
            Self::Last => "Last",
            Self::LastHeard => "LastHeard",
            Self::By(_) => "By(..)",
        })
    }
}

/// A candidate for the selection.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Candidate {
    /// The candidate's identity.
    pub identity: Identity,
    /// The room's description of the candidate, if it was announced.
    pub participant: Option<Participant>,
    /// The requested tool, as the candidate registered it. `None` for an assistant, and for a tool that is never
    /// registered.
    pub tool: Option<Tool>,
}

/// A choice among several participants that the author's function makes. See [`SelectionPolicy::by`].
#[derive(Clone)]
#[non_exhaustive]
pub struct Selection {
    /// Identifies the selection in [`Session::select`](crate::session::Session::select).
    pub key: SelectionKey,
    /// The requested tool. `None` when a client selects its assistant.
    pub tool: Option<String>,
    /// The candidates, in the order of [`SelectionPolicy::First`].
    pub candidates: Vec<Candidate>,
    pub(super) function: SelectionFn,
}

impl Selection {
    /// Runs the author's function. Returns `None` if it selects no candidate, or panics.
    pub fn evaluate(&self) -> Option<Identity> {
        let named =
            // A panic of the author's function counts as no choice. It must not end the participant with all
            // its calls.
            catch_unwind(AssertUnwindSafe(|| (self.function)(self.tool.as_deref(), &self.candidates)))
                .unwrap_or_else(|_| {
                    tracing::error!("the selection function panicked; no candidate is selected");
                    None
                })?;
        if !self.candidates.iter().any(|it| it.identity == named) {
            tracing::warn!(%named, "the selection function returned an unknown identity; no candidate is selected");
            return None;
        }
        Some(named)
    }
}

impl fmt::Debug for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Selection")
            .field("key", &self.key)
            .field("tool", &self.tool)
            .field("candidates", &self.candidates)
            .finish_non_exhaustive()
    }
}
