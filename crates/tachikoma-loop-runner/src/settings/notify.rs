//! `[[notify]]`: who is told what, and how.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::lists::Moment;
use super::scalars::Secret;

/// Who is told what.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Notify {
    /// The moments that are told.
    #[serde(default = "notify_moments")]
    pub on: Vec<Moment>,
    /// The way the message takes.
    pub to: NotifyTarget,
    /// The address of the service; for mail `smtp://host:port` or `smtps://host`. Shown as `***`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<Secret>,
    /// The variable that has the address, instead of `url`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url_env: Option<String>,
    /// The command line given the message, for `to = "command"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// The variable that has the key a webhook is signed with, the token of Telegram's bot or of ntfy, or the password for mail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_env: Option<String>,
    /// The chat that a Telegram bot writes to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chat: Option<String>,
    /// The user that mail is sent as, where the server asks for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The sender of mail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The receivers of mail.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recipients: Vec<String>,
    /// Messages in an hour; the end of the loop, errors and questions are told all the same. 0 = no limit.
    #[serde(default = "max_per_hour")]
    pub max_per_hour: u32,
}

fn notify_moments() -> Vec<Moment> {
    vec![
        Moment::LoopEnd,
        Moment::Error,
        Moment::Question,
        Moment::LimitWait,
    ]
}

fn max_per_hour() -> u32 {
    30
}

/// The way a message takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum NotifyTarget {
    /// The desktop's notifications.
    Desktop,
    /// A command of the operator's.
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
    /// Returns the word for it in the configuration.
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
