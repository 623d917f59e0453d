//! Replays a recording's assistant: repeats recorded calls to live clients and compares their answers.

use std::{
    fmt,
    time::{Duration, Instant as StdInstant},
};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout, timeout_at},
};

use crate::{
    recording::Entry,
    replay::{
        LiveDifference, LiveError, LiveReport, NotAsked, Plan, Replay, Speed,
        outcome::{self, Compared},
        pace::{Pace, Schedule},
        plan::Allowed,
        recorded_calls::{ClientCall, Ending, RecordedCalls},
    },
    runtime::participant::{Assistant, Call},
    tool::{CallError, Offer},
    transport::Identity,
    value::Value,
};

/// How long the end of the room is awaited after a client was lost: a room that ends loses its clients, too, and the
/// assistant may learn that first.
const ROOM_END: Duration = Duration::from_secs(2);

/// How long to wait until clients offer the required tools: announcements take up to 3 s.
const OFFERS_WAIT: Duration = Duration::from_secs(5);

/// How long to wait for the recorded owners once all tools are offered.
const OWNERS_WAIT: Duration = Duration::from_secs(1);

/// The recorded calls to clients, to be repeated to live clients.
///
/// Only tools [allowed](Live::allow) by name are called; by default none. Calls get new ids and keep their recorded
/// order; a call that followed the end of another waits for it again. Each has its recorded parameters and limit, and
/// is stopped when it was stopped; its other `meta` is not sent. A tool that requires consent asks for it as usual.
///
/// ```no_run
/// use toolbridge::{Assistant, recording::Recording, replay::{Replay, Speed}};
///
/// # async fn again(url: &str, token: &str) -> anyhow::Result<()> {
/// let recorded = Recording::open("session.mcap")?.entries();
/// let live = Replay::live(recorded)?.allow("get_battery").speed(Speed::Max);
/// let assistant = Assistant::builder().join(url, token).await?;
/// let report = live.ask(&assistant, |step| println!("{step:?}")).await;
/// assert!(report.is_same(), "{report}");
/// # Ok(())
/// # }
/// ```
pub struct Live {
    recorded: RecordedCalls,
    allowed: Allowed,
    speed: Speed,
    to: Option<Identity>,
}

/// The progress of a live replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Step {
    /// Calls that were made.
    pub asked: usize,
    /// Calls that have an outcome.
    pub done: usize,
    /// Calls to be made in total.
    pub total: usize,
    /// Differences so far.
    pub differences: usize,
    /// The remaining time if answers take as long as recorded.
    pub left: Duration,
}

impl Replay {
    /// Reads the recorded calls to clients. This sends nothing.
    ///
    /// The recording may be the assistant's, a client's, or an observer's.
    ///
    /// # Errors
    /// Returns an error if the entries are too large or have no call to a client.
    pub fn live(entries: impl IntoIterator<Item = Entry>) -> Result<Live, LiveError> {
        let recorded = RecordedCalls::read(entries)?;
        Ok(Live { recorded, allowed: Allowed::default(), speed: Speed::default(), to: None })
    }
}

impl Live {
    /// Allows calls of this tool. Default: none.
    #[must_use]
    pub fn allow(mut self, tool: impl Into<String>) -> Self {
        self.allowed.tools.insert(tool.into());
        self
    }

    /// Allows destructive tools among the allowed ones. A tool is destructive according to the recording or its live
    /// owner. Default: no.
    #[must_use]
    pub fn destructive(mut self) -> Self {
        self.allowed.destructive = true;
        self
    }

    /// Sets the speed. Default: as recorded.
    #[must_use]
    pub fn speed(mut self, speed: Speed) -> Self {
        self.speed = speed;
        self
    }

    /// Calls this client. Default: the recorded one if it is present, else any client that offers the tool.
    #[must_use]
    pub fn to(mut self, client: impl Into<Identity>) -> Self {
        self.to = Some(client.into());
        self
    }

