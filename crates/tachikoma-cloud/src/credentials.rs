//! Credentials of an object store: from the environment variables of its own tools, or from the files that these tools share.
//!
//! The S3 library only reads variables. This module reads `~/.aws/credentials` and `~/.aws/config`, if the keys are written in them.
//! Profiles that get their keys elsewhere (`sso_*`, `role_arn`, `credential_process`) are rejected with an error.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use crate::CloudError;
use crate::proxies::Proxies;

/// Maximum size of a credentials file. It has a few hundred bytes for each profile.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Settings that make a profile get its keys from another service. Such profiles are rejected.
const ELSEWHERE: [&str; 5] = [
    "role_arn",
    "source_profile",
    "credential_process",
    "sso_session",
    "sso_start_url",
];

/// Names of the access keys in files. As environment variables they are in upper case.
const ID: &str = "aws_access_key_id";
const SECRET: &str = "aws_secret_access_key";
const TOKEN: &str = "aws_session_token";

/// The environment variables and the home directory that network clients use: credentials of object stores, and proxies.
#[derive(Clone, Default)]
pub struct CloudEnvironment {
    /// Environment variables, by name. Variables for other purposes are ignored.
    pub variables: BTreeMap<String, String>,
    /// The user's home directory; `None` if it is unknown.
    pub home: Option<PathBuf>,
}

/// Keeps credentials out of debug output.
impl std::fmt::Debug for CloudEnvironment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CloudEnvironment")
    }
}

impl CloudEnvironment {
    /// Returns the proxies that the environment variables name.
    #[must_use]
    pub fn proxies(&self) -> Proxies {
        Proxies::from_variables(&self.variables)
    }

    fn variable(&self, name: &str) -> Option<&str> {
        let value = self.variables.get(name).map(String::as_str);
        value.filter(|value| !value.is_empty())
    }

    fn file(&self, variable: &str, name: &str) -> Option<PathBuf> {
        let named = self.variable(variable).map(PathBuf::from);
        named.or_else(|| Some(self.home.as_ref()?.join(".aws").join(name)))
    }

    /// Returns the settings of the S3 library: the variables, completed with values from the files.
    pub(crate) fn aws(&self) -> Result<BTreeMap<String, String>, CloudError> {
        let mut told: BTreeMap<String, String> = self
            .variables
            .iter()
            .filter(|(name, value)| name.starts_with("AWS_") && !value.is_empty())
            .map(|(name, value)| (name.to_ascii_lowercase(), value.clone()))
            .collect();
        let named = self.variable("AWS_PROFILE");
        let profile = named.unwrap_or("default");
        let config = self.file("AWS_CONFIG_FILE", "config");
        let section = match profile {
            "default" => "default".to_owned(),
            other => format!("profile {other}"),
        };
        let config = section_of(config.as_deref(), &section)?.unwrap_or_default();
        for (key, as_told) in [
            ("region", "aws_region"),
            ("endpoint_url", "aws_endpoint_url"),
        ] {
            if let Some(value) = config.get(key) {
                let is_told = told.contains_key(as_told)
                    || key == "region" && told.contains_key("aws_default_region");
                if !is_told {
                    told.insert(as_told.to_owned(), value.clone());
                }
            }
        }
        if has_credentials(&told) {
            return Ok(told);
        }
        let path = self.file("AWS_SHARED_CREDENTIALS_FILE", "credentials");
        let keys = section_of(path.as_deref(), profile)?;
        if keys.is_none() && config.is_empty() && named.is_some() {
            let what = format!("AWS_PROFILE is `{profile}`, and no such profile is in the files");
            return Err(CloudError::Credentials(what));
        }
        // All keys come from one source: a token is valid only with the keys that it was issued with.
        let mut sources = [keys.unwrap_or_default(), config];
        let found = sources
            .iter_mut()
            .find(|keys| keys.contains_key(ID) && keys.contains_key(SECRET));
        let Some((id, secret, token)) = found.and_then(|keys| {
            let (id, secret) = (keys.remove(ID)?, keys.remove(SECRET)?);
            Some((id, secret, keys.remove(TOKEN)))
        }) else {
            let has = |key: &&&str| sources.iter().any(|keys| keys.contains_key(**key));
            if let Some(key) = ELSEWHERE.iter().find(has) {
                let what = format!(
                    "the profile `{profile}` gets its keys by `{key}`, which is not supported; give them in AWS_ACCESS_KEY_ID, \
                     AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN"
                );
                return Err(CloudError::Credentials(what));
            }
            return Ok(told);
        };
        told.remove(TOKEN);
        told.insert(ID.to_owned(), id);
        told.insert(SECRET.to_owned(), secret);
        told.extend(token.map(|token| (TOKEN.to_owned(), token)));
        Ok(told)
    }
}

/// Returns whether the variables contain credentials in one of the ways that the S3 library supports.
fn has_credentials(told: &BTreeMap<String, String>) -> bool {
    [
        "aws_access_key_id",
        "aws_web_identity_token_file",
        "aws_container_credentials_relative_uri",
        "aws_container_credentials_full_uri",
        "aws_skip_signature",
    ]
    .iter()
    .any(|name| told.contains_key(*name))
}

