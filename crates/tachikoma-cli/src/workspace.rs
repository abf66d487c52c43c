//! The working directory, its configuration and its loops, and the environment. Only this module reads environment variables of other programs.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tachikoma_core::TRUST_VARIABLE;
use tachikoma_core::{LoopId, PASSPHRASE_VARIABLE};
use tachikoma_fs::{RALPH_DIR, owner};
use tachikoma_loop_runner::cloud::{Cloud, CloudEnvironment, Proxies};
use tachikoma_loop_runner::git::worktree_tree::Bounds;
use tachikoma_loop_runner::offline::StoreConfig;
use tachikoma_loop_runner::process::MARKER;
use tachikoma_loop_runner::settings::{FileOf, Layers, Settings};
use tachikoma_loop_runner::store::backup::{self, Backups};
use tachikoma_loop_runner::store::encryption::{Encryption, IDENTITY, KeySource, Passphrase};
use tachikoma_loop_runner::store::recover::Copies;
use tachikoma_loop_runner::store::snapshot::Packing;
use tachikoma_loop_runner::store::{layout, lock, loops, temporary};

use crate::failure::Failure;
use crate::secrets;

/// Hint that says where to find the ids of loops.
const LOOPS_HINT: &str =
    "`.ralph/loops/` lists the stored loops; without `--loop` the current one is used";

/// The current directory with its configuration and its loops.
#[derive(Clone, Debug)]
pub struct Workspace {
    /// The current directory.
    pub directory: PathBuf,
    /// Encryptions that were loaded already, by key source.
    encryptions: Arc<Mutex<Vec<(KeySource, Encryption)>>>,
}

/// The loop that started this process, from the environment.
#[derive(Debug)]
pub struct AgentsLoop {
    /// Working directory of the loop.
    pub working_dir: PathBuf,
    /// Id of the loop; `None` if it is unknown.
    pub loop_id: Option<LoopId>,
}

/// The current loop of a working directory, and its directories.
#[derive(Debug)]
pub struct Current {
    /// Id of the loop.
    pub loop_id: LoopId,
    /// Working directory of the loop.
    pub working_dir: PathBuf,
    /// The directory that contains `.ralph/` with the loop: the working directory, or a temporary one if the loop is not stored.
    pub root: PathBuf,
    /// The loop's own directory below `.ralph/`.
    pub dir: PathBuf,
    /// Whether the loop is stored after the run.
    pub is_kept: bool,
    /// Decrypts the files of the loop.
    pub encryption: Encryption,
}

impl Workspace {
    /// Reads the current directory.
    pub fn current() -> Result<Self, Failure> {
        let directory = std::env::current_dir().map_err(|error| {
            Failure::usage(format!("the current directory cannot be used: {error}"))
                .hint("it may have been deleted or moved; `cd` to one that exists")
        })?;
        Ok(Self {
            directory,
            encryptions: Arc::default(),
        })
    }

    /// Returns the settings from files and variables, lowest priority first.
    pub fn layers(&self) -> Result<Layers, Failure> {
        // The path is relative, because messages show it.
        self.layers_with(Path::new("tachikoma.toml"))
    }

    /// Returns the settings for a loop that [`Workspace::working_dir`] found. If that is a parent directory, its configuration file is used.
    pub fn layers_of(&self, working_dir: &Path) -> Result<Layers, Failure> {
        if self.configured_dir().as_deref() == Some(working_dir) {
            return self.layers();
        }
        self.layers_with(&working_dir.join("tachikoma.toml"))
    }

    /// Returns the other files with the state of a loop, besides its journal. If the configuration cannot be read, the defaults are
    /// used.
    pub fn copies(&self, working_dir: &Path) -> Copies {
        self.store_config_for_reading(working_dir, working_dir)
            .copies()
    }

    /// Returns all paths of a loop's files for a command that only reads. If the configuration cannot be read, the defaults are
    /// used.
    pub fn store_config_for_reading(&self, working_dir: &Path, root: &Path) -> StoreConfig {
        if root == working_dir {
            return self.store_config(working_dir).unwrap_or_else(|failure| {
                let encryption = Encryption::lost(&failure.what);
                StoreConfig {
                    encryption,
                    ..self.store_config_with(working_dir, Settings::default())
                }
            });
        }
        // The loop is not stored, so its files are at their default paths.
        self.store_config_with(root, Settings::default())
    }

