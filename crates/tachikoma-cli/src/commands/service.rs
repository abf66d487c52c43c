//! `tachikoma service print`: prints a systemd or launchd unit for the supervisor.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use crate::args::ServiceKind;
use crate::commands::launch::working_dir;
use crate::failure::Failure;
use crate::out;
use crate::sanitize::sanitize;
use crate::workspace::Workspace;

/// Maximum length of the part of a unit's name that is taken from the directory's name.
const LETTERS_MAX: usize = 24;

/// Prints the unit for this directory.
pub fn print(workspace: &Workspace, kind: ServiceKind) -> Result<ExitCode, Failure> {
    let settings = workspace.layers()?.load()?.settings;
    let dir = working_dir(workspace, &settings.working_dir)?;
    let program = std::env::current_exe().map_err(|error| {
        Failure::new(format!("the path of this program cannot be found: {error}"))
    })?;
    let path = workspace.search_path().unwrap_or_default();
    let mut variables = vec![
        ("PATH", path.to_string_lossy().into_owned()),
        ("TACHIKOMA_OPENCODE__ENABLED", "true".to_owned()),
    ];
    if let Some(file) = workspace.config_file() {
        let file = workspace.directory.join(file);
        variables.push(("TACHIKOMA_CONFIG", file.to_string_lossy().into_owned()));
    }
    // Line breaks are rejected: the rest of the text would become another setting of the unit.
    let texts = [&program.to_string_lossy(), &dir.to_string_lossy()].map(ToString::to_string);
    let texts = texts
        .into_iter()
        .chain(variables.iter().map(|(_, value)| value.clone()));
    if let Some(text) = texts
        .into_iter()
        .find(|text| text.contains(char::is_control))
    {
        return Err(Failure::usage(format!(
            "no unit can be written for {}: it contains a control character",
            sanitize(&text)
        ))
        .hint("rename the directory, or remove the entry from PATH"));
    }
    let unit = Unit {
        program: &program.to_string_lossy(),
        dir: &dir.to_string_lossy(),
        name: name(&dir),
        variables,
    };
    let text = match kind {
        ServiceKind::Systemd => unit.systemd(),
        ServiceKind::Launchd => unit.launchd(),
    };
    out::line(text.trim_end());
    Ok(ExitCode::SUCCESS)
}

/// Values that both kinds of units share.
struct Unit<'a> {
    program: &'a str,
    dir: &'a str,
    /// Name of the unit. It is unique for this directory, because each directory has its own server.
    name: String,
    variables: Vec<(&'static str, String)>,
}

/// Returns the name of the unit for a directory: the last part of the path, and a hash of the whole path.
fn name(dir: &Path) -> String {
    let last = dir.file_name().unwrap_or_default().to_string_lossy();
    let letters = last.chars().take(LETTERS_MAX);
    let last: String = letters
        .map(|letter| match letter {
            'a'..='z' | 'A'..='Z' | '0'..='9' => letter,
            _ => '-',
        })
        .collect();
    // The hash is FNV-1a, implemented here because the name must be the same in every version.
    let bytes = dir.as_os_str().as_encoded_bytes().iter();
    let hash = bytes.fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    });
    format!("{last}-{hash:08x}")
}

impl Unit<'_> {
    fn systemd(&self) -> String {
        let quoted = |text: &str| {
            let text = text.replace('\\', "\\\\").replace('"', "\\\"");
            text.replace('%', "%%")
        };
        let name = format!("tachikoma-opencode-{}", self.name);
        let program = quoted(self.program);
        let dir = quoted(self.dir);
        let mut environment = String::new();
        for (variable, value) in &self.variables {
            let _ = writeln!(environment, "Environment=\"{variable}={}\"", quoted(value));
        }
        format!(
            "\
# tachikoma service print systemd > ~/.config/systemd/user/{name}.service
# systemctl --user daemon-reload && systemctl --user enable --now {name}
# A password goes into a file of your own: systemctl --user edit {name}, EnvironmentFile=...
[Unit]
Description=OpenCode server for {dir}, kept running by tachikoma
# For tachikoma itself; for the server it has limits and delays of its own.
StartLimitIntervalSec=5min
StartLimitBurst=10

[Service]
Type=notify
ExecStart=\"{program}\" opencode up --service
ExecReload=\"{program}\" opencode reload
WorkingDirectory={dir}
{environment}Restart=on-failure
RestartSec=1
SuccessExitStatus=130 143
KillMode=mixed
TimeoutStartSec=120
TimeoutStopSec=30
WatchdogSec=60

[Install]
WantedBy=default.target
"
        )
    }

    fn launchd(&self) -> String {
        let escaped = |text: &str| {
            let text = text.replace('&', "&amp;").replace('<', "&lt;");
            text.replace('>', "&gt;")
        };
        let label = format!("dev.tachikoma.opencode.{}", self.name);
        let program = escaped(self.program);
        let dir = escaped(self.dir);
        let mut environment = String::new();
        for (variable, value) in &self.variables {
            let value = escaped(value);
            let _ = writeln!(
                environment,
                "    <key>{variable}</key>\n    <string>{value}</string>"
            );
        }
        format!(
            r#"<?xml version="1.0" encoding="UTF-8"?>
<!-- tachikoma service print launchd > ~/Library/LaunchAgents/{label}.plist
     launchctl load -w ~/Library/LaunchAgents/{label}.plist -->
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<plist version="1.0">
<dict>
  <key>Label</key>
  <string>{label}</string>
  <key>ProgramArguments</key>
  <array>
    <string>{program}</string>
    <string>opencode</string>
    <string>up</string>
    <string>--service</string>
  </array>
  <key>WorkingDirectory</key>
  <string>{dir}</string>
  <key>EnvironmentVariables</key>
  <dict>
{environment}  </dict>
  <key>RunAtLoad</key>
  <true/>
  <key>KeepAlive</key>
  <dict>
    <key>SuccessfulExit</key>
    <false/>
  </dict>
  <key>ExitTimeOut</key>
  <integer>30</integer>
</dict>
</plist>
"#
        )
    }
}
