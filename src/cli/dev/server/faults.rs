//! What the server is to do wrong, for tests: faults that a real server cannot be made to show.

/// All of them. By default there is none.
#[derive(Debug, Default)]
pub(super) struct Faults {
    /// The ping interval and timeout that it tells, in seconds.
    pub(super) ping: Option<[i32; 2]>,
    /// It takes nobody back who resumes.
    pub(super) refuse_resume: bool,
    /// At a resume it has forgotten which packets it has.
    pub(super) forget_sequences: bool,
    /// So many reliable packets get lost in it, which their senders know as delivered.
    pub(super) drop_reliable: u32,
    /// It numbers each packet that it forwards with 1.
    pub(super) reset_sequences: bool,
    /// How many answers to its offers a participant is sent; later ones get lost.
    pub(super) max_answers: Option<u32>,
    /// It neither reads nor sends datagrams.
    pub(super) frozen: bool,
    /// It reads nothing more of what is said by signalling.
    pub(super) ignore_requests: bool,
}
