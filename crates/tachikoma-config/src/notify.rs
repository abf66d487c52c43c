//! `[[notify]]`: which events are sent as notifications, and how.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use tachikoma_core::HookPoint;

use super::lists::hook_point_schema;
use super::scalars::Secret;

/// Notifications: which events are sent, and how.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Notify {
    /// Events to send.
    #[serde(default = "notify_moments")]
    #[schemars(schema_with = "hook_points_schema")]
    pub on: Vec<HookPoint>,
    /// Kind of target.
    pub to: NotifyTarget,
    /// Address of the service; for mail `smtp://host:port` or `smtps://host`. Shown as `***`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<Secret>,
    /// Environment variable with the address, instead of `url`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url_env: Option<String>,
    /// Command line that gets the message on stdin, for `to = "command"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Environment variable with the secret: the signing key of a webhook, the token of a Telegram bot or of ntfy, or the mail password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_env: Option<String>,
    /// Chat to which the Telegram bot writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chat: Option<String>,
    /// User name for the mail server, if it requires one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Sender address of mail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Recipients of mail, such as `["me@example.org"]`. Required for `to = "email"`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recipients: Vec<String>,
    /// Maximum number of messages per hour. The end of the loop, errors and questions are always sent. 0 = no limit.
    #[serde(default = "max_per_hour")]
    pub max_per_hour: u32,
}

impl Notify {
    /// Returns the names of the variables that have its secrets.
    pub fn variables(&self) -> impl Iterator<Item = &String> {
        [&self.url_env, &self.secret_env].into_iter().flatten()
    }
}

fn hook_points_schema(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "array", "items": hook_point_schema(generator) })
}

fn notify_moments() -> Vec<HookPoint> {
    vec![
        HookPoint::LoopEnd,
        HookPoint::Error,
        HookPoint::Question,
        HookPoint::LimitWait,
    ]
}

fn max_per_hour() -> u32 {
    30
}

/// Kind of notification target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum NotifyTarget {
    /// Desktop notification.
    Desktop,
    /// A command.
    Command,
    /// An HTTP address.
    Webhook,
    /// Slack.
    Slack,
    /// Discord.
    Discord,
    /// Telegram.
    Telegram,
    /// ntfy.
    Ntfy,
    /// Mail.
    Email,
}

impl NotifyTarget {
    /// Returns whether a message can be sent to an address of this kind. It does not check that the address exists.
    #[must_use]
    pub fn accepts(self, url: &Secret) -> bool {
        let url = url.expose();
        let schemes: &[&str] = match self {
            Self::Desktop | Self::Command => return true,
            Self::Webhook | Self::Slack | Self::Discord | Self::Telegram | Self::Ntfy => {
                &["http://", "https://"]
            }
            Self::Email => &["smtp://", "smtps://"],
        };
        let mut rests = schemes.iter().filter_map(|scheme| url.strip_prefix(scheme));
        rests.any(|host| {
            let host = host.split(['/', '?', '#']).next().unwrap_or_default();
            !host.is_empty()
                && !url.contains(|char: char| char.is_whitespace() || char.is_control())
        })
    }

    /// Returns the name of the target in the configuration.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Desktop => "desktop",
            Self::Command => "command",
            Self::Webhook => "webhook",
            Self::Slack => "slack",
            Self::Discord => "discord",
            Self::Telegram => "telegram",
            Self::Ntfy => "ntfy",
            Self::Email => "email",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::Layers;

    /// Returns the problems of a configuration as text; empty if it is valid.
    fn wrong(text: &str) -> String {
        let mut layers = Layers::new();
        layers.text(Path::new("tachikoma.toml"), text);
        layers
            .load()
            .map_or_else(|error| error.to_string(), |_| String::new())
    }

    #[test]
    fn invalid_notification_and_hook_settings_are_rejected() {
        for (to, url) in [
            ("slack", "hooks.slack.com/x"),
            ("webhook", "https://"),
            ("webhook", "https:///x"),
            ("webhook", "ftp://hunter2"),
            ("ntfy", "https://a b"),
            ("email", "https://hunter2"),
        ] {
            let table = format!(
                "[[notify]]\nto = '{to}'\nurl = '{url}'\nfrom = 'a@b'\nrecipients = ['c@d']\n"
            );
            let said = wrong(&table);
            assert!(
                said.contains(&format!(
                    "`url` of notify 1 is not an address that `{to}` can use"
                )),
                "{said}"
            );
            assert!(!said.contains("hunter2"), "{said}");
        }
        let said = wrong("[[notify]]\nto = 'desktop'\non = []\n");
        assert!(said.contains("`on` of notify 1 is empty"), "{said}");
        let said = wrong("[[notify]]\nto = 'command'\ncommand = ' '\n");
        assert!(said.contains("`command` of notify 1 is empty"), "{said}");
        let said = wrong("[[hook]]\non = 'error'\ncommand = ''\n");
        assert!(said.contains("`command` of hook 1 is empty"), "{said}");
        let fine = "[[notify]]\nto = 'email'\nurl = 'smtps://host'\nfrom = 'a@b'\nrecipients = ['c@d']\n\
                    [[notify]]\nto = 'slack'\nurl = 'http://127.0.0.1:1/x'\n";
        assert_eq!(wrong(fine), "");
    }
}
