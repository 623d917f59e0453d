//! Defines what makes a session: its role, its participant and its configuration.

use super::{
    describe::{Describe, Field, Table, Type},
    form::{Fields, Malformed, Read, Write, Writer, repaired},
    shared::{NumberSetting, Participant, Role, TimeSetting},
};

/// Everything that makes a session.
#[derive(Clone, Debug, PartialEq)]
pub struct Create {
    /// The role of the local participant.
    pub role: Role,
    /// The local participant in its current join.
    pub local: Participant,
    /// 32 random bytes, new for each process and session.
    pub seed: Vec<u8>,
    /// The configuration.
    pub config: Config,
}

names! {
    /// The policy for choosing among several participants.
    Choose {
        /// None is chosen.
        Nobody = "nobody",
        /// The first one.
        First = "first",
        /// The last one.
        Last = "last",
        /// The one that sent the latest frame.
        LastHeard = "last_heard",
        /// The output `select` asks.
        Ask = "ask",
    }
}

record! {
    /// A tool that only one participant may run.
    Pin {
        /// The tool.
        tool: String,
        /// The participant.
        owner: String,
    }
}

record! {
    /// The configuration of a session.
    Config {
        /// The room's name. Without it, any room.
        room: Option<String>,
        /// Client: the only assistant that is bound. Without it, the only eligible one.
        assistant: Option<String>,
        /// Assistant: clients that are admitted by name.
        admit: Vec<String> = Vec::new(),
        /// Assistant: whether participants without a role are admitted only by name or by the app's rule.
        admit_only_roles as "admitOnlyRoles": bool = false,
        /// Assistant: tools that only one participant may run.
        pins: Vec<Pin> = Vec::new(),
        /// The policy for choosing among several participants.
        choose: Choose = Choose::Nobody,
        /// Client: whether it answers prompts to a person. Each is an `execute` of a tool `bridge.*`.
        prompts: bool = false,
        /// Whether a person can be asked before a tool runs.
        consent_available as "consentAvailable": bool = false,
        /// The program and version that peers see.
        version: Option<String>,
        /// Whether packets of the lossy lane can be sent and received: true of LiveKit's SDKs.
        lossy: bool = false,
        /// Whether byte streams can be sent and received: true of LiveKit's SDKs.
        streams: bool = false,
        /// Whether small frames are sent lossy first.
        fast_lane as "fastLane": bool = true,
        /// Whether large frames are compressed for participants that can expand them, and compressed ones are read. Only a core
        /// that is built with `deflate` can.
        compress: bool = false,
        /// The largest packet, in bytes: a larger one is a stream. Without it, 15,000.
        max_packet as "maxPacket": Option<u64>,
        /// Whether the room queues packets by itself: then each is an output at once, and `backlog` tells what waits there.
        has_queue as "hasQueue": bool = false,
        /// By how many bytes the transport makes each packet larger: 44 with end-to-end encryption.
        overhead: u64 = 0,
        /// Times by their names.
        times: Vec<TimeSetting> = Vec::new(),
        /// Limits by their names.
        caps: Vec<NumberSetting> = Vec::new(),
    }
}

impl Describe for Create {
    fn describe(table: &mut Table) -> Type {
        table.record("Create", &["doc = \"Everything that makes a session: the first input.\""], |table| {
            let input = |table: &mut Table, key, doc: &str| Field::of::<String>(table, key, &[doc], None);
            vec![
                input(table, "type", "doc = \"`create`.\""),
                Field::of::<f64>(
                    table,
                    "atMs",
                    &["doc = \"The time since the driver's zero point, in milliseconds.\""],
                    None,
                ),
                Field::of::<Role>(table, "role", &["doc = \"The role of the local participant.\""], None),
                Field::of::<Participant>(
                    table,
                    "local",
                    &["doc = \"The local participant in its current join.\""],
                    None,
                ),
                input(
                    table,
                    "seed",
                    "doc = \"32 random bytes as hexadecimal digits, new for each process and session.\"",
                ),
                Field::of::<Option<Config>>(table, "config", &["doc = \"The configuration.\""], None),
            ]
        })
    }
}

impl Create {
    /// Reads the input `create`, and its time.
    pub fn read(text: &str) -> Result<(f64, Self), Malformed> {
        let text = repaired(text);
        let mut fields = Fields::of_input(&text, None)?;
        let name: String = fields.take("type", None);
        fields.check()?;
        if name != "create" {
            return Err(Malformed::new("the first input is \"create\"").of("type"));
        }
        let at = fields.take("atMs", None);
        let seed: String = fields.take("seed", None);
        let role = fields.take("role", None);
        let local = fields.take("local", None);
        fields.check()?;
        let seed = unhex(&seed)
            .ok_or_else(|| Malformed::new("is not an even number of hexadecimal digits").of("seed"))?;
        let config = fields.take("config", Some(Config::read("{}")?));
        fields.finish()?;
        Ok((at, Self { role, local, seed, config }))
    }

    /// Writes the input `create` of this time.
    pub fn to_json(&self, at: f64) -> String {
        let mut out = Writer::default();
        out.open();
        out.named("type", "create");
        at.write_field("atMs", &mut out);
        self.role.write_field("role", &mut out);
        self.local.write_field("local", &mut out);
        let seed: String = self.seed.iter().map(|byte| format!("{byte:02x}")).collect();
        out.named("seed", &seed);
        self.config.write_field("config", &mut out);
        out.close();
        out.finish()
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16).map(|digit| digit as u8);
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| Some(digit(pair.first()?)? << 4 | digit(pair.get(1)?)?)).collect()
}
