//! `tachikoma service print`: a unit by which the system's own supervisor keeps ours running.

use std::path::Path;
use std::process::ExitCode;

use crate::args::ServiceKind;
use crate::commands::launch::working_dir;
use crate::failure::Failure;
use crate::out;
use crate::place::Place;

/// Prints the unit for this directory.
pub fn print(place: &Place, kind: ServiceKind) -> Result<ExitCode, Failure> {
    let settings = place.layers()?.load()?.settings;
    let dir = working_dir(place, &settings.working_dir)?;
    let program = std::env::current_exe()
        .map_err(|error| Failure::new(format!("our own program cannot be found: {error}")))?;
    let path = place.search_path().unwrap_or_default();
    let path = path.to_string_lossy();
    let text = match kind {
        ServiceKind::Systemd => systemd(&program, &dir, &path),
        ServiceKind::Launchd => launchd(&program, &dir, &path),
    };
    out::line(text.trim_end());
    Ok(ExitCode::SUCCESS)
}

fn systemd(program: &Path, dir: &Path, path: &str) -> String {
    let quoted = |text: &str| {
        let text = text.replace('\\', "\\\\").replace('"', "\\\"");
        text.replace('%', "%%")
    };
    let program = quoted(&program.to_string_lossy());
    let dir = quoted(&dir.to_string_lossy());
    let path = quoted(path);
    format!(
        "\
# tachikoma service print systemd > ~/.config/systemd/user/tachikoma-opencode.service
# systemctl --user daemon-reload && systemctl --user enable --now tachikoma-opencode
# A password goes into a file of your own: systemctl --user edit tachikoma-opencode, EnvironmentFile=...
[Unit]
Description=OpenCode server for {dir}, kept running by tachikoma
# For tachikoma itself; for the server it has limits and delays of its own.
StartLimitIntervalSec=5min
StartLimitBurst=10

[Service]
Type=notify
ExecStart=\"{program}\" opencode up
ExecReload=/bin/kill -HUP $MAINPID
WorkingDirectory={dir}
Environment=\"PATH={path}\"
Environment=TACHIKOMA_OPENCODE__ENABLED=true
Restart=on-failure
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

fn launchd(program: &Path, dir: &Path, path: &str) -> String {
    let escaped = |text: &str| {
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        text.replace('>', "&gt;")
    };
    let program = escaped(&program.to_string_lossy());
    let dir = escaped(&dir.to_string_lossy());
    let path = escaped(path);
    format!(
        r#"<?xml version="1.0" encoding="UTF-8"?>
<!-- tachikoma service print launchd > ~/Library/LaunchAgents/dev.tachikoma.opencode.plist
     launchctl load -w ~/Library/LaunchAgents/dev.tachikoma.opencode.plist -->
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<plist version="1.0">
<dict>
  <key>Label</key>
  <string>dev.tachikoma.opencode</string>
  <key>ProgramArguments</key>
  <array>
    <string>{program}</string>
    <string>opencode</string>
    <string>up</string>
  </array>
  <key>WorkingDirectory</key>
  <string>{dir}</string>
  <key>EnvironmentVariables</key>
  <dict>
    <key>PATH</key>
    <string>{path}</string>
    <key>TACHIKOMA_OPENCODE__ENABLED</key>
    <string>true</string>
  </dict>
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
