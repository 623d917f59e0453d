//! One session with JSON texts, as wrappers carry them.

use toolbridge::vocabulary::{
    Create, Input, Malformed, Query,
    form::{Fields, repaired},
};

use crate::session::Session;

/// A [`Session`] with JSON texts. Bytes travel beside them.
#[derive(Debug)]
pub struct JsonSession {
    session: Session,
    /// Those of the last output.
    bytes: Option<Vec<u8>>,
}

impl JsonSession {
    /// Creates a session from the input `create`.
    ///
    /// # Errors
    /// The input is malformed.
    pub fn create(input: &str) -> Result<Self, Malformed> {
        let (at, create) = Create::read(input)?;
        Ok(Self { session: Session::create(at, create)?, bytes: None })
    }

    /// Handles an input or a query, whose field `bytes` may be beside it. Returns its reply, if it has one.
    ///
    /// # Errors
    /// The input is malformed. It had no effect.
    pub fn handle(&mut self, input: &str, bytes: Option<Vec<u8>>) -> Result<Option<String>, Malformed> {
        let input = repaired(input);
        let mut fields = Fields::of_input(&input, bytes)?;
        let name: String = fields.take("type", None);
        fields.check()?;
        let reply = if let Some(query) = Query::read_fields(&name, &mut fields) {
            fields.finish()?;
            Some(self.session.query(query)?)
        } else {
            let at = fields.take("atMs", None);
            let Some(input) = Input::read_fields(&name, &mut fields) else {
                fields.check()?;
                return Err(Malformed::new(format_args!("{name:?} is no input")).of("type"));
            };
            fields.finish()?;
            self.session.handle(at, input)?
        };
        Ok(reply.map(|reply| reply.to_json()))
    }

    /// Reports that a packet was sent: the next one can leave. Without JSON, as there is one for each packet.
    ///
    /// # Errors
    /// The time is malformed.
    pub fn sent(&mut self, at: f64, packet: u64) -> Result<(), Malformed> {
        self.session.sent(at, packet)
    }

    /// Reports that the function of a job begins. Returns false if the job has ended, and the function must not run.
    ///
    /// # Errors
    /// The time is malformed.
    pub fn start(&mut self, at: f64, job: u64) -> Result<bool, Malformed> {
        self.session.start(at, job)
    }

    /// Returns the next output without its field `bytes`, or `None` if there is none.
    pub fn next_output(&mut self) -> Option<String> {
        let (text, bytes) = self.session.next_output().map(|output| output.into_parts()).unzip();
        self.bytes = bytes.flatten();
        text
    }

    /// Takes the bytes of the last output, if it has any.
    pub fn take_bytes(&mut self) -> Option<Vec<u8>> {
        self.bytes.take()
    }

    /// Returns when the input `timeout` is due, in milliseconds since the driver's zero point.
    pub fn next_deadline(&self) -> Option<f64> {
        self.session.next_deadline()
    }
}
