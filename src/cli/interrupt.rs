//! Ctrl-C, TERM and HUP: the first is an order to stop and say goodbye, the second to stop at once.

use std::{
    sync::{LazyLock, Once},
    time::Duration,
};

use tokio::{runtime::Handle, sync::watch, time};

use super::Failure;

/// How long what was broken off has to say goodbye to the server.
const GOODBYE: Duration = Duration::from_secs(1);

/// How often it is looked at whether all have said it.
const LOOK: Duration = Duration::from_millis(10);

/// How often we were asked to stop. It is kept, so that a Ctrl-C while nobody listens is not lost.
static ASKED: LazyLock<watch::Sender<u32>> = LazyLock::new(|| watch::Sender::new(0));

/// Resolves once we were asked to stop. From its first poll on the signals no longer end the process by
/// themselves; a verb that never asks keeps that.
pub(super) async fn interrupted() {
    static LISTENING: Once = Once::new();
    LISTENING.call_once(listen);
    asked(1).await;
}

/// The work, unless we are asked to stop first: then it is dropped where it stands.
pub(super) async fn unless_interrupted<T>(
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    tokio::select! {
        biased;
        () = interrupted() => Err(Failure::Interrupted),
        done = work => done,
    }
}

/// A verb, with the last word on it: who asks twice need not wait.
pub(super) async fn obeyed(verb: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let orderly = async {
        let result = verb.await;
        if matches!(result, Err(Failure::Interrupted)) {
            goodbyes().await;
        }
        result
    };
    tokio::select! {
        result = orderly => result,
        () = asked(2) => Err(Failure::Interrupted),
    }
}

/// A join or a participant that was dropped says goodbye by itself, in tasks of its own.
async fn goodbyes() {
    // One task is the one that listens for signals.
    let all_said = async {
        while Handle::current().metrics().num_alive_tasks() > 1 {
            time::sleep(LOOK).await;
        }
    };
    // Who has not said it by then is not waited for.
    let _ = time::timeout(GOODBYE, all_said).await;
}

async fn asked(times: u32) {
    // The sender is never dropped.
    let _ = ASKED.subscribe().wait_for(|asked| *asked >= times).await;
}

/// Begins to listen, here and now, and counts in a task.
#[expect(clippy::disallowed_methods, reason = "it listens as long as the process lives")]
fn listen() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        // Without a handler a signal ends the process by itself.
        let (Ok(mut int), Ok(mut term)) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
        else {
            return;
        };
        // A terminal that is closed must not leave programs of ours behind. Who was started by `nohup` shall stay.
        let mut hup = if ignores_hangup() { None } else { signal(SignalKind::hangup()).ok() };
        tokio::spawn(async move {
            loop {
                let hung_up = async {
                    match &mut hup {
                        Some(hup) => hup.recv().await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    _ = int.recv() => {}
                    _ = term.recv() => {}
                    _ = hung_up => {}
                }
                count();
            }
        });
    }
    #[cfg(not(unix))]
    tokio::spawn(async {
        while tokio::signal::ctrl_c().await.is_ok() {
            count();
        }
    });
}

/// Whether whoever started us had hangups ignored. Only Linux says so; elsewhere a hangup counts.
#[cfg(unix)]
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    // HUP is signal 1, and so the lowest bit.
    mask & 1 != 0
}

fn count() {
    ASKED.send_modify(|asked| *asked = asked.saturating_add(1));
}
