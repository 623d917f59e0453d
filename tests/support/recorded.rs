//! The sessions in `fixtures/recordings`: their content, and the checks that they and any new ones must pass.

use std::path::Path;

use toolbridge::{
    recording::{RecordedOutcome, Recording, calls, check},
    replay::Replay,
};

/// A session recorded over a real server: its file name, and its calls as tool and outcome. Where both ends enforce
/// the same timeout either may be first, so that two outcomes are possible.
pub(crate) struct Session {
    pub(crate) name: &'static str,
    pub(crate) calls: &'static [(&'static str, &'static str)],
}

/// All sessions.
pub(crate) const SESSIONS: &[Session] = &[
    Session { name: "success", calls: &[("get_battery", "ok"), ("export_album", "ok")] },
    Session { name: "success-phone", calls: &[("get_battery", "ok"), ("export_album", "ok")] },
    Session {
        name: "tool-error",
        calls: &[("find_contact", "no_such_contact"), ("read_diary", "execution_error")],
    },
    Session { name: "unknown-tool", calls: &[("open_garage", "unknown_tool")] },
    Session { name: "invalid-parameters", calls: &[("set_lamp", "invalid_parameters")] },
    Session { name: "permission-denied", calls: &[("erase_album", "permission_denied")] },
    Session {
        name: "busy",
        calls: &[("get_battery", "ok"), ("get_battery", "busy"), ("get_battery", "busy")],
    },
    Session { name: "result-too-large", calls: &[("take_photo", "result_too_large")] },
    Session { name: "cancel", calls: &[("hang", "cancelled"), ("get_battery", "ok")] },
    Session { name: "timeout", calls: &[("hang", "timeout|cancelled"), ("get_battery", "ok")] },
    Session {
        name: "plain-peer",
        calls: &[("get_battery", "ok"), ("fail", "out_of_range"), ("hang", "timeout")],
    },
    Session {
        name: "called-by-rpc",
        calls: &[
            ("double", "ok"),
            ("echo", "ok"),
            ("echo", "ok"),
            ("fail", "out_of_range"),
            ("fly", "unknown_tool"),
        ],
    },
    Session { name: "server-executed", calls: &[("get_battery", "ok"), ("search_web", "ok")] },
    Session { name: "claimed", calls: &[("search_web", "ok")] },
    Session { name: "lost-peer", calls: &[("get_battery", "ok"), ("nap", "lost")] },
    Session { name: "rejoin", calls: &[("get_battery", "ok"), ("wait", "ok"), ("get_battery", "ok")] },
    Session { name: "rejoin-phone", calls: &[("get_battery", "ok"), ("wait", "ok"), ("get_battery", "ok")] },
];

/// Returns what is wrong with a recording of this session, one item per line.
pub(crate) fn wrong(file: &Path, session: &Session) -> Vec<String> {
    let entries = || Recording::open(file).unwrap().entries();
    let mut wrong = Vec::new();
    let found: Vec<_> =
        calls(entries()).calls.iter().map(|call| (call.tool.clone(), word(&call.outcome))).collect();
    let is_as_it_should_be = found.len() == session.calls.len()
        && found.iter().zip(session.calls).all(|((tool, outcome), (wanted, outcomes))| {
            tool == wanted && outcomes.split('|').any(|wanted| wanted == outcome)
        });
    if !is_as_it_should_be {
        wrong.push(format!("calls: {found:?}"));
    }
    wrong.extend(check(entries()).findings.iter().map(|it| format!("check: {it:?}")));
    let report = Replay::dry(entries()).unwrap();
    if !report.is_same() || report.compared == 0 {
        wrong.push(format!("replay: {report}"));
    }
    wrong
}

/// An outcome as the verbs print it.
pub(crate) fn word(outcome: &RecordedOutcome) -> String {
    match outcome {
        RecordedOutcome::Ok => "ok".to_owned(),
        RecordedOutcome::Open => "open".to_owned(),
        RecordedOutcome::Stopped => "stopped".to_owned(),
        RecordedOutcome::Failed { code, .. } => code.to_string(),
        other => format!("{other:?}"),
    }
}