/// Reads one section of a file; `None` if the file or the section does not exist.
fn section_of(
    path: Option<&Path>,
    section: &str,
) -> Result<Option<BTreeMap<String, String>>, CloudError> {
    let Some(path) = path else { return Ok(None) };
    let file = match File::open(path) {
        Ok(file) if file.metadata().is_ok_and(|there| there.is_file()) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Ok(_) => {
            let what = format!("{} is not a file", path.display());
            return Err(CloudError::Credentials(what));
        }
        Err(error) => return Err(CloudError::io("read", path)(error)),
    };
    let mut text = String::new();
    file.take(FILE_BYTES_MAX)
        .read_to_string(&mut text)
        .map_err(CloudError::io("read", path))?;
    let mut found: Option<BTreeMap<String, String>> = None;
    let mut inside = false;
    for line in text.lines() {
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = trimmed.strip_prefix('[') {
            inside = name.split(']').next().map(str::trim) == Some(section);
            if inside {
                found.get_or_insert_default();
            }
        } else if inside
            && !line.starts_with([' ', '\t'])
            && let Some((key, value)) = trimmed.split_once('=')
        {
            let (key, value) = (key.trim().to_ascii_lowercase(), value.trim().to_owned());
            found.get_or_insert_default().insert(key, value);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cloud_environment(home: &Path, variables: &[(&str, &str)]) -> CloudEnvironment {
        let variables = variables.iter();
        CloudEnvironment {
            variables: variables
                .map(|&(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
            home: Some(home.to_owned()),
        }
    }

    fn home() -> tempfile::TempDir {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join(".aws")).unwrap();
        let credentials = "# mine\n[default]\naws_access_key_id = ID\naws_secret_access_key=S=E\n\n\
                           [other]\naws_access_key_id=OTHER\naws_secret_access_key=X\naws_session_token=T\n";
        std::fs::write(home.path().join(".aws/credentials"), credentials).unwrap();
        let config = "[default]\nregion = eu-central-1\ns3 =\n  addressing_style = path\n\
                      [profile other]\nendpoint_url = http://127.0.0.1:9\n[profile role]\nrole_arn = arn\n";
        std::fs::write(home.path().join(".aws/config"), config).unwrap();
        home
    }

    #[test]
    fn credentials_come_from_files_and_variables_override_them() {
        let home = home();
        let told = cloud_environment(home.path(), &[]).aws().unwrap();
        let of = |told: &BTreeMap<String, String>, key: &str| told.get(key).cloned();
        assert_eq!(of(&told, "aws_access_key_id").as_deref(), Some("ID"));
        assert_eq!(of(&told, "aws_secret_access_key").as_deref(), Some("S=E"));
        assert_eq!(of(&told, "aws_region").as_deref(), Some("eu-central-1"));
        assert_eq!(of(&told, "aws_session_token"), None);

        let other = cloud_environment(home.path(), &[("AWS_PROFILE", "other")]);
        let told = other.aws().unwrap();
        assert_eq!(of(&told, "aws_access_key_id").as_deref(), Some("OTHER"));
        assert_eq!(of(&told, "aws_session_token").as_deref(), Some("T"));
        let endpoint = of(&told, "aws_endpoint_url");
        assert_eq!(endpoint.as_deref(), Some("http://127.0.0.1:9"));

        // Keys are not mixed with keys of the other file, or with a token that belongs to other keys.
        let both =
            "[default]\naws_access_key_id=C\naws_secret_access_key=D\naws_session_token=OLD\n";
        let path = home.path().join("both");
        std::fs::write(&path, both).unwrap();
        let named = [
            ("AWS_CONFIG_FILE", path.to_str().unwrap()),
            ("AWS_SESSION_TOKEN", "STALE"),
        ];
        let told = cloud_environment(home.path(), &named).aws().unwrap();
        assert_eq!(of(&told, "aws_access_key_id").as_deref(), Some("ID"));
        assert_eq!(of(&told, "aws_session_token"), None);
        assert_eq!(
            of(&told, "aws_region"),
            None,
            "the region comes only from the named file"
        );
        let named = [("AWS_SHARED_CREDENTIALS_FILE", path.to_str().unwrap())];
        let told = cloud_environment(home.path(), &named).aws().unwrap();
        assert_eq!(of(&told, "aws_access_key_id").as_deref(), Some("C"));
        assert_eq!(of(&told, "aws_session_token").as_deref(), Some("OLD"));

        let variables = [
            ("AWS_ACCESS_KEY_ID", "V"),
            ("AWS_SECRET_ACCESS_KEY", "W"),
            ("AWS_DEFAULT_REGION", "here"),
            ("HOME", "x"),
        ];
        let told = cloud_environment(home.path(), &variables).aws().unwrap();
        assert_eq!(of(&told, "aws_access_key_id").as_deref(), Some("V"));
        assert_eq!(of(&told, "aws_secret_access_key").as_deref(), Some("W"));
        assert_eq!(of(&told, "aws_region"), None);
        assert_eq!(of(&told, "home"), None);
    }

    #[test]
    fn unsupported_profiles_are_rejected_with_the_reason() {
        let home = home();
        let role = cloud_environment(home.path(), &[("AWS_PROFILE", "role")]);
        let error = role.aws().unwrap_err().to_string();
        assert!(
            error.contains("`role_arn`, which is not supported"),
            "{error}"
        );
        let missing = cloud_environment(home.path(), &[("AWS_PROFILE", "missing")]);
        let error = missing.aws().unwrap_err().to_string();
        assert!(error.contains("no such profile"), "{error}");
        let nothing = cloud_environment(&home.path().join("elsewhere"), &[]);
        assert!(nothing.aws().unwrap().is_empty());
    }
}
