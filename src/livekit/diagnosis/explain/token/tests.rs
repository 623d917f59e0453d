use super::*;
use crate::livekit::{
    AccessKey,
    diagnosis::{
        check::CheckStatus,
        explain::tests::{fails, warns},
    },
};

/// Returns the claims of a client's token after a change.
fn claims(change: impl FnOnce(&mut Claims)) -> Claims {
    let key = AccessKey::new("devkey", "a secret of at least 32 characters");
    let mut claims = Claims::from_unverified(&key.client("kitchen", "phone").sign().unwrap()).unwrap();
    (claims.nbf, claims.exp) = (1000, 1600);
    change(&mut claims);
    claims
}

fn judged(change: impl FnOnce(&mut Claims), now: i64) -> Finding {
    given(Some(&claims(change)), &Signature::Right, now)
}

#[test]
fn valid_token_is_described() {
    let finding = judged(|_| {}, 1000);
    assert_eq!(
        finding,
        Finding::ok("for phone in the room kitchen, role client, signed with the API key devkey")
    );
    assert_eq!(given(Some(&claims(|_| {})), &Signature::NotChecked, 1000).status, CheckStatus::Ok);
    let agent = judged(|it| (it.attributes, it.kind) = (Default::default(), "agent".into()), 1000);
    assert_eq!(agent, Finding::ok("for phone in the room kitchen, an agent, signed with the API key devkey"));
}

#[test]
fn role_of_an_agent_is_judged_as_that_of_any_other() {
    let of = |role: &'static str, may_change: bool| {
        move |it: &mut Claims| {
            it.kind = "agent".into();
            it.attributes.insert(ROLE_ATTRIBUTE.into(), role.into());
            it.video.can_update_own_metadata = Some(may_change);
        }
    };
    for role in ["client", "observer", "assistant"] {
        let finding = judged(of(role, false), 1000);
        let text = format!("for phone in the room kitchen, role {role}, signed with the API key devkey");
        assert_eq!(finding, Finding::ok(&*text));
    }
    warns(&judged(of("admin", false), 1000), "is not a role", "`client`, `assistant` or `observer`");
    warns(&judged(of("observer", true), 1000), "ignore the token's role", "remove that grant");
    assert_eq!(judged(of("assistant", true), 1000).status, CheckStatus::Ok, "its kind gives it the rights");
}

#[test]
fn each_token_problem_has_its_advice() {
    fails(&given(None, &Signature::NotChecked, 0), "not a token", "Bearer");
    for (signature, problem, advice) in [
        (Signature::Wrong, "not signed with the given API secret", "same secret"),
        (
            Signature::OtherKey { local_key: "APIx".into() },
            "signed with the API key devkey, but the given API key is APIx",
            "different keys",
        ),
        (Signature::Algorithm("none".into()), "signed with none", "HS256"),
    ] {
        let judged = given(Some(&claims(|_| {})), &signature, 1000);
        // Only the server knows whether this matters, so a certain refusal takes precedence.
        let expect = if matches!(signature, Signature::Algorithm(_)) { fails } else { warns };
        expect(&judged, problem, advice);
        assert_eq!(given(Some(&claims(|_| {})), &signature, 9000).status, CheckStatus::Failed);
    }
    fails(&judged(|_| {}, 1661), "expired 61 seconds ago", "new token");
    warns(&judged(|_| {}, 1650), "expires in less than 30 seconds", "new token");
    fails(&judged(|_| {}, 500), "becomes valid only in 8 minutes", "clock");
    assert_eq!(judged(|_| {}, 941).status, CheckStatus::Ok, "60 s are tolerated");
    fails(&judged(|it| it.video.room_join = false, 1000), "`roomJoin`", "grant");
    fails(&judged(|it| it.sub.clear(), 1000), "has no identity", "identity");
    fails(&judged(|it| it.video.room.clear(), 1000), "names no room", "video.room");
    warns(&judged(|it| it.attributes.clear(), 1000), "no role", ROLE_ATTRIBUTE);
    let ordinary = |it: &mut Claims| it.attributes.clear();
    warns(
        &judged(ordinary, 1000),
        "only if no other participant in the room is without a role",
        ROLE_ATTRIBUTE,
    );
    let changeable = |it: &mut Claims| {
        it.attributes.clear();
        it.video.can_update_own_metadata = Some(true);
    };
    warns(&judged(changeable, 1000), "only if they are configured with its identity", "remove that grant");
    let odd = |it: &mut Claims| drop(it.attributes.insert(ROLE_ATTRIBUTE.into(), "boss".into()));
    warns(&judged(odd, 1000), "\"boss\", which is not a role", "observer");
    warns(
        &judged(|it| it.video.can_update_own_metadata = Some(true), 1000),
        "ignore the token's role",
        "grant",
    );
    assert_eq!(judged(|it| it.exp = usize::MAX, 1000).status, CheckStatus::Ok, "the largest expiry");
}
