//! Why a call of a soak failed: which faults kept its client away for longer than the grace period.

use std::{collections::BTreeMap, time::Duration};

use toolbridge::Config;

use super::{PERIOD, WATCH};

/// A client needs at most this long after a fault before its calls work again. A fault that begins sooner prolongs
/// the previous absence.
const RECOVERY: Duration = Duration::from_secs(3);

/// A killed server is running again within this time.
const SERVER_STARTS: Duration = Duration::from_secs(2);

/// The most unexplained failures that are printed.
const PRINTED: usize = 20;

/// The time of a fault, in seconds of the system's clock.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    pub(super) name: String,
    pub(super) began: f64,
    /// `None` while it lasts.
    pub(super) ended: Option<f64>,
    /// Whether data packets are affected. A fault of the signaling alone causes no absence.
    pub(super) is_away: bool,
    /// Whether the process of all clients was killed: its calls are lost at once.
    pub(super) is_kill: bool,
}

impl Fault {
    pub(super) fn killed_server(now: f64) -> Self {
        let ended = Some(now + SERVER_STARTS.as_secs_f64());
        Self { name: "killed server".into(), began: now, ended, is_away: true, is_kill: false }
    }

    pub(super) fn killed_clients(now: f64) -> Self {
        Self { name: "killed clients".into(), began: now, ended: None, is_away: true, is_kill: true }
    }
}

/// The faults of a soak, in order, and the cause of each failed call.
#[derive(Debug, Default)]
pub(super) struct Causes {
    pub(super) faults: Vec<Fault>,
    /// By outcome and cause.
    counts: BTreeMap<(String, String), usize>,
    unexplained: Vec<String>,
}

impl Causes {
    /// Counts a failed call. A fault that is still going on is already in the list.
    pub(super) fn take(&mut self, outcome: &str, began: f64, ended: f64) {
        let cause = self.cause(outcome, began, ended);
        if cause.is_none() && self.unexplained.len() < PRINTED {
            let recent: Vec<_> = self.faults.iter().rev().take(3).map(|it| self.show(it, ended)).collect();
            let took = ended - began;
            self.unexplained
                .push(format!("{outcome} after {took:.1} s; faults before: {}", recent.join(", ")));
        }
        let cause = cause.unwrap_or_else(|| "no cause".to_owned());
        *self.counts.entry((outcome.to_owned(), cause)).or_default() += 1;
    }

    /// Returns how many failures have no cause.
    pub(super) fn unexplained(&self) -> usize {
        let without = self.counts.iter().filter(|((_, cause), _)| cause == "no cause");
        without.map(|(_, count)| count).sum()
    }

    pub(super) fn print(&self) {
        println!("outcome | because of | calls");
        for ((outcome, cause), count) in &self.counts {
            println!("{outcome} | {cause} | {count}");
        }
        for line in &self.unexplained {
            println!("no cause: {line}");
        }
    }

    /// Returns the absence that explains this outcome, named by its faults.
    fn cause(&self, outcome: &str, began: f64, ended: f64) -> Option<String> {
        if !matches!(outcome, "lost" | "unknown tool") {
            return None; // an absence explains nothing else
        }
        let grace = Config::default().times.grace.as_secs_f64();
        // The grace period counts from the last packet, which may be one period older than the fault.
        let shortest = grace - PERIOD.as_secs_f64();
        self.absences(ended).into_iter().rev().find_map(|absence| {
            let (first, last) = (absence.first()?, absence.last()?);
            let until = last.ended.unwrap_or(f64::INFINITY) + WATCH.as_secs_f64();
            let kill = absence
                .iter()
                .rev()
                .find(|it| it.is_kill && began < it.ended.unwrap_or(ended) + RECOVERY.as_secs_f64());
            let is_long =
                last.ended.unwrap_or(ended) - first.began >= shortest && ended >= first.began + shortest;
            // The fault was shorter than the grace period, which ended before the client was back.
            let is_slow = !is_long
                && ended >= first.began + shortest
                && ended <= last.ended.unwrap_or(ended) + RECOVERY.as_secs_f64();
            let explains = ended >= first.began && began <= until && (kill.is_some() || is_long || is_slow);
            explains.then(|| match kill {
                Some(kill) => kill.name.clone(),
                None => {
                    let mut names: Vec<_> = absence.iter().map(|it| it.name.as_str()).collect();
                    names.sort_unstable();
                    names.dedup();
                    let names = names.join(" + ");
                    if is_slow { format!("reconnect after {names}") } else { names }
                }
            })
        })
    }

    /// Returns the faults that began before this time, grouped where they follow each other without time to recover.
    fn absences(&self, before: f64) -> Vec<Vec<&Fault>> {
        let mut absences: Vec<Vec<&Fault>> = Vec::new();
        for fault in self.faults.iter().filter(|it| it.is_away && it.began <= before) {
            let goes_on = |absence: &&mut Vec<&Fault>| {
                let ended = absence.last().and_then(|last| last.ended);
                ended.is_none_or(|ended| fault.began <= ended + RECOVERY.as_secs_f64())
            };
            match absences.last_mut().filter(goes_on) {
                Some(absence) => absence.push(fault),
                None => absences.push(vec![fault]),
            }
        }
        absences
    }

    fn show(&self, fault: &Fault, now: f64) -> String {
        let length = fault.ended.unwrap_or(now) - fault.began;
        format!("{} for {length:.1} s, {:.1} s ago", fault.name, now - fault.began)
    }
}
