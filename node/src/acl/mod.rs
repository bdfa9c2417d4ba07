//! Access control lists: users and their permissions, as in Redis.
//!
//! A user has passwords, stored as SHA-256 digests, and *selectors*. A selector is a set of
//! commands with patterns of keys, spaces and channels. A request is allowed if one selector allows
//! the whole request. The command table alone determines what a request accesses: its key
//! arguments, the space, view or action that it names, and its channels.
//!
//! As an extension of Redis, the rule `$home` allows the space, view or action `home` in commands
//! without keys (`CNT.GET post 17`). `$post` also allows the keys of the space post (`HGETALL
//! post:17`). A user with access to all keys (`~*`) may use every space.
//!
//! Rules may name commands of Redis that this server does not have (`redis_names`).
//!
//! A connection caches its user ([`Access`]) and reloads the user before the next request when
//! users change. The initial user `default` has all permissions, so for its requests the server
//! checks a single flag.

mod category;
mod log;
mod redis_names;
mod selector;
mod user;

pub use category::{CATEGORIES, of as categories};
pub use log::{Log, Reason};
pub use redis_names::MODULE_CATEGORIES;
pub use selector::{Request, Selector};
pub use user::User;

use crate::command::error::Refusal;
use crate::config::Security;
use crate::runtime::atomic_file;
use crate::runtime::clients::Client;
use arc_swap::ArcSwap;
use dataset::engines::Engines;
use parking_lot::Mutex;
use selector::{Commands, Denied};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;
use user::{MAX_RULES_BYTES, digest};

/// User of connections before authentication.
pub use crate::runtime::clients::DEFAULT_USER as DEFAULT;
/// Maximum length of a user's name, in bytes.
const MAX_WORD: usize = 1024;

type Users = BTreeMap<String, Arc<User>>;

/// All users, and the log of refusals.
pub struct Acl {
    users: ArcSwap<Users>,
    /// Serializes changes to users.
    changing: Mutex<()>,
    /// Commands denied to every user: `security.deny_commands`.
    denied: ArcSwap<Commands>,
    /// Log of refusals, for ACL LOG.
    pub log: Mutex<Log>,
    /// Number of refusals by [`Reason`].
    pub refused: [AtomicU64; 4],
}

impl Default for Acl {
    fn default() -> Acl {
        Acl {
            users: ArcSwap::from_pointee(Users::from([(
                DEFAULT.to_owned(),
                Arc::new(User::default_user()),
            )])),
            changing: Mutex::new(()),
            denied: ArcSwap::from_pointee(Commands::none()),
            log: Mutex::default(),
            refused: Default::default(),
        }
    }
}

/// Redis's error for ACL LOAD and ACL SAVE without an ACL file.
const NO_FILE: &str = "This Redis instance is not configured to use an ACL file. You may want to \
                       specify users via the ACL SETUSER command and then issue a CONFIG REWRITE \
                       (assuming you have a Redis configuration file set) in order to store users \
                       in the Redis configuration.";

impl Acl {
    /// Loads the users of the configuration, before the first client connects.
    pub fn configure(&self, security: &Security) -> Result<(), String> {
        let mut denied = Commands::none();
        for name in &security.deny_commands {
            denied
                .set_named(name, true)
                .map_err(|e| format!("security.deny_commands: '{name}': {e}"))?;
        }
        self.denied.store(Arc::new(denied));
        self.log.lock().most = security.acl_log_entries;
        let users = if security.acl_file.is_empty() {
            let mut users = fresh(security);
            for line in &security.users {
                add_line(&mut users, line, security)
                    .map_err(|e| format!("security.users: '{line}': {e}"))?;
            }
            users
        } else {
            read_file(security)?
        };
        self.users.store(Arc::new(users));
        Ok(())
    }

    /// Returns the user with this name.
    pub fn get(&self, name: &str) -> Option<Arc<User>> {
        self.users.load().get(name).cloned()
    }

