//! `toolbridge redact`: a recording without what tools were asked and answered.

use std::path::PathBuf;

use clap::Args;

use super::{Failure, file};
use crate::recording::{Redact, redact};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The recording
    input: PathBuf,

    /// Where what is left goes, indexed and compressed
    output: PathBuf,

    /// A tool whose parameters and results stay, but for values whose keys say that they are secret; may be repeated
    #[arg(long, value_name = "NAME")]
    keep: Vec<String>,

    /// Replace a file that is there
    #[arg(long)]
    force: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let rule = arguments.keep.iter().fold(Redact::everything(), |rule, name| rule.keep(name.as_str()));
    let left = redact(&arguments.input, &arguments.output, rule, arguments.force)
        .map_err(|error| file::refused(&arguments.input, &error))?;
    file::written(&left)
}
