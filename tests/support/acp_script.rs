//! An ACP agent that is a shell script. A test writes what it does with a prompt.

use std::{fs, path::PathBuf};

use toolbridge::{
    Consent,
    adapter::acp::{self, AcpCommand},
};

use crate::program_tools;

/// What every script defines. A test may define it again, before the loop.
const DEFINITIONS: &str = r#"
answer() { printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$1" "$2"; }
fail() { printf '{"jsonrpc":"2.0","id":%s,"error":{"code":%s,"message":"%s"}}\n' "$1" "$2" "$3"; }
update() { printf '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s1","update":%s}}\n' "$1"; }
say() { update '{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"'"$1"'"}}'; }
call() { update '{"sessionUpdate":"tool_call",'"$1"'}'; }
change() { update '{"sessionUpdate":"tool_call_update",'"$1"'}'; }
ask() { printf '{"jsonrpc":"2.0","id":"ask","method":"%s","params":%s}\n' "$1" "$2"; IFS= read -r reply; }
keep() { printf '%s\n' "$2" >> "$0.$1"; }
ended() { answer "$1" '{"stopReason":"end_turn"}'; }
initialize() { answer "$1" '{"protocolVersion":1,"agentCapabilities":{}}'; }
new_session() { answer "$1" '{"sessionId":"s1"}'; }
cancelled() { keep cancelled "$1"; }
"#;

const LOOP: &str = r#"
while IFS= read -r line; do
  id=${line#*'"id":'}; id=${id%%,*}; id=${id%%\}*}
  case "$line" in
    *'"method":"initialize"'*) keep initialize "$line"; initialize "$id" ;;
    *'"method":"session/new"'*) keep session "$line"; new_session "$id" ;;
    *'"method":"session/cancel"'*) cancelled "$line" ;;
    *'"method":"session/prompt"'*) prompt "$id" "$line" ;;
  esac
done
"#;

/// A script in a folder of its own, which is removed with this value.
pub(crate) struct AgentScript(PathBuf);

impl AgentScript {
    pub(crate) fn new(test: &str) -> Self {
        let _ = fs::remove_dir_all(program_tools::folder(test)); // of an earlier process with the same id
        Self(program_tools::folder(test))
    }

    /// Writes an agent, and returns how it is started. `prompt` is the body of the function that answers a prompt: `$1` is
    /// its id and `$2` the message. `more` stands before the loop, and may define the functions again.
    pub(crate) fn agent(&self, prompt: &str, more: &str) -> AcpCommand {
        fs::write(self.path(), format!("{DEFINITIONS}\n{more}\nprompt() {{\n:\n{prompt}\n}}\n{LOOP}"))
            .unwrap();
        acp::stdio(["sh", self.path().to_str().unwrap()]).name(self.name()).consent(Consent::Never)
    }

    /// The name of the agent, which no other test has: kept permissions belong to it.
    pub(crate) fn name(&self) -> String {
        self.0.file_name().unwrap().to_str().unwrap().replace('.', "_")
    }

    /// The command that starts the script.
    pub(crate) fn command(&self) -> String {
        format!("sh {}", self.path().display())
    }

    fn path(&self) -> PathBuf {
        self.0.join("agent.sh")
    }

    /// What the script has kept under this name.
    pub(crate) fn kept(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(format!("agent.sh.{name}"))).unwrap_or_default()
    }
}

impl Drop for AgentScript {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
