//! Handles SIGINT (Ctrl-C), SIGTERM and SIGHUP: the first signal starts an orderly stop, the second stops at once.

use std::{
    sync::{LazyLock, Once},
    time::Duration,
};

use tokio::{runtime::Handle, sync::watch, time};

use crate::cli::terminal::failure::Failure;

/// The time that interrupted joins and participants have to leave the server.
const GOODBYE: Duration = Duration::from_secs(1);

/// How often to check whether they have left.
const LOOK: Duration = Duration::from_millis(10);

/// The number of signals received. The counter keeps a Ctrl-C that arrives while nothing waits for it.
static ASKED: LazyLock<watch::Sender<u32>> = LazyLock::new(|| watch::Sender::new(0));

/// Completes after the first signal. From the first poll on, signals no longer end the process by themselves; subcommands
/// that never poll this keep the default behavior.
pub(in crate::cli) async fn interrupted() {
    static LISTENING: Once = Once::new();
    LISTENING.call_once(listen);
    asked(1).await;
}

/// Runs `work` until a signal arrives, which drops it.
pub(in crate::cli) async fn unless_interrupted<T>(
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    tokio::select! {
        biased;
        () = interrupted() => Err(Failure::Interrupted),
        done = work => done,
    }
}

/// Runs a subcommand; a second signal ends it at once.
pub(in crate::cli) async fn until_second_signal(
    verb: impl Future<Output = Result<(), Failure>>,
) -> Result<(), Failure> {
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

/// Waits for the tasks in which dropped joins and participants leave the server.
async fn goodbyes() {
    // One task is the signal listener.
    let all_said = async {
        while Handle::current().metrics().num_alive_tasks() > 1 {
            time::sleep(LOOK).await;
        }
    };
    // Tasks that take longer are abandoned.
    let _ = time::timeout(GOODBYE, all_said).await;
}

async fn asked(times: u32) {
    // The sender is never dropped.
    let _ = ASKED.subscribe().wait_for(|asked| *asked >= times).await;
}

/// Installs the signal handlers and counts signals in a task.
#[expect(clippy::disallowed_methods, reason = "the task runs as long as the process")]
fn listen() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        // If no handler can be installed, a signal ends the process.
        let (Ok(mut int), Ok(mut term)) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
        else {
            return;
        };
        // Closing the terminal must stop the tool programs. A process started with `nohup` keeps running.
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

/// Returns whether the process was started with SIGHUP ignored. This can be read on Linux only; elsewhere SIGHUP counts.
#[cfg(unix)]
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    // SIGHUP is signal 1, the lowest bit.
    mask & 1 != 0
}

fn count() {
    ASKED.send_modify(|asked| *asked = asked.saturating_add(1));
}
