use super::*;
use crate::cli::doctor::step::State;
use toolbridge::AccessKey;

/// A client's token, changed.
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
fn a_good_token_says_whose_it_is() {
    let report = judged(|_| {}, 1000);
    assert_eq!(report, StepReport::ok("for phone in the room kitchen, role client, from the key devkey"));
    assert_eq!(given(Some(&claims(|_| {})), &Signature::NotChecked, 1000).state, State::Ok);
    let agent = judged(|it| (it.attributes, it.kind) = (Default::default(), "agent".into()), 1000);
    assert_eq!(agent, StepReport::ok("for phone in the room kitchen, an agent, from the key devkey"));
}

#[test]
fn each_fault_of_a_token_has_its_advice() {
    says(&given(None, &Signature::NotChecked, 0), State::Failed, "no token", "Bearer");
    for (signature, wrong, advice) in [
        (Signature::Wrong, "not signed with the API secret", "same secret"),
        (
            Signature::OtherKey { local_key: "APIx".into() },
            "from the key devkey, and the key given here is APIx",
            "different keys",
        ),
        (Signature::Algorithm("none".into()), "signed by none", "HS256"),
    ] {
        let judged = given(Some(&claims(|_| {})), &signature, 1000);
        // Whether that matters only the server knows, but what it surely refuses goes first.
        let certain = matches!(signature, Signature::Algorithm(_));
        says(&judged, if certain { State::Failed } else { State::Warning }, wrong, advice);
        assert_eq!(given(Some(&claims(|_| {})), &signature, 9000).state, State::Failed);
    }
    let (ok, failed, warned) = (State::Ok, State::Failed, State::Warning);
    says(&judged(|_| {}, 1661), failed, "over for 61 seconds", "new one");
    says(&judged(|_| {}, 1650), warned, "all but over", "fresh");
    says(&judged(|_| {}, 500), failed, "valid only in 8 minutes", "clock");
    assert_eq!(judged(|_| {}, 941).state, ok, "a minute is borne");
    says(&judged(|it| it.video.room_join = false, 1000), failed, "`roomJoin`", "grant");
    says(&judged(|it| it.sub.clear(), 1000), failed, "names nobody", "identity");
    says(&judged(|it| it.video.room.clear(), 1000), failed, "names no room", "video.room");
    says(&judged(|it| it.attributes.clear(), 1000), warned, "no role", ROLE_ATTRIBUTE);
    let ordinary = |it: &mut Claims| it.attributes.clear();
    says(
        &judged(ordinary, 1000),
        warned,
        "only if nobody else in the room is without a role",
        ROLE_ATTRIBUTE,
    );
    let changeable = |it: &mut Claims| {
        it.attributes.clear();
        it.video.can_update_own_metadata = Some(true);
    };
    says(&judged(changeable, 1000), warned, "only if they name its identity", "take that grant out");
    let odd = |it: &mut Claims| drop(it.attributes.insert(ROLE_ATTRIBUTE.into(), "boss".into()));
    says(&judged(odd, 1000), warned, "\"boss\", which is no role", "observer");
    says(
        &judged(|it| it.video.can_update_own_metadata = Some(true), 1000),
        warned,
        "nobody believes it",
        "grant",
    );
    assert_eq!(judged(|it| it.exp = usize::MAX, 1000).state, ok, "an end beyond all time");
}
