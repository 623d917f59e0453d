//! Applies what the user has set for a source: which of its tools are offered, under which names, and when a
//! person is asked.

use std::{env, time::Duration};

use crate::{Consent, adapter::filter::Filter};

/// What the user has set for all tools of a source.
#[derive(Clone, Debug, Default)]
pub(in crate::adapter) struct Policy {
    pub(in crate::adapter) prefix: Option<String>,
    pub(in crate::adapter) filter: Filter,
    pub(in crate::adapter) consent: Option<Consent>,
    pub(in crate::adapter) timeout: Option<Duration>,
    /// Whether a tool that says that it only reads runs without a question.
    pub(in crate::adapter) trusts_hints: bool,
}

impl Policy {
    /// Returns whether the user wants this tool, by the source's name for it.
    pub(in crate::adapter) fn offers(&self, tool: &str) -> bool {
        self.filter.offers(&[tool])
    }

    /// Returns the name of the room for a tool.
    pub(in crate::adapter) fn in_room(&self, name: &str) -> String {
        self.prefix.as_ref().map_or_else(|| name.to_owned(), |it| format!("{it}.{name}"))
    }

    /// Returns when a person is asked before a tool runs, which says this of itself.
    pub(in crate::adapter) fn consent(&self, is_read_only: bool, is_destructive: bool) -> Consent {
        match self.consent {
            Some(consent) => consent,
            None if is_destructive => Consent::Always,
            None if is_read_only && self.trusts_hints => Consent::Never,
            None => Consent::OncePerSession,
        }
    }
}

/// Where a bearer token comes from.
#[derive(Clone)]
pub(in crate::adapter) enum Bearer {
    Token(String),
    /// The environment variable that holds it.
    Variable(String),
}

impl Bearer {
    /// Returns the token.
    ///
    /// # Errors
    /// The variable is not set, or not text.
    pub(in crate::adapter) fn token(&self) -> Result<String, String> {
        match self {
            Self::Token(token) => Ok(token.clone()),
            Self::Variable(variable) => env::var(variable)
                .map_err(|_| format!("the variable {variable} of its bearer token is not set")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn person_is_asked_as_the_user_has_set_and_else_by_what_a_tool_says() {
        let own = Policy::default();
        let trusting = Policy { trusts_hints: true, ..Policy::default() };
        let never = Policy { consent: Some(Consent::Never), ..Policy::default() };
        for (policy, is_read_only, is_destructive, expected) in [
            (&own, false, false, Consent::OncePerSession),
            (&own, true, false, Consent::OncePerSession),
            (&own, false, true, Consent::Always),
            (&trusting, true, false, Consent::Never),
            (&trusting, true, true, Consent::Always),
            (&never, false, true, Consent::Never),
        ] {
            assert_eq!(policy.consent(is_read_only, is_destructive), expected);
        }
    }

    #[test]
    fn token_of_a_variable_that_is_not_set_names_it() {
        assert_eq!(Bearer::Token("hunter2".to_owned()).token().as_deref(), Ok("hunter2"));
        let bearer = Bearer::Variable("TOOLBRIDGE_NO_SUCH_VARIABLE".to_owned());
        assert!(bearer.token().unwrap_err().contains("TOOLBRIDGE_NO_SUCH_VARIABLE"));
    }
}
