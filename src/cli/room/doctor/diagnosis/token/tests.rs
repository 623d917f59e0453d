use super::*;
use crate::cli::room::doctor::step::State;
use toolbridge::livekit::AccessKey;

/// Returns the claims of a client's token after a change.
fn claims(change: impl FnOnce(&mut Claims)) -> Claims {
    let key = AccessKey::new("devkey", "a secret of at least 32 characters");
    let mut claims = Claims::from_unverified(&key.client("kitchen", "phone").sign().unwrap()).unwrap();
    (claims.nbf, claims.exp) = (1000, 1600);
    change(&mut claims);
    claims
}

#[track_caller]
fn says(report: &StepReport, state: State, wrong: &str, advice: &str) {
    let (said, advised) = (report.wrong.as_deref().unwrap_or(""), report.advice.as_deref().unwrap_or(""));
    assert_eq!(report.state, state, "{report:?}");
    assert!(said.contains(wrong), "{said:?} without {wrong:?}");
    assert!(advised.contains(advice), "{advised:?} without {advice:?}");
}

fn judged(change: impl FnOnce(&mut Claims), now: i64) -> StepReport {
    given(Some(&claims(change)), &Signature::Right, now)
}

#[test]
fn valid_token_is_described() {
    let report = judged(|_| {}, 1000);
    assert_eq!(
        report,
        StepReport::ok("for phone in the room kitchen, role client, signed with the API key devkey")
    );
    assert_eq!(given(Some(&claims(|_| {})), &Signature::NotChecked, 1000).state, State::Ok);
    let agent = judged(|it| (it.attributes, it.kind) = (Default::default(), "agent".into()), 1000);
    assert_eq!(
        agent,
        StepReport::ok("for phone in the room kitchen, an agent, signed with the API key devkey")
    );
}

#[test]
fn agent_with_the_role_of_another_is_warned_of() {
    for role in ["client", "observer"] {
        let token = |it: &mut Claims| {
            it.kind = "agent".into();
            it.attributes.insert(ROLE_ATTRIBUTE.into(), role.into());
        };
        let wrong = format!("can only be an assistant: its role {role} does not count");
        says(&judged(token, 1000), State::Warning, &wrong, "remove `kind`");
    }
    let assistant = |it: &mut Claims| {
        it.kind = "agent".into();
        it.attributes.insert(ROLE_ATTRIBUTE.into(), "assistant".into());
    };
    assert_eq!(judged(assistant, 1000).state, State::Ok);
}

#[test]
fn each_token_problem_has_its_advice() {
    says(&given(None, &Signature::NotChecked, 0), State::Failed, "not a token", "Bearer");
    for (signature, wrong, advice) in [
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
        let certain = matches!(signature, Signature::Algorithm(_));
        says(&judged, if certain { State::Failed } else { State::Warning }, wrong, advice);
        assert_eq!(given(Some(&claims(|_| {})), &signature, 9000).state, State::Failed);
    }
    let (ok, failed, warned) = (State::Ok, State::Failed, State::Warning);
    says(&judged(|_| {}, 1661), failed, "expired 61 seconds ago", "new token");
    says(&judged(|_| {}, 1650), warned, "expires in less than 30 seconds", "new token");
    says(&judged(|_| {}, 500), failed, "becomes valid only in 8 minutes", "clock");
    assert_eq!(judged(|_| {}, 941).state, ok, "60 s are tolerated");
    says(&judged(|it| it.video.room_join = false, 1000), failed, "`roomJoin`", "grant");
    says(&judged(|it| it.sub.clear(), 1000), failed, "has no identity", "identity");
    says(&judged(|it| it.video.room.clear(), 1000), failed, "names no room", "video.room");
    says(&judged(|it| it.attributes.clear(), 1000), warned, "no role", ROLE_ATTRIBUTE);
    let ordinary = |it: &mut Claims| it.attributes.clear();
    says(
        &judged(ordinary, 1000),
        warned,
        "only if no other participant in the room is without a role",
        ROLE_ATTRIBUTE,
    );
    let changeable = |it: &mut Claims| {
        it.attributes.clear();
        it.video.can_update_own_metadata = Some(true);
    };
    says(
        &judged(changeable, 1000),
        warned,
        "only if they are configured with its identity",
        "remove that grant",
    );
    let odd = |it: &mut Claims| drop(it.attributes.insert(ROLE_ATTRIBUTE.into(), "boss".into()));
    says(&judged(odd, 1000), warned, "\"boss\", which is not a role", "observer");
    says(
        &judged(|it| it.video.can_update_own_metadata = Some(true), 1000),
        warned,
        "ignore the token's role",
        "grant",
    );
    assert_eq!(judged(|it| it.exp = usize::MAX, 1000).state, ok, "the largest expiry");
}