    /// Returns which calls would be made, and why others would not.
    pub fn plan(&self) -> Plan {
        self.allowed.plan(&self.recorded)
    }

    /// Makes the calls and compares the outcomes. Waits up to 5 s until the tools are offered. `tell` gets the progress
    /// after each start and end of a call.
    ///
    /// # Cancel safety
    /// Dropping the future cancels open calls and makes no further ones.
    pub async fn ask(&self, assistant: &Assistant, tell: impl FnMut(&Step)) -> LiveReport {
        let mut run = Run::new(self, assistant, tell);
        tokio::select! {
            // Calls that are open then settle as closed, which is no answer of theirs.
            biased;
            reason = assistant.closed() => run.report.broken_off = Some(reason),
            () = run.go() => {}
        }
        run.report.finish()
    }

    /// Chooses the client to call.
    fn owner(&self, call: &ClientCall, offers: &[Offer]) -> Option<Identity> {
        let then = || call.owner.clone().filter(|owner| offers_it(offers, &call.tool, Some(owner)));
        self.to.clone().or_else(then)
    }

    fn is_destructive_now(&self, call: &ClientCall, offers: &[Offer]) -> bool {
        let is_it = |offer: &&Offer| offer.tool.name().as_str() == call.tool;
        offers.iter().filter(is_it).any(|offer| offer.tool.tool_options().destructive)
    }
}

impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live")
            .field("calls", &self.recorded.calls.len())
            .field("allowed", &self.allowed)
            .field("speed", &self.speed)
            .field("to", &self.to)
            .finish_non_exhaustive()
    }
}

/// A replay in progress.
struct Run<'a, F> {
    live: &'a Live,
    assistant: &'a Assistant,
    tell: F,
    pace: Pace,
    open: JoinSet<(usize, Result<Value, CallError>)>,
    /// The remaining time at the last start of a call, and that start's time.
    left: (Duration, StdInstant),
    done: usize,
    total: usize,
    report: LiveReport,
}

impl<'a, F: FnMut(&Step)> Run<'a, F> {
    fn new(live: &'a Live, assistant: &'a Assistant, tell: F) -> Self {
        let pace = Pace::new(live.speed);
        let (open, report) = (JoinSet::new(), LiveReport::default());
        Self { live, assistant, tell, pace, open, left: (Duration::ZERO, now()), done: 0, total: 0, report }
    }

    async fn go(&mut self) {
        let live = self.live;
        let (mut asked, allowed) = (Vec::new(), &live.allowed);
        for (place, call) in live.recorded.calls.iter().enumerate() {
            match allowed.refuses(&live.recorded, call) {
                Some(why) => self.report.leave_out(&call.tool, why),
                None => asked.push((place, call)),
            }
        }
        self.total = asked.len();
        let schedule = Schedule::new(live.speed, asked.iter().map(|(_, call)| *call));
        self.left = (schedule.left(0), now());
        self.step();
        self.offered(&asked).await;
        for (at, (place, call)) in asked.iter().enumerate() {
            self.wait_for(call).await;
            self.left = (schedule.left(at), now());
            self.begin(*place, call);
            self.step();
        }
        while self.one_ends().await {}
    }

    /// Waits until all required tools are offered, and briefly for the recorded owners.
    async fn offered(&self, asked: &[(usize, &ClientCall)]) {
        let (mut events, mut until) = (self.assistant.events(), Instant::now() + OFFERS_WAIT);
        let mut found = false;
        loop {
            let offers = self.assistant.tools();
            let all = |of: &dyn Fn(&ClientCall) -> Option<Identity>| {
                asked.iter().all(|(_, call)| offers_it(&offers, &call.tool, of(call).as_ref()))
            };
            if all(&|call| self.live.to.clone().or_else(|| call.owner.clone())) {
                return;
            }
            if !found && all(&|_| self.live.to.clone()) {
                found = true;
                until = until.min(Instant::now() + OWNERS_WAIT);
            }
            if !matches!(timeout_at(until, events.recv()).await, Ok(Some(_))) {
                return;
            }
        }
    }

