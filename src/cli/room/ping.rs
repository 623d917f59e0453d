//! `toolbridge ping`: measures the round-trip time of calls to a client, with the reserved tool `bridge.echo`.

use std::{
    io::{self, Write as _},
    time::Duration,
};

use clap::{Args, builder::NonEmptyStringValueParser};
use serde_json::json;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep_until},
};

use crate::cli::{
    room::{
        connect::{ASSISTANT_IDENTITY, RoomArguments},
        connection_state,
    },
    terminal::{
        clock,
        failure::Failure,
        interrupt::{interrupted, unless_interrupted},
        text,
    },
};
use toolbridge::{Assistant, CallError, Role, ToolError, ToolName, Value};

/// The approximate size of a request frame without the padding, in bytes.
const OVERHEAD: usize = 218;

/// The maximum request size, in bytes: a packet holds 15,000 bytes, and the frame contains the room's name, up to 256 bytes,
/// twice.
const LARGEST: i64 = 14_000;

/// The maximum number of concurrent calls that one client accepts.
const MOST_IN_FLIGHT: usize = 64;

#[derive(Debug, Args)]
#[command(mut_arg("identity", |it| it.help(ASSISTANT_IDENTITY)))]
pub(in crate::cli) struct Arguments {
    #[command(flatten)]
    room_arguments: RoomArguments,

    /// Client to call [default: the only client in the room]
    #[arg(long, value_name = "IDENTITY", value_parser = NonEmptyStringValueParser::new())]
    to: Option<String>,

    /// Number of calls
    #[arg(long, default_value_t = 100, value_name = "CALLS", value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,

    /// Approximate size of a request in bytes, up to 14000
    #[arg(long, default_value_t = 220, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=LARGEST))]
    size: u32,

    /// Time between two calls, such as 20ms; 0 sends the next call as soon as a result arrives
    #[arg(long, default_value = "1s", value_parser = clock::span, value_name = "TIME")]
    interval: Duration,

    /// Maximum number of concurrent calls, up to 64
    #[arg(long, default_value_t = 1, value_name = "CALLS", value_parser = clap::value_parser!(u16).range(1..=MOST_IN_FLIGHT as i64))]
    in_flight: u16,

    /// Time limit of each call, from 1ms to 10m
    #[arg(long, default_value = "10s", value_parser = clock::limit, value_name = "TIME")]
    timeout: Duration,

    /// Print one JSON object per line: each call, then the summary
    #[arg(long)]
    json: bool,
}

/// The outcome of one call.
struct PingResult {
    number: u32,
    took: Duration,
    result: Result<(), CallError>,
}

pub(in crate::cli) async fn run(arguments: Arguments) -> Result<(), Failure> {
    let target = arguments.room_arguments.target("ping", Role::Assistant)?;
    let mut builder = Assistant::builder().connect_options(target.options.clone()).drain(Duration::ZERO);
    if let Some(owner) = &arguments.to {
        builder = builder.client(owner.as_str());
    }
    let joining = async { builder.join(&target.url, &target.token).await.map_err(Failure::failed) };
    let assistant = unless_interrupted(joining).await?;
    let mut summary = Summary::default();
    let ended = tokio::select! {
        biased;
        () = interrupted() => if summary.answered() == 0 { Err(Failure::Interrupted) } else { Ok(()) },
        () = connection_state::print_changes(&assistant, None) => Ok(()), // never completes
        result = measure(&assistant, &arguments, &mut summary) => result,
    };
    assistant.close().await;
    ended?;
    summary.print(arguments.json)?;
    if summary.answered() == 0 { Err(Failure::failed("no call was answered")) } else { Ok(()) }
}

