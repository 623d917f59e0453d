//! What a seed draws for a session: its options, limits and tools.

use std::time::Duration;

use serde_json::json;
use toolbridge::{
    BargeIn, Caps, Config, Consent, Identity, Times, Tool, ToolOptions, session::SelectionPolicy,
    tools::Visibility,
};

use crate::random::Random;

/// The names of tools: of sessions, of the app, reserved ones, and one that nobody offers.
pub(crate) const NAMES: [&str; 12] = [
    "plain",
    "again",
    "once",
    "each",
    "late",
    "finish",
    "both",
    "app",
    "bridge.choose",
    "bridge.echo",
    "bridge.form",
    "nobody",
];

/// Draws the configuration of a session.
pub(crate) fn config(random: &mut Random, is_client: bool) -> Config {
    let mut caps = Caps::default();
    caps.frames.max_packet = random.pick(&[700, 1_500, 14_000]);
    caps.frames.held_frames = random.pick(&[2, 12]);
    caps.frames.held_bytes = random.pick(&[3_000, 64_000]);
    caps.frames.retransmit_frames = random.pick(&[1, 2, 64]);
    caps.frames.streams_per_peer = random.pick(&[1, 4]);
    caps.frames.stream_bytes = random.pick(&[6_000, 1 << 20]);
    caps.frames.max_frame = random.pick(&[8_000, 1 << 20]);
    caps.frames.max_frame_of_others = random.pick(&[2_500, 256 << 10]);
    caps.calls.open_per_peer = random.pick(&[1, 3, 8]);
    caps.calls.open_calls = random.pick(&[4, 16]);
    caps.calls.open_bytes = random.pick(&[1_500, 1 << 20]);
    caps.calls.equal_calls = random.pick(&[2, 20, 1_000]);
    caps.calls.late_results = random.pick(&[0, 1, 8]);
    caps.calls.call_log = random.pick(&[3, 100]);
    caps.requests.calls_per_second = random.pick(&[2, 50]);
    caps.requests.table_entries = random.pick(&[2, 6, 100]);
    caps.requests.table_bytes = random.pick(&[2_000, 1 << 20]);
    caps.requests.remembered_peers = random.pick(&[1, 16]);
    caps.requests.running_jobs = random.pick(&[1, 3, 32]);
    caps.requests.waiting_jobs = random.pick(&[0, 2, 32]);
    caps.requests.progress_per_second = random.pick(&[1, 10]);
    caps.requests.message_bytes = random.pick(&[8, 1_000]);
    caps.requests.open_questions = random.pick(&[1, 4]);
    caps.requests.open_prompts = random.pick(&[1, 4]);
    caps.tools.count = random.pick(&[4, 64]);
    let mut times = Times::default();
    times.grace = Duration::from_secs(random.pick(&[1, 5]));
    times.memory = Duration::from_secs(random.pick(&[10, 60]));
    times.owner_wait = Duration::from_millis(random.pick(&[0, 700, 3_000]));
    times.call = Duration::from_secs(random.pick(&[2, 30]));
    times.longest_call = Duration::from_secs(random.pick(&[20, 120]));
    times.stream_idle = Duration::from_secs(random.pick(&[1, 10]));
    let mut config = Config::default().caps(caps).times(times).version("1");
    if random.percent(92) {
        config = config.room("room");
    }
    config = config.lossy(random.percent(85)).streams(random.percent(70));
    config = config.compress(random.percent(50)).expand(random.percent(70));
    config = config.consent_available(random.percent(70)).prompts(random.percent(60)).choose(policy(random));
    if random.percent(30) {
        config = config.overhead(random.pick(&[30, 300]));
    }
    if random.percent(15) {
        config = config.admit_only_roles();
    }
    if is_client {
        if random.percent(30) {
            config = config.assistant(random.pick(&["brain", "backup"]));
        }
        if random.percent(60) {
            config = config.answer_rpc();
        }
        if random.percent(50) {
            config = config.rpc_caller(random.pick(&["web", "brain"]));
        }
        if random.percent(20) {
            config = config.rpc_json();
        }
    } else {
        for who in ["phone", "tv", "plain"] {
            if random.percent(25) {
                config = config.admit(who);
            }
        }
        if random.percent(20) {
            config = config.pin("plain".parse().unwrap(), random.pick(&["phone", "tv"]));
        }
        if random.percent(60) {
            let app = Tool::new("app".parse().unwrap(), "of the app");
            config = config.rpc_tool("web", app).rpc_probe(random.percent(70));
        }
    }
    config
}

fn policy(random: &mut Random) -> SelectionPolicy {
    match random.below(8) {
        0 => SelectionPolicy::First,
        1 => SelectionPolicy::Last,
        2 => SelectionPolicy::LastHeard,
        3 => SelectionPolicy::by(|_, all| all.last().map(|it| it.identity.clone())),
        4 => SelectionPolicy::by(|tool, _| tool.map(|_| Identity::from("tv"))),
        _ => SelectionPolicy::Nobody,
    }
}

/// Draws the tools that a session offers.
pub(crate) fn tools(random: &mut Random, is_client: bool) -> Vec<Tool> {
    let options = ToolOptions::default;
    let mut all = vec![
        ("plain", options()),
        ("again", options().idempotent()),
        ("once", options().consent(Consent::OncePerSession)),
        ("each", ToolOptions::destructive()),
        ("late", options().barge_in(BargeIn::Report).timeout(Duration::from_secs(8))),
        ("finish", options().barge_in(BargeIn::Finish).cancel_grace(Duration::from_millis(500))),
    ];
    let level = random.pick(&[Visibility::Full, Visibility::Name, Visibility::Nothing]);
    let both = options().barge_in(BargeIn::Report).disclose(level);
    all.push(("both", if is_client { both } else { both.prefer_client() }));
    if is_client {
        all.push(("bridge.choose", options()));
    }
    let description = random.pick(&["a tool", "another description"]);
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
    let keeps = random.pick(&[100, 100, 60, 20]);
    all.retain(|_| random.percent(keeps));
    let tool = |(name, options): (&str, ToolOptions)| {
        let name = name.parse().ok()?;
        let tool = Tool::new(name, description).options(options);
        Some(if random.percent(30) { tool.schema(schema.clone()) } else { tool })
    };
    all.into_iter().filter_map(tool).collect()
}