    /// Whether clients need no password.
    pub fn is_open(&self) -> bool {
        self.get(DEFAULT).is_some_and(|user| user.needs_no_login())
    }

    /// Returns all users, by name.
    pub fn all(&self) -> Vec<Arc<User>> {
        self.users.load().values().cloned().collect()
    }

    /// Returns the users as lines of a configuration file. Omits users that equal their defaults.
    pub fn lines(&self, security: &Security) -> Vec<String> {
        let plain = fresh(security);
        let differs =
            |user: &User| plain.get(user.name()).is_none_or(|p| p.describe() != user.describe());
        self.users.load().values().filter(|user| differs(user)).map(|user| user.line()).collect()
    }

    /// Changes a copy of the users and publishes it. The caller must notify the connections
    /// ([`crate::runtime::settings::Settings::touch`]).
    fn change<T>(&self, change: impl FnOnce(&mut Users) -> Result<T, String>) -> Result<T, String> {
        let _one = self.changing.lock();
        let mut users = Users::clone(&self.users.load());
        let done = change(&mut users)?;
        self.users.store(Arc::new(users));
        Ok(done)
    }

    /// ACL SETUSER: creates or changes a user. Applies all rules or none.
    pub fn set_user(&self, name: &str, rules: &[&str], most: usize) -> Result<(), String> {
        self.change(|users| {
            let known = users.get(name);
            let user = changed(known, name, rules)?;
            if known.is_none() && users.len() >= most {
                return Err(format!("too many users: security.max_users is {most}"));
            }
            users.insert(name.to_owned(), Arc::new(user));
            Ok(())
        })
    }

    /// Updates the rules that contain the old name of a renamed space, without wildcards. `stays`
    /// returns whether a view or action still has the old name. Returns whether any user changed.
    pub(crate) fn follow_renames(
        &self,
        renamed: &[(String, String)],
        stays: &dyn Fn(&str) -> bool,
    ) -> bool {
        let changed = self.change(|users| {
            let mut changed = false;
            for user in users.values_mut() {
                let mut next = User::clone(user);
                next.follow_renames(renamed, stays);
                if next.describe() != user.describe() {
                    *user = Arc::new(next);
                    changed = true;
                }
            }
            Ok(changed)
        });
        changed.unwrap_or(false)
    }

    pub(crate) fn set_default_password(&self, password: &str) -> Result<(), String> {
        let rule = format!(">{password}");
        let rules: &[&str] = if password.is_empty() { &["nopass"] } else { &["resetpass", &rule] };
        self.set_user(DEFAULT, rules, usize::MAX)
    }

    /// ACL DELUSER: deletes users and returns their number. The caller must close their
    /// connections.
    pub fn delete(&self, names: &[&str]) -> Result<usize, String> {
        self.change(|users| {
            if names.contains(&DEFAULT) {
                return Err("The 'default' user cannot be removed".to_owned());
            }
            Ok(names.iter().filter(|name| users.remove(**name).is_some()).count())
        })
    }

    /// ACL LOAD: replaces all users with those in the file. Has no effect if the file contains an
    /// error.
    pub fn load(&self, security: &Security) -> Result<(), String> {
        if security.acl_file.is_empty() {
            return Err(NO_FILE.to_owned());
        }
        let read = read_file(security)?;
        self.change(|users| {
            *users = read;
            Ok(())
        })
    }

    /// ACL SAVE: writes the users to the file, durably.
    pub fn save(&self, security: &Security) -> Result<(), String> {
        if security.acl_file.is_empty() {
            return Err(NO_FILE.to_owned());
        }
        let text: String =
            self.users.load().values().map(|user| format!("user {}\n", user.line())).collect();
        atomic_file::replace(Path::new(&security.acl_file), text.as_bytes()).map_err(|e| {
            tracing::error!("ACL SAVE: {}: {e}", security.acl_file);
            "There was an error trying to save the ACLs. Please check the server logs for more \
             information"
                .to_owned()
        })
    }