    /// Waits for the recorded pause and for calls that this one followed.
    async fn wait_for(&mut self, call: &ClientCall) {
        while self.pace.must_wait(call) && self.one_ends().await {}
        loop {
            let due = self.pace.due(call, now());
            tokio::select! {
                biased;
                Some(ended) = self.open.join_next() => {
                    self.answers().await;
                    self.settle(ended);
                }
                () = sleep_until(due.into()) => return,
            }
        }
    }

    /// Makes the call.
    fn begin(&mut self, place: usize, call: &ClientCall) {
        let offers = self.assistant.tools();
        let Some(parameters) = &call.parameters else { return };
        if !self.live.allowed.destructive && self.live.is_destructive_now(call, &offers) {
            self.total -= 1;
            return self.report.leave_out(&call.tool, NotAsked::Destructive);
        }
        let mut builder = self.assistant.call(&call.tool, parameters).timeout(call.limit);
        if let Some(owner) = self.live.owner(call, &offers) {
            builder = builder.to(owner);
        }
        let stop = matches!(call.ending(), Ending::Stopped).then(|| call.took()).flatten();
        let asked = builder.start();
        self.report.asked += 1;
        self.pace.began(place, call, now());
        let assistant = self.assistant.clone();
        self.open.spawn(async move {
            let result = ended(asked, stop).await;
            if matches!(result, Err(CallError::Lost { .. })) {
                let _ = timeout(ROOM_END, assistant.closed()).await; // then `ask` ends, and this was no answer
            }
            (place, result)
        });
    }

    /// Waits for one outcome; returns false if none is pending.
    async fn one_ends(&mut self) -> bool {
        let Some(ended) = self.open.join_next().await else { return false };
        self.answers().await;
        self.settle(ended);
        true
    }

    /// Never completes once the assistant has left: a call that ended since was not answered, and `ask` ends.
    async fn answers(&self) {
        if timeout(Duration::ZERO, self.assistant.closed()).await.is_ok() {
            std::future::pending().await
        }
    }

    fn settle(&mut self, ended: Result<(usize, Result<Value, CallError>), tokio::task::JoinError>) {
        // A task that only waits neither panics nor is stopped, but by the end of its runtime.
        let Ok((place, result)) = ended else { return };
        let Some(call) = self.live.recorded.calls.get(place) else { return };
        self.pace.ended(place);
        self.done += 1;
        let (compared, found) = outcome::fields(call, &result);
        match compared {
            Compared::Nothing => self.report.open += 1,
            Compared::Word => self.report.redacted += 1,
            Compared::Whole => {}
        }
        self.report.compared += usize::from(compared != Compared::Nothing);
        for (field, expected, got) in found {
            let (call, tool, entry) = (call.id.to_string(), call.tool.clone(), call.entry);
            self.report.differ(LiveDifference { entry, call, tool, field, expected, got });
        }
        self.step();
    }

    fn step(&mut self) {
        let differences = self.report.differences.len() + self.report.more_differences;
        let (asked, done, total, (left, since)) = (self.report.asked, self.done, self.total, self.left);
        let left = left.saturating_sub(now().saturating_duration_since(since));
        (self.tell)(&Step { asked, done, total, differences, left });
    }
}

/// Returns the call's outcome, and stops the call where it was stopped.
async fn ended(mut call: Call, stop: Option<Duration>) -> Result<Value, CallError> {
    if let Some(after) = stop {
        tokio::select! {
            biased;
            result = &mut call => return result,
            () = sleep(after) => call.cancel(),
        }
    }
    call.await
}

fn offers_it(offers: &[Offer], tool: &str, owner: Option<&Identity>) -> bool {
    offers
        .iter()
        .any(|offer| offer.tool.name().as_str() == tool && owner.is_none_or(|owner| *owner == offer.owner))
}

fn now() -> StdInstant {
    Instant::now().into_std()
}