    /// Returns all paths of a loop's files for a command that changes them.
    pub fn store_config(&self, working_dir: &Path) -> Result<StoreConfig, Failure> {
        Ok(self.store_config_with(working_dir, self.loaded(working_dir)?))
    }

    fn loaded(&self, working_dir: &Path) -> Result<Settings, Failure> {
        Ok(self.layers_of(working_dir)?.load()?.settings)
    }

    fn store_config_with(&self, working_dir: &Path, settings: Settings) -> StoreConfig {
        let packing = Packing::of(settings.state.compress);
        let encryption = self.encryption(working_dir, &settings);
        StoreConfig {
            bounds: Bounds::of(&settings, working_dir),
            working_dir: working_dir.to_owned(),
            snapshot: working_dir.join(settings.state.state_path),
            backups: Backups {
                dir: working_dir.join(settings.state.backup_dir),
                max: settings.state.max_backups,
                packing,
                encryption: encryption.clone(),
            },
            encryption,
            packing,
            cloud: settings.state.cloud_url.map(|url| Cloud {
                url,
                cloud_environment: self.cloud_environment(),
                max: settings.state.max_backups,
            }),
            search_path: self.search_path(),
            state_dir: working_dir.join(settings.session.state_dir),
            runtime_dir: self.runtime_dir(),
            temporary_dir: self.temporary_dir(),
        }
    }

    /// Returns the encryption for the files of the loops in a working directory.
    pub fn encryption(&self, working_dir: &Path, settings: &Settings) -> Encryption {
        let state = &settings.state;
        let words = secrets::value(PASSPHRASE_VARIABLE).filter(|words| !words.expose().is_empty());
        let words = words.map(Passphrase::Words);
        let file = state.encrypt_passphrase_file.as_ref();
        let source = KeySource {
            encrypt: state.encrypt,
            recipients: state.encrypt_recipients.clone(),
            identity_file: state
                .encrypt_identity_file
                .as_ref()
                .map(|path| working_dir.join(path)),
            passphrase: words.or_else(|| file.map(|path| Passphrase::File(working_dir.join(path)))),
            generated: working_dir.join(RALPH_DIR).join(IDENTITY),
        };
        let mut known = self
            .encryptions
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // The result is cached, because checking a passphrase takes a second.
        if let Some((_, encryption)) = known.iter().find(|(known, _)| *known == source) {
            return encryption.clone();
        }
        let encryption = Encryption::new(source.clone());
        known.push((source, encryption.clone()));
        encryption
    }

    fn layers_with(&self, file: &Path) -> Result<Layers, Failure> {
        let mut layers = Layers::new();
        if let Some(path) = user_file() {
            layers.file(&path, FileOf::User);
        }
        let of = match self.is_trust_off() {
            true => FileOf::ProjectOfAnyOwner,
            false => FileOf::Project,
        };
        match self.config_file() {
            Some(path) => {
                if !layers.file(&path, of) {
                    let what = format!(
                        "configuration file {} (TACHIKOMA_CONFIG) does not exist",
                        path.display()
                    );
                    return Err(Failure::usage(what));
                }
            }
            None => {
                layers.file(file, of);
            }
        }
        layers.variables(std::env::vars_os());
        Ok(layers)
    }

    /// Returns the configuration file that an environment variable names; `None` if the one in the directory is used.
    pub fn config_file(&self) -> Option<PathBuf> {
        let path = std::env::var_os("TACHIKOMA_CONFIG").filter(|path| !path.is_empty());
        path.map(PathBuf::from)
    }

    /// Finds the working directory of a loop: this directory or a parent. A directory of another user is refused.
    pub fn working_dir(&self) -> Result<Option<PathBuf>, Failure> {
        let found = self.find_in_ancestors(loops::working_dir_of);
        if let Some(dir) = &found {
            owner::check_ralph(dir)?;
        }
        Ok(found)
    }

