//! `toolbridge redact`: a recording without what tools were asked and answered.

use std::{collections::BTreeSet, path::PathBuf};

use clap::Args;

use super::{Failure, file};
use toolbridge::recording::{Redact, redact};

/// How many tools of the recording are named to somebody who named one that it lacks.
const MAX_NAMED: usize = 20;

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
    let (mut unknown, mut tools): (BTreeSet<&str>, _) =
        (arguments.keep.iter().map(String::as_str).collect(), BTreeSet::new());
    if !unknown.is_empty() {
        file::each(&arguments.input, |_, _, entry| {
            for tool in entry.tool_names() {
                unknown.remove(tool.as_str());
                if tools.len() < MAX_NAMED && !tools.contains(&tool) {
                    tools.insert(tool);
                }
            }
            Ok(())
        })?;
    }
    if let Some(unknown) = unknown.first() {
        let tools: Vec<_> = tools.into_iter().collect();
        return Err(Failure::Usage(format!(
            "--keep {unknown:?}: the recording has no tool of that name; it has {}",
            if tools.is_empty() { "none".to_owned() } else { tools.join(", ") }
        )));
    }
    let rule = arguments.keep.iter().fold(Redact::everything(), |rule, name| rule.keep(name.as_str()));
    let left = redact(&arguments.input, &arguments.output, rule, arguments.force)
        .map_err(|error| file::refused(&arguments.input, &error))?;
    file::written(&left)
}
