//! Checks that the role in a token matches the subcommand.

use crate::cli::terminal::failure::{Failure, hint};
use toolbridge::{
    Role,
    livekit::{Bearer, TokenClaims},
};

/// Rejects a token of another role, and warns about what limits its bearer in this one.
pub(in crate::cli) fn check_role(claims: &TokenClaims, verb: &str, wanted: Role) -> Result<(), Failure> {
    if let Some(bearer) = claims.conflict(wanted) {
        let why = match bearer {
            Bearer::Agent => ", which makes its bearer an assistant",
            _ => "",
        };
        return Err(Failure::Usage(format!(
            "the token is {bearer}{why}, but `{verb}` needs the role {wanted}; create one with `toolbridge token --role {wanted}`"
        )));
    }
    for warning in claims.warnings(wanted) {
        hint(&warning);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use toolbridge::livekit::AccessKey;

    fn of(token: &str) -> Option<TokenClaims> {
        TokenClaims::from_unverified(token)
    }

    fn fits(token: toolbridge::livekit::Token, wanted: Role) -> Result<(), String> {
        match check_role(&of(&token.sign().unwrap()).unwrap(), "verb", wanted) {
            Ok(()) => Ok(()),
            Err(Failure::Usage(text)) => Err(text),
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn token_of_another_role_is_a_usage_error() {
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
            // No role, or a role that the participant could have set itself.
            assert!(fits(key.participant("r", "i"), wanted).is_ok());
            let own = key.participant("r", "i").attribute("a", "b").can_update_own_metadata();
            assert!(fits(own, wanted).is_ok());
            assert_eq!(fits(key.participant("r", "i").agent(), wanted).is_ok(), wanted == Role::Assistant);
            // The role of an agent's token wins over its kind.
            assert_eq!(fits(key.client("r", "i").agent(), wanted).is_ok(), wanted == Role::Client);
            assert_eq!(fits(key.observer("r", "i").agent(), wanted).is_ok(), wanted == Role::Observer);
            if wanted != Role::Assistant {
                let text = fits(key.participant("r", "i").agent(), wanted).unwrap_err();
                assert!(text.contains("kind agent without a role, which makes its bearer"), "{text}");
            }
        }
        assert!(of("no token").is_none());
        assert!(of(&key.observer("r", "i").sign().unwrap()).unwrap().observes());
        let hidden = of(&key.observer("r", "i").hidden().sign().unwrap()).unwrap();
        assert!(hidden.is_hidden() && !hidden.observes(), "a hidden participant gets no copies");
    }
}