    /// Returns the command that `security.deny_commands` denies, if any. The denied command is the
    /// request's own command or a command that an option runs.
    fn denied_to_all(&self, request: &Request<'_>) -> Option<&'static str> {
        let denied = self.denied.load();
        let also = request.option_command().map(|(number, _)| number).filter(|n| denied.has(*n));
        denied
            .has(request.number)
            .then(|| request.name())
            .or_else(|| also.map(crate::command::table::name_of_bit))
    }

    /// ACL DRYRUN: returns why the user's request would be refused, or `None`.
    pub fn dry_run(
        &self,
        user: &User,
        request: &Request<'_>,
        engines: Option<&Engines>,
    ) -> Option<String> {
        if let Some(name) = self.denied_to_all(request).filter(|_| !request.applies_to_all_users())
        {
            return Some(not_allowed(name));
        }
        let denied = user.check(request, engines).err()?;
        Some(format!("This user has no permissions to {}", denied.dry_words(request)))
    }

    /// Returns the user if the password is correct. The running time does not reveal whether the
    /// user exists.
    pub fn login(&self, name: &[u8], password: &[u8]) -> Option<Arc<User>> {
        let user = std::str::from_utf8(name).ok().and_then(|name| self.get(name));
        let right = user.as_deref().unwrap_or(&User::unknown_user()).accepts(&digest(password));
        user.filter(|_| right)
    }

    /// Records a refusal in ACL LOG.
    pub fn note(&self, reason: Reason, object: &[u8], user: &[u8], client: &Client) {
        self.refused[reason as usize].fetch_add(1, Relaxed);
        let mut info = Vec::new();
        client.describe(Instant::now(), &mut info);
        self.log.lock().note(reason, object, user, info);
    }
}

fn not_allowed(name: &str) -> String {
    format!("{name} command not allowed: the configuration denies it to all users")
}

/// Returns the users of an empty configuration.
fn fresh(security: &Security) -> Users {
    let mut user = User::default_user();
    if !security.password.is_empty() {
        user.set_password(&security.password);
    }
    Users::from([(DEFAULT.to_owned(), Arc::new(user))])
}

fn changed(known: Option<&Arc<User>>, name: &str, rules: &[&str]) -> Result<User, String> {
    if name.is_empty()
        || name.len() > MAX_WORD
        || name.chars().any(|c| c.is_whitespace() || c.is_control())
    {
        return Err("Usernames can't contain spaces or null characters".to_owned());
    }
    let mut user = known.map_or_else(|| User::new(name), |user| User::clone(user));
    user.apply_all(rules)?;
    if user.line().len() > MAX_RULES_BYTES {
        return Err(format!("a user's rules are limited to {MAX_RULES_BYTES} bytes"));
    }
    Ok(user)
}

/// Parses a line (a name followed by rules) and adds the user.
fn add_line(users: &mut Users, line: &str, security: &Security) -> Result<(), String> {
    let mut words = line.split_ascii_whitespace();
    let name = words.next().ok_or("missing user name")?;
    if users.len() >= security.max_users {
        return Err(format!("too many users: security.max_users is {}", security.max_users));
    }
    let rules: Vec<&str> = words.collect();
    // The rules start from an empty user, even for the initial default user.
    let user = changed(None, name, &rules)?;
    let made_here = name == DEFAULT && users.get(name).is_some_and(|u| u.is_initial_user());
    if users.insert(name.to_owned(), Arc::new(user)).is_some() && !made_here {
        return Err(format!("Duplicate user '{name}' found"));
    }
    Ok(())
}

/// Parses an ACL file: lines `user name rules`, empty lines, and comments.
pub fn parse_file(text: &str, security: &Security) -> Result<BTreeMap<String, Arc<User>>, String> {
    let mut users = fresh(security);
    let mut errors = String::new();
    for (number, line) in (1..).zip(text.lines().map(str::trim)) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let outcome = match line.split_once(char::is_whitespace) {
            Some(("user", rest)) => add_line(&mut users, rest, security),
            _ => Err("line should start with user keyword".to_owned()),
        };
        if let Err(error) = outcome
            && errors.len() < 4096
        {
            errors += &format!("{}:{number}: {error}. ", security.acl_file);
        }
    }
    if errors.is_empty() {
        Ok(users)
    } else {
        Err(errors
            + "WARNING: ACL errors detected, no change to the previously active ACL rules was \
               performed")
    }
}

