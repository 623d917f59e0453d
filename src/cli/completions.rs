//! `toolbridge completions`: prints the script that lets a shell complete verbs and options.

use std::io::{self, Write as _};

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use super::Failure;

#[derive(Debug, Args)]
#[command(after_help = "\
bash: toolbridge completions bash > ~/.local/share/bash-completion/completions/toolbridge
zsh:  toolbridge completions zsh > a folder of $fpath, as _toolbridge
fish: toolbridge completions fish > ~/.config/fish/completions/toolbridge.fish")]
pub(super) struct Arguments {
    /// The shell that reads the script
    #[arg(value_enum)]
    shell: Shell,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    // `generate` panics when it cannot write, and a closed pipe is no error here.
    let mut script = Vec::new();
    let mut command = super::Arguments::command();
    let name = command.get_name().to_owned();
    clap_complete::generate(arguments.shell, &mut command, name, &mut script);
    Ok(io::stdout().write_all(&script)?)
}