    /// Finds the working directory of a loop. If there is none, returns the directory in which a run would begin a loop.
    pub fn working_dir_or_here(&self) -> Result<PathBuf, Failure> {
        Ok(self.working_dir()?.unwrap_or_else(|| self.run_dir()))
    }

    /// Returns the directory in which a run would begin a loop.
    pub fn run_dir(&self) -> PathBuf {
        self.configured_dir()
            .unwrap_or_else(|| self.directory.clone())
    }

    /// Finds a working directory that may contain files of Tachikoma to delete.
    pub fn purgeable_dir(&self) -> Result<Option<PathBuf>, Failure> {
        let found = self.find_in_ancestors(loops::purgeable_dir_of);
        if let Some(dir) = &found {
            owner::check_ralph(dir)?;
        }
        Ok(found)
    }

    fn find_in_ancestors(&self, find: impl Fn(&Path) -> Option<PathBuf>) -> Option<PathBuf> {
        let configured = self.configured_dir();
        configured
            .into_iter()
            .chain([self.directory.clone()])
            .find_map(|dir| find(&dir))
    }

    /// Returns the loop that started this process, directly or through its agent; `None` if there is none.
    pub fn agents_loop(&self) -> Option<AgentsLoop> {
        let dir = std::env::var_os("TACHIKOMA_DIR").filter(|dir| !dir.is_empty())?;
        let loop_id = std::env::var(MARKER).ok();
        Some(AgentsLoop {
            working_dir: self.directory.join(dir),
            loop_id: loop_id.and_then(|name| name.parse().ok()),
        })
    }

    /// Finds the loop that was started last.
    pub fn current_loop(&self) -> Result<Current, Failure> {
        if let Some(working_dir) = self.working_dir()?
            && let Some(current) = self.loop_in(working_dir)?
        {
            return Ok(current);
        }
        Err(self.no_loop())
    }

    /// Finds the loop with an id, archived or not. Without an id, finds the current loop.
    pub fn named_loop(&self, name: Option<&str>) -> Result<Current, Failure> {
        let current = || self.current_loop();
        let Some(name) = name else { return current() };
        let loop_id: LoopId = name
            .parse()
            .map_err(|error| Failure::usage(format!("--loop: {error}")).hint(LOOPS_HINT))?;
        let Some(root) = self.working_dir()? else {
            return Err(self.no_loop());
        };
        let dir = layout::loop_dir(&root, loop_id);
        if dir.is_dir() {
            return Ok(Current {
                loop_id,
                dir,
                encryption: self.store_config_for_reading(&root, &root).encryption,
                working_dir: root.clone(),
                root,
                is_kept: true,
            });
        }
        match current() {
            Ok(current) if current.loop_id == loop_id => Ok(current),
            Ok(_) | Err(_) => {
                let what = format!("no loop {loop_id} in {}", root.display());
                Err(Failure::new(what).hint(LOOPS_HINT))
            }
        }
    }

    /// Returns the failure for a missing loop.
    pub fn no_loop(&self) -> Failure {
        Failure::new(format!("no loop in {}", self.directory.display())).hint(self.first_step())
    }

    /// Returns what to do if there is no loop: start one, or restore one from a backup.
    pub fn first_step(&self) -> String {
        let dir = self.working_dir_or_here();
        let dir = dir.unwrap_or_else(|_| self.run_dir());
        let store_config = self.store_config_for_reading(&dir, &dir);
        match backup::of_lost_loop(&store_config.backups.dir, &dir, &store_config.encryption) {
            Some(lost) => format!("{}, `tachikoma run` starts a new one", lost.message(&dir)),
            None => "`tachikoma run` starts one".to_owned(),
        }
    }

    /// Finds the loop of a working directory that was started last, or the running loop if it is not stored.
    pub fn loop_in(&self, working_dir: PathBuf) -> Result<Option<Current>, Failure> {
        let live = lock::is_held(&working_dir).then(|| lock::holder(&working_dir));
        let unkept = live
            .flatten()
            .map(|holder| temporary::root(&self.temporary_dir(), holder.loop_id))
            .filter(|root| root.is_dir());
        let is_kept = unkept.is_none();
        let root = unkept.unwrap_or_else(|| working_dir.clone());
        let store_config = self.store_config_for_reading(&working_dir, &root);
        let found = loops::current(&root, &store_config.snapshot, &store_config.encryption)?;
        Ok(found.map(|loop_id| Current {
            loop_id,
            dir: layout::loop_dir(&root, loop_id),
            working_dir,
            root,
            is_kept,
            encryption: store_config.encryption,
        }))
    }

