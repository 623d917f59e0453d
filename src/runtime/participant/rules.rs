//! Applies the author's rules about participants: which ones are admitted, and which ones may stop calls.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::transport::Participant;

type Rule = Box<dyn Fn(&Participant) -> bool + Send + Sync>;

/// The author's rules. Without a rule, no participant is accepted.
#[derive(Default)]
pub(super) struct Rules {
    admit: Option<Rule>,
    allow_stop: Option<Rule>,
}

impl Rules {
    pub(super) fn set_admit(&mut self, rule: impl Fn(&Participant) -> bool + Send + Sync + 'static) {
        self.admit = Some(Box::new(rule));
    }

    pub(super) fn set_allow_stop(&mut self, rule: impl Fn(&Participant) -> bool + Send + Sync + 'static) {
        self.allow_stop = Some(Box::new(rule));
    }

    /// Evaluates the rules for an announced participant, and notes the results in its description.
    pub(super) fn evaluate(&self, who: Participant) -> Participant {
        let who = who.admitted(false).allowed_to_stop(false); // whatever the transport has set
        let (is_admitted, may_stop) =
            (accepts(self.admit.as_ref(), &who), accepts(self.allow_stop.as_ref(), &who));
        who.admitted(is_admitted).allowed_to_stop(may_stop)
    }
}

/// Evaluates one rule. A panic counts as a rejection.
fn accepts(rule: Option<&Rule>, who: &Participant) -> bool {
    rule.is_some_and(|rule| {
        catch_unwind(AssertUnwindSafe(|| rule(who))).unwrap_or_else(|_| {
            tracing::error!(participant = %who.identity(), "the rule for a participant panicked; the participant is rejected");
            false
        })
    })
}
