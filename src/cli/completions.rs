//! `toolbridge completions`: prints a shell completion script.

use std::io::{self, Write as _};

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use super::Failure;

#[derive(Debug, Args)]
#[command(after_help = "\
bash: toolbridge completions bash > ~/.local/share/bash-completion/completions/toolbridge
zsh:  toolbridge completions zsh > _toolbridge  (in a directory of $fpath)
fish: toolbridge completions fish > ~/.config/fish/completions/toolbridge.fish")]
pub(super) struct Arguments {
    /// Shell to print the script for
    #[arg(value_enum)]
    shell: Shell,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    // `generate` panics when a write fails, but a closed pipe is not an error here.
    let mut script = Vec::new();
    let mut command = super::Arguments::command();
    let name = command.get_name().to_owned();
    clap_complete::generate(arguments.shell, &mut command, name, &mut script);
    Ok(io::stdout().write_all(&script)?)
}