/// Runs the calls. An additional first call finds the client and is not measured: it may wait until LiveKit announces this
/// participant.
async fn measure(assistant: &Assistant, arguments: &Arguments, summary: &mut Summary) -> Result<(), Failure> {
    let payload =
        Value::from(json!({"data": "x".repeat((arguments.size as usize).saturating_sub(OVERHEAD))}));
    let first = ask(assistant, arguments, &payload, 0).await;
    first.result.map_err(|error| Failure::failed(ToolError::from(error)))?;
    let mut open = JoinSet::new();
    let mut next = Instant::now();
    let mut sent = 0;
    while sent < arguments.count || !open.is_empty() {
        let may_send = sent < arguments.count && open.len() < usize::from(arguments.in_flight);
        tokio::select! {
            biased;
            Some(answer) = open.join_next() => {
                let answer: PingResult = answer.map_err(Failure::failed)?;
                summary.add(&answer);
                answer.print(arguments)?;
            }
            () = sleep_until(next), if may_send => {
                sent += 1;
                summary.sent = sent;
                next += arguments.interval;
                open.spawn(ask(assistant, arguments, &payload, sent));
            }
        }
    }
    Ok(())
}

fn ask(
    assistant: &Assistant,
    arguments: &Arguments,
    payload: &Value,
    number: u32,
) -> impl Future<Output = PingResult> + Send + 'static {
    let mut call = assistant.call(ToolName::ECHO, payload).timeout(arguments.timeout);
    if let Some(owner) = &arguments.to {
        call = call.to(owner.as_str());
    }
    let began = Instant::now();
    async move {
        let result = call.await.map(drop);
        PingResult { number, took: began.elapsed(), result }
    }
}

impl PingResult {
    fn print(&self, arguments: &Arguments) -> io::Result<()> {
        let ms = millis(self.took);
        let number = self.number;
        let line = match (&self.result, arguments.json) {
            (Ok(()), true) => json!({"call": number, "tookMs": clock::ms(self.took)}).to_string(),
            (Err(error), true) => text::json(
                &json!({"call": number, "tookMs": clock::ms(self.took), "error": error.to_string()}),
            ),
            (Ok(()), false) => format!("call={number} time={ms:.3} ms"),
            (Err(error), false) => {
                format!("call={number} time={ms:.3} ms {}", text::plain(&error.to_string()))
            }
        };
        writeln!(io::stdout(), "{line}")
    }
}

/// The calls so far.
#[derive(Default)]
struct Summary {
    sent: u32,
    times: Vec<Duration>,
}

impl Summary {
    fn add(&mut self, answer: &PingResult) {
        if answer.result.is_ok() {
            self.times.push(answer.took);
        }
    }

    fn answered(&self) -> usize {
        self.times.len()
    }

    fn print(&mut self, as_json: bool) -> io::Result<()> {
        self.times.sort_unstable();
        let (sent, answered) = (self.sent, self.answered());
        let times = [0.5, 0.9, 0.99, 1.0].map(|share| quantile(&self.times, share));
        if as_json {
            let [p50, p90, p99, max] = times.map(|time| time.map(clock::ms));
            let line = json!({
                "sent": sent, "answered": answered, "p50Ms": p50, "p90Ms": p90, "p99Ms": p99, "maxMs": max
            });
            return writeln!(io::stdout(), "{line}");
        }
        let [p50, p90, p99, max] = times;
        let show = |time: Option<Duration>| {
            time.map_or_else(|| "-".to_owned(), |time| format!("{:.3}", millis(time)))
        };
        let (p50, p90, p99, max) = (show(p50), show(p90), show(p99), show(max));
        writeln!(
            io::stdout(),
            "{sent} sent, {answered} answered; p50/p90/p99/max = {p50}/{p90}/{p99}/{max} ms"
        )
    }
}

/// Returns the smallest time that is not exceeded by at least this share of the times.
fn quantile(sorted: &[Duration], share: f64) -> Option<Duration> {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantile_is_one_of_the_times() {
        let times: Vec<_> = (1..=100).map(Duration::from_millis).collect();
        let ms = |share| quantile(&times, share).unwrap().as_millis();
        assert_eq!((ms(0.5), ms(0.9), ms(0.99), ms(1.0)), (50, 90, 99, 100));
        assert_eq!(quantile(&times[..1], 0.5), Some(times[0]));
        assert_eq!(quantile(&[], 0.5), None);
    }
}