fn read_file(security: &Security) -> Result<Users, String> {
    let text = std::fs::read_to_string(&security.acl_file)
        .map_err(|e| format!("Error loading ACLs, opening file '{}': {e}", security.acl_file))?;
    parse_file(&text, security)
}

/// Permissions of a connection.
pub struct Access {
    /// User of the connection, or `None` before authentication.
    pub user: Option<Arc<User>>,
    /// Whether the user has all permissions, so that no checks are needed.
    pub free: bool,
    /// Whether the last reload removed a channel rule of the user.
    pub lost_channel_rule: bool,
    /// Version of the settings at the last reload.
    pub version: u64,
}

impl Access {
    /// Creates the permissions of a new connection.
    pub fn new(acl: &Acl, version: u64) -> Access {
        let mut access = Access { user: None, free: false, lost_channel_rule: false, version };
        access.enter(acl, acl.get(DEFAULT).filter(|user| user.needs_no_login()));
        access
    }

    /// Sets the user of the connection.
    pub fn enter(&mut self, acl: &Acl, user: Option<Arc<User>>) {
        self.free =
            user.as_ref().is_some_and(|u| u.has_all_permissions()) && acl.denied.load().is_empty();
        self.user = user;
    }

    /// Reloads the user after a change. Returns false if the user was deleted.
    pub fn look_again(&mut self, acl: &Acl) -> bool {
        let known = match &self.user {
            Some(user) => acl.get(user.name()),
            // The default user may no longer need a password.
            None => acl.get(DEFAULT).filter(|user| user.needs_no_login()),
        };
        let lost = self.user.is_some() && known.is_none();
        self.lost_channel_rule = match (&known, &self.user) {
            (Some(known), Some(before)) => known.lacks_channel_rule_of(before),
            _ => false,
        };
        self.enter(acl, known);
        !lost
    }

    /// Whether a request is allowed; records nothing.
    #[cold]
    pub fn allows(&self, acl: &Acl, engines: Option<&Engines>, request: &Request<'_>) -> bool {
        let may = |user: &Arc<User>| user.check(request, engines).is_ok();
        self.free
            || request.applies_to_all_users()
            || (self.user.as_ref().is_some_and(may) && acl.denied_to_all(request).is_none())
    }

    /// Checks a request, and records a refusal.
    #[cold]
    pub fn check(
        &self,
        acl: &Acl,
        engines: Option<&Engines>,
        client: &Client,
        request: &Request<'_>,
    ) -> Result<(), Refusal> {
        if request.applies_to_all_users() {
            return Ok(());
        }
        let Some(user) = &self.user else { return Err(Refusal::NO_AUTH) };
        if let Some(name) = acl.denied_to_all(request) {
            return Err(Refusal::new(format!("ERR {}", not_allowed(name)).into_bytes()));
        }
        let Err(denied) = user.check(request, engines) else { return Ok(()) };
        let reason = match denied {
            Denied::Command | Denied::Option => Reason::Command,
            Denied::Key(_) | Denied::Name(_) => Reason::Key,
            Denied::Channel(_) => Reason::Channel,
        };
        acl.note(reason, denied.object(request), user.name().as_bytes(), client);
        Err(Refusal::new(
            format!("NOPERM this user has no permissions to {}", denied.words(request))
                .into_bytes(),
        ))
    }
}
