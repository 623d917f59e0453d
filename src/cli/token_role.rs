//! Whether a finished token fits the verb: what its bearer is in the room is written in it.

use super::{Failure, hint};
use toolbridge::{Role, transport::livekit::access_token::TokenClaims};

/// Checks that a token fits a verb: refuses one of another role, and hints at what will not work without a role.
pub(super) fn check_role(claims: &TokenClaims, verb: &str, wanted: Role) -> Result<(), Failure> {
    if let Some(bearer) = claims.conflict(wanted) {
        return Err(Failure::Usage(format!(
            "the token is {bearer}, and `{verb}` needs one of role {wanted}: toolbridge token --role {wanted} makes it"
        )));
    }
    if let Some(lacking) = claims.without_role(wanted) {
        hint(&lacking);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use toolbridge::AccessKey;

    fn of(token: &str) -> Option<TokenClaims> {
        TokenClaims::from_unverified(token)
    }

    fn fits(token: toolbridge::Token, wanted: Role) -> Result<(), String> {
        match check_role(&of(&token.sign().unwrap()).unwrap(), "verb", wanted) {
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
