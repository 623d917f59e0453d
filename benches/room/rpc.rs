//! Makes the same calls by LiveKit's RPC between an SDK and itself, and between that SDK and toolbridge, in both directions.

use std::{env, process::Command, time::Instant};

use toolbridge::livekit::AccessKey;

use super::{
    compare::{Pair, Peer, RECORDS, WARM_UP, at, sdk},
    short::scaled,
};

/// A phase: its name, the number of calls of one round, the bytes of each, how many are in flight, and the different letters.
const PHASES: [(&str, usize, usize, usize, usize); 4] = [
    ("220 B, one at a time", 1_000, 40, 1, 64),
    ("10 KB of records, one at a time", 300, 10_000, 1, RECORDS),
    ("64 KB of records, one at a time", 100, 64_000, 1, RECORDS),
    ("220 B, 32 in flight", 3_200, 40, 32, 64),
];

/// The rounds of each phase, unless `TOOLBRIDGE_ROUNDS` says another number: the pairs take turns, and medians are printed.
const ROUNDS: usize = 5;

/// The SDKs and their programs. That of livekit-agents is the version for Python that this framework pins.
const SDKS: [(&str, &str); 3] =
    [("Node", "rpc_bench.mjs"), ("Python", "rpc_bench.py"), ("livekit-agents", "agents/../rpc_bench.py")];

/// The columns of a round.
const COLUMNS: [&str; 5] = ["p50 ms", "p99 ms", "caller's CPU ms", "callee's CPU ms", "calls/s"];

/// Prints the figures of each SDK.
pub(super) fn run(key: &AccessKey) {
    let rounds =
        env::var("TOOLBRIDGE_ROUNDS").map_or_else(|_| scaled(ROUNDS), |it| it.parse().expect("a number"));
    let wanted = env::var("TOOLBRIDGE_SDK").ok();
    for (name, program) in SDKS.into_iter().filter(|(name, _)| wanted.as_ref().is_none_or(|it| it == name)) {
        let Some(sdk) = sdk(program) else { continue };
        let ours = |role: &str| {
            let mut command = Command::new(env::current_exe().expect("this program"));
            command.env("TOOLBRIDGE_BENCH_ROLE", role);
            command
        };
        let pairs = [
            (format!("{name} to {name}"), sdk("caller"), sdk("owner")),
            (format!("toolbridge to {name}"), ours("caller by RPC"), sdk("owner")),
            (format!("{name} to toolbridge"), sdk("caller"), ours("owner by RPC")),
        ];
        let mut pairs: Vec<_> = pairs
            .into_iter()
            .enumerate()
            .map(|(n, (pair, caller, owner))| {
                let room = format!("bench-rpc-{name}-{n}-{}", std::process::id());
                let [phone, assistant] = [key.client(&room, "phone"), key.assistant(&room, "assistant")]
                    .map(|token| token.sign().expect("a token"));
                let owner = Peer::start(owner, &phone);
                let mut started = Pair { owner, caller: Peer::start(caller, &assistant) };
                started.measure(scaled(WARM_UP), 40, 1, 64);
                (pair, started)
            })
            .collect();
        for (phase, count, bytes, in_flight, letters) in PHASES {
            let count = scaled(count).max(in_flight);
            println!("{phase}: medians of {rounds} rounds of {count} calls; {}", COLUMNS.join(", "));
            let mut rows = vec![Vec::new(); pairs.len()];
            for _ in 0..rounds {
                for ((_, pair), rows) in pairs.iter_mut().zip(&mut rows) {
                    let began = Instant::now();
                    let mut cost = pair.measure(count, bytes, in_flight, letters);
                    let rate = count as f64 / began.elapsed().as_secs_f64();
                    cost.ms.sort_unstable_by(f64::total_cmp);
                    rows.push([at(&cost.ms, 0.5), at(&cost.ms, 0.99), cost.cpu[0], cost.cpu[1], rate]);
                }
            }
            let first = medians(&rows[0]);
            for ((pair, _), rows) in pairs.iter().zip(&rows) {
                let row = medians(rows);
                let quotient = |(row, first): (&f64, f64)| format!("{row:.2} ({:.2} x)", row / first);
                let columns: Vec<_> = row.iter().zip(first).map(quotient).collect();
                println!("  {pair}: {}", columns.join(", "));
            }
        }
    }
}

fn medians(rows: &[[f64; 5]]) -> [f64; 5] {
    std::array::from_fn(|column| {
        let mut column: Vec<_> = rows.iter().map(|row| row[column]).collect();
        column.sort_unstable_by(f64::total_cmp);
        column[column.len() / 2]
    })
}
