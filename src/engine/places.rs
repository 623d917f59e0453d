//! Gives places to jobs: a limited number runs at once, the others wait.
//!
//! The session ends each job at its time limit, and what a function reports after its job has ended has no effect there. So a place
//! knows only how long it is taken.

use std::{collections::VecDeque, time::Duration};

use crate::{
    clock::{Instant, later},
    sorted::{SortedMap, SortedSet},
    tool::{ErrorCode, Job, JobKey, StopReason, ToolError},
};

/// The time before the end of a call's time limit at which it gives up waiting for its start: its caller must still learn that
/// nothing ran. A short limit is given up at three quarters.
const WAIT_MARGIN: Duration = Duration::from_millis(500);

/// An instruction of the places to the engine.
#[derive(Debug)]
pub(super) enum Effect {
    /// Run the function.
    Run(Job),
    /// The job ends with this error.
    Settle(JobKey, ToolError),
    /// Stop the function. It may clean up.
    Stop(JobKey, StopReason),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Waits for a place.
    Waiting,
    /// Has a place, and its function has not begun: its arguments are checked, or it waits for a thread.
    Starting,
    Running,
    /// Cleans up.
    Stopping,
}

#[derive(Debug)]
struct Place {
    stage: Stage,
    /// When its stage ends, unless the session or the function ends it.
    due: Option<Instant>,
    /// The call's time limit.
    limit: Duration,
    /// The time to clean up after a stop.
    grace: Duration,
}

/// The jobs that wait, run or clean up.
#[derive(Debug)]
pub(super) struct Places {
    most_running: usize,
    most_waiting: usize,
    running: usize,
    jobs: SortedMap<JobKey, Place>,
    waiting: VecDeque<Job>,
    due: SortedSet<(Instant, JobKey)>,
    effects: VecDeque<Effect>,
}

impl Places {
    pub(super) fn new(most_running: usize, most_waiting: usize) -> Self {
        Self {
            most_running,
            most_waiting,
            running: 0,
            jobs: SortedMap::new(),
            waiting: VecDeque::new(),
            due: SortedSet::new(),
            effects: VecDeque::new(),
        }
    }

