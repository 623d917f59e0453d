//! An MCP server that is a shell script. A test writes what it does with a call.

use std::{
    fs,
    path::{Path, PathBuf},
};

use toolbridge::adapter::mcp::{self, McpServer};

use crate::program_tools;

/// What every script defines. A test may define it again, before the loop.
const DEFINITIONS: &str = r#"
version=2025-11-25
answer() { printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$1" "$2"; }
fail() { printf '{"jsonrpc":"2.0","id":%s,"error":{"code":%s,"message":"%s"}}\n' "$1" "$2" "$3"; }
text() { answer "$1" '{"content":[{"type":"text","text":"'"$2"'"}]}'; }
tools='{"tools":[{"name":"t","inputSchema":{"type":"object"}}]}'
list() { answer "$1" "$tools"; }
discover() { fail "$1" -32601 'Method not found'; }
"#;

/// Makes a script a server of version 2026-07-28.
pub(crate) const MODERN: &str = r#"
discover() { answer "$1" '{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"fake","version":"1"},"ttlMs":0,"cacheScope":"private"}'; }
tools='{"resultType":"complete","tools":[{"name":"t","inputSchema":{"type":"object"}}],"ttlMs":0,"cacheScope":"private"}'
"#;

const LOOP: &str = r#"
while IFS= read -r line; do
  id=${line#*'"id":'}; id=${id%%,*}; id=${id%%\}*}
  case "$line" in
    *'"server/discover"'*) discover "$id" ;;
    *'"initialize"'*) answer "$id" '{"protocolVersion":"'$version'","capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"fake","version":"1"}}' ;;
    *'"notifications/initialized"'*) ;;
    *'"tools/list"'*) list "$id" ;;
    *'"notifications/cancelled"'*) printf '%s\n' "$line" >> "$0.cancelled" ;;
    *) call "$id" "$line" ;;
  esac
done
"#;

/// A script in a folder of its own, which is removed with this value.
pub(crate) struct Script(PathBuf);

impl Script {
    pub(crate) fn new(test: &str) -> Self {
        let _ = fs::remove_dir_all(program_tools::folder(test)); // of an earlier process with the same id
        Self(program_tools::folder(test))
    }

    /// Writes a server, and returns how it is started.
    pub(crate) fn server(&self, call: &str, more: &str) -> McpServer {
        self.serve(call, more);
        self.started()
    }

    /// Writes a server. `call` is the body of the function that answers a call: `$1` is its id and `$2` the message.
    /// `more` stands before the loop, and may define the functions and variables again.
    pub(crate) fn serve(&self, call: &str, more: &str) {
        self.write(&format!("{DEFINITIONS}\n{more}\ncall() {{\n{call}\n}}\n{LOOP}"));
    }

    pub(crate) fn write(&self, text: &str) {
        fs::write(self.path(), text).unwrap();
    }

    /// Returns how the script is started.
    pub(crate) fn started(&self) -> McpServer {
        mcp::stdio(["sh", self.path().to_str().unwrap()]).name("fake")
    }

    /// The command that starts the script.
    pub(crate) fn command(&self) -> String {
        format!("sh {}", self.path().display())
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.0.join("lamps.sh")
    }

    /// The folder of the script.
    pub(crate) fn folder(&self) -> &Path {
        &self.0
    }

    /// A file that the script names `$0.NAME`.
    pub(crate) fn note(&self, name: &str) -> PathBuf {
        self.0.join(format!("lamps.sh.{name}"))
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
