//! Whether a finished token fits the verb: what its bearer is in the room is written in it.

use livekit_token::Claims;

use super::{Failure, hint};
use crate::{ROLE_ATTRIBUTE, Role};

/// What others take its bearer for. What cannot be read here is told by whoever reads it next.
pub(super) fn of(token: &str) -> Option<Part> {
    let claims = Claims::from_unverified(token).ok()?;
    // The rule of the room: a role counts if its bearer could not have given it to himself.
    let fixed = claims.video.can_update_own_metadata != Some(true);
    let role = claims.attributes.get(ROLE_ATTRIBUTE).filter(|_| fixed);
    Some(Part {
        role: role.and_then(|role| Role::from_text(role)),
        is_agent: claims.kind.eq_ignore_ascii_case("agent"),
        is_hidden: claims.video.hidden,
        identity: claims.sub,
    })
}

/// The bearer of a token, as the others in the room see it.
#[derive(Debug)]
pub(super) struct Part {
    role: Option<Role>,
    is_agent: bool,
    is_hidden: bool,
    identity: String,
}

impl Part {
    /// Whether it hears what observers hear.
    pub(super) fn observes(&self) -> bool {
        self.role == Some(Role::Observer) && !self.is_hidden
    }

    /// Whether the others never see it.
    pub(super) fn is_hidden(&self) -> bool {
        self.is_hidden
    }

    /// Refuses a token that makes us what the verb is not: others would wait for our tools, or for our calls.
    pub(super) fn fits(&self, verb: &str, wanted: Role) -> Result<(), Failure> {
        let is_it = match wanted {
            Role::Assistant => self.is_agent || self.role == Some(wanted),
            Role::Client | Role::Observer => !self.is_agent && self.role == Some(wanted),
        };
        if is_it {
            return Ok(());
        }
        let what = match self.role {
            Some(role) => format!("of role {}", role.as_str()),
            None if self.is_agent => "of kind agent".to_owned(),
            None => return self.warn(wanted),
        };
        let wanted = wanted.as_str();
        Err(Failure::Usage(format!(
            "the token is {what}, and `{verb}` needs one of role {wanted}: toolbridge token --role {wanted} makes it"
        )))
    }

    /// Without a role, only those who name us have to do with us.
    fn warn(&self, wanted: Role) -> Result<(), Failure> {
        let identity = &self.identity;
        match wanted {
            Role::Assistant => {
                hint(&format!("the token has no role: only clients that name {identity} listen to us"));
            }
            Role::Client => {
                hint(&format!("the token has no role: only assistants that name {identity} take our tools"));
            }
            Role::Observer if self.is_hidden => {} // nobody sees its role
            Role::Observer => hint("the token has no role: only what goes to the whole room is heard"),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AccessKey;

    fn fits(token: crate::Token, wanted: Role) -> Result<(), String> {
        match of(&token.sign().unwrap()).unwrap().fits("verb", wanted) {
            Ok(()) => Ok(()),
            Err(Failure::Usage(text)) => Err(text),
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_token_of_another_role_is_wrong_usage() {
        let key = AccessKey::new("key", "a secret of some length that is long enough");
        let roles = [Role::Client, Role::Assistant, Role::Observer];
        for wanted in roles {
            for role in roles {
                let token = match role {
                    Role::Client => key.client("r", "i"),
                    Role::Assistant => key.assistant("r", "i"),
                    Role::Observer => key.observer("r", "i"),
                };
                let fit = fits(token, wanted);
                assert_eq!(fit.is_ok(), role == wanted, "{fit:?}");
                if let Err(text) = fit {
                    assert!(
                        text.contains(role.as_str()) && text.contains("toolbridge token --role"),
                        "{text}"
                    );
                }
            }
            // No role at all, or one that its bearer could have written.
            assert!(fits(key.participant("r", "i"), wanted).is_ok());
            let own = key.participant("r", "i").attribute("a", "b").can_update_own_metadata();
            assert!(fits(own, wanted).is_ok());
            assert_eq!(fits(key.participant("r", "i").agent(), wanted).is_ok(), wanted == Role::Assistant);
        }
        assert!(of("no token").is_none());
        assert!(of(&key.observer("r", "i").sign().unwrap()).unwrap().observes());
        let hidden = of(&key.observer("r", "i").hidden().sign().unwrap()).unwrap();
        assert!(hidden.is_hidden() && !hidden.observes(), "nobody sends copies to whom nobody sees");
    }
}