    /// Returns the next effect, or `None` if there is none.
    pub(super) fn poll(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Gives a job a place, now or when others end. `grace` is its time to clean up after a stop.
    pub(super) fn execute(&mut self, job: Job, grace: Duration) {
        let (running, waiting) = (self.running, self.waiting.len());
        if running >= self.most_running && waiting >= self.most_waiting {
            let text = format!("{running} calls are running and {waiting} are waiting; nothing ran");
            return self.effects.push_back(Effect::Settle(job.key, ToolError::new(ErrorCode::BUSY, text)));
        }
        let (key, limit) = (job.key, job.limit);
        let due = job.deadline - WAIT_MARGIN.min(limit / 4);
        self.jobs.insert(key, Place { stage: Stage::Waiting, due: None, limit, grace });
        self.enter(key, Stage::Waiting, Some(due));
        self.waiting.push_back(job);
        self.fill();
    }

    /// The function begins. Returns false if its job has ended, and it must not run.
    pub(super) fn start(&mut self, key: JobKey) -> bool {
        let may_start = self.jobs.get(&key).is_some_and(|place| place.stage == Stage::Starting);
        if may_start {
            self.enter(key, Stage::Running, None);
        }
        may_start
    }

    /// The function has ended, or does not run: its place is free.
    pub(super) fn end(&mut self, key: JobKey) {
        if self.jobs.get(&key).is_some_and(|place| place.stage != Stage::Waiting) {
            self.remove(key);
            self.running -= 1;
            self.fill();
        }
    }

    /// The job has ended. Returns false if it has no place.
    pub(super) fn abort(&mut self, now: Instant, key: JobKey, reason: StopReason) -> bool {
        let Some(place) = self.jobs.get(&key) else { return false };
        let grace = place.grace;
        match place.stage {
            Stage::Waiting => {
                self.waiting.retain(|job| job.key != key);
                self.remove(key);
            }
            Stage::Starting | Stage::Running => {
                self.enter(key, Stage::Stopping, Some(later(now, grace)));
                self.effects.push_back(Effect::Stop(key, reason));
            }
            Stage::Stopping => {} // the first stop counts
        }
        true
    }

    /// The participant leaves: callers of functions that have not begun can know that nothing ran.
    pub(super) fn refuse_unstarted(&mut self, now: Instant) {
        let unstarted =
            self.jobs.iter().filter(|(_, place)| matches!(place.stage, Stage::Waiting | Stage::Starting));
        for key in unstarted.map(|(key, _)| *key).collect::<Vec<_>>() {
            self.refuse(now, key, "the participant is leaving; nothing ran".to_owned(), StopReason::Leaving);
        }
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        while let Some((_, key)) = self.due.first().copied().filter(|(at, _)| *at <= now)
            && let Some(place) = self.jobs.get(&key)
        {
            if place.stage == Stage::Stopping {
                self.end(key);
                continue;
            }
            let ms = place.limit.as_millis();
            let text = format!("the call had no place to run within its limit of {ms} ms; nothing ran");
            self.refuse(now, key, text, StopReason::Deadline);
        }
    }

    /// Ends a job that has not begun. Not as `timeout`, which leaves open whether the tool ran.
    fn refuse(&mut self, now: Instant, key: JobKey, text: String, reason: StopReason) {
        self.effects.push_back(Effect::Settle(key, ToolError::new(ErrorCode::BUSY, text)));
        self.abort(now, key, reason);
    }

    /// Gives the free places to those that wait, in the order in which they came.
    fn fill(&mut self) {
        while self.running < self.most_running
            && let Some(job) = self.waiting.pop_front()
        {
            if let Some(place) = self.jobs.get_mut(&job.key) {
                place.stage = Stage::Starting;
                self.running += 1;
                self.effects.push_back(Effect::Run(job));
            }
        }
    }

    fn enter(&mut self, key: JobKey, stage: Stage, due: Option<Instant>) {
        if let Some(place) = self.jobs.get_mut(&key) {
            place.stage = stage;
            if let Some(before) = std::mem::replace(&mut place.due, due) {
                self.due.remove(&(before, key));
            }
            if let Some(due) = due {
                self.due.insert((due, key));
            }
        }
    }

    fn remove(&mut self, key: JobKey) {
        if let Some(due) = self.jobs.remove(&key).and_then(|place| place.due) {
            self.due.remove(&(due, key));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::value::Value;

    const RUNNING: usize = 3;
    const WAITING: usize = 4;

    fn job(key: u64, now: Instant, limit: Duration) -> Job {
        Job {
            key: JobKey::from_number(key),
            call: "call".parse().unwrap(),
            caller: "caller".into(),
            tool: "tool".parse().unwrap(),
            arguments: Value::empty(),
            deadline: now + limit,
            limit,
            meta: Value::empty(),
        }
    }

    /// What is known of a job outside.
    #[derive(Debug, Default)]
    struct Known {
        ran: usize,
        settled: usize,
        stopped: usize,
        is_done: bool,
    }

    /// Takes the effects, and checks each against what is known.
    fn follow(places: &mut Places, known: &mut BTreeMap<JobKey, Known>) {
        while let Some(effect) = places.poll() {
            let it = match effect {
                Effect::Run(job) => {
                    let it = known.get_mut(&job.key).unwrap();
                    it.ran += 1;
                    it
                }
                Effect::Settle(key, _) => {
                    let it = known.get_mut(&key).unwrap();
                    it.settled += 1;
                    it
                }
                Effect::Stop(key, _) => {
                    let it = known.get_mut(&key).unwrap();
                    assert_eq!(it.ran, 1, "a function is stopped that does not run");
                    it.stopped += 1;
                    it
                }
            };
            assert!(it.ran <= 1 && it.settled <= 1 && it.stopped <= 1, "{it:?}");
        }
        assert!(places.running <= RUNNING && places.waiting.len() <= WAITING);
        assert!(places.running == RUNNING || places.waiting.is_empty(), "a place is free, and a job waits");
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test owns its clock")]
    fn each_job_runs_or_is_refused_once_and_each_place_is_free_again() {
        let (mut refused, mut stopped) = (0, 0);
        for seed in 0..200_u64 {
            let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
            let mut below = |most: u64| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state % most
            };
            let (mut places, mut now) = (Places::new(RUNNING, WAITING), Instant::now());
            let mut known = BTreeMap::<JobKey, Known>::new();
            for number in 0..300 {
                let key = JobKey::from_number(below(number + 1));
                match below(8) {
                    0..3 => {
                        known.insert(JobKey::from_number(number), Known::default());
                        let limit = Duration::from_millis(1 + below(3_000));
                        places.execute(job(number, now, limit), Duration::from_millis(below(200)));
                    }
                    3 => drop(places.start(key)),
                    4 if known.get(&key).is_some_and(|it| it.ran == 1 && !it.is_done) => {
                        known.get_mut(&key).unwrap().is_done = true;
                        places.end(key);
                    }
                    5 => drop(places.abort(now, key, StopReason::Caller)),
                    _ => {
                        now += Duration::from_millis(below(300));
                        places.handle_timeout(now);
                        assert!(places.poll_timeout().is_none_or(|due| due > now));
                    }
                }
                follow(&mut places, &mut known);
            }
            places.refuse_unstarted(now);
            follow(&mut places, &mut known);
            assert!(places.waiting.is_empty());
            for key in places.jobs.keys().copied().collect::<Vec<_>>() {
                places.end(key);
            }
            follow(&mut places, &mut known);
            assert!(places.running == 0 && places.jobs.is_empty() && places.due.is_empty());
            refused += known.values().map(|it| it.settled).sum::<usize>();
            stopped += known.values().map(|it| it.stopped).sum::<usize>();
        }
        assert!(refused > 1_000 && stopped > 1_000, "{refused} refused, {stopped} stopped");
    }
}