    /// Returns the working directory from the configuration; `None` if it cannot be read.
    pub fn configured_dir(&self) -> Option<PathBuf> {
        let loaded = self.layers().ok()?.load().ok()?;
        // The `.` of the default is removed, because messages show the path.
        let path = self.directory.join(loaded.settings.working_dir);
        Some(path.components().collect())
    }

    /// Returns the user's directory for sockets.
    pub fn runtime_dir(&self) -> PathBuf {
        match std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty()) {
            Some(dir) => PathBuf::from(dir).join("tachikoma"),
            None => self.temporary_dir(),
        }
    }

    /// Returns the user's state directory on this machine; `None` if neither `XDG_STATE_HOME` nor `HOME` has an absolute path.
    pub fn state_dir(&self) -> Option<PathBuf> {
        let state = absolute("XDG_STATE_HOME")
            .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))?;
        Some(state.join("tachikoma"))
    }

    /// Returns the user's directory for files of loops that are not stored.
    pub fn temporary_dir(&self) -> PathBuf {
        std::env::temp_dir().join(format!("tachikoma-{}", rustix::process::geteuid().as_raw()))
    }

    /// Returns an environment variable of another program; `None` if it is not set or not UTF-8.
    pub fn variable(&self, name: &str) -> Option<String> {
        std::env::var(name).ok().filter(|value| !value.is_empty())
    }

    /// Returns the environment variables that network clients need: credentials of object stores, and proxies.
    pub fn cloud_environment(&self) -> CloudEnvironment {
        let ours = |name: &str| {
            let prefixes = ["AWS_", "AZURE_", "GOOGLE_"];
            prefixes.iter().any(|prefix| name.starts_with(prefix)) || Proxies::has_variable(name)
        };
        let variables = std::env::vars_os().filter_map(|(name, value)| {
            let (name, value) = (name.into_string().ok()?, value.into_string().ok()?);
            ours(&name).then_some((name, value))
        });
        let home = std::env::var_os("HOME").map(PathBuf::from);
        CloudEnvironment {
            variables: variables.collect(),
            home: home.filter(|home| home.is_absolute()),
        }
    }

    /// Returns whether `TACHIKOMA_TRUST` turns the trust checks off.
    pub fn is_trust_off(&self) -> bool {
        self.variable(TRUST_VARIABLE)
            .is_some_and(|value| value == "1" || value == "true")
    }

    /// Removes all secret variables from the environment of this process, for a command that runs git: git may run programs of the agent.
    pub fn remove_secrets_from_environment(&self) -> Result<(), Failure> {
        let loaded = self.layers().and_then(|layers| Ok(layers.load()?));
        // An error is ignored here: the command that needs the settings reports it.
        let names = loaded.map_or_else(
            |_| vec![PASSPHRASE_VARIABLE.into()],
            |loaded| secrets::secret_names(&loaded.settings),
        );
        secrets::remove_except_passphrase_value(&names)
    }

    /// Returns the `PATH` variable; `None` if it is not set.
    pub fn search_path(&self) -> Option<OsString> {
        std::env::var_os("PATH")
    }

    /// Returns the command that starts this program in another role.
    pub fn ourselves(&self, part: &str) -> Result<Vec<OsString>, Failure> {
        let program = std::env::current_exe().map_err(|error| {
            Failure::new(format!("the path of this program cannot be found: {error}"))
        })?;
        Ok(vec![program.into_os_string(), part.into()])
    }
}

/// Returns the absolute path in an environment variable; `None` if it is not set or relative.
fn absolute(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os(name).map(PathBuf::from);
    path.filter(|path| path.is_absolute())
}

fn user_file() -> Option<PathBuf> {
    let config = absolute("XDG_CONFIG_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".config")))?;
    Some(config.join("tachikoma").join("tachikoma.toml"))
}
