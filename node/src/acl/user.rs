//! ACL user: state, passwords and selectors.

use crate::acl::selector::{Denied, Request, Selector};
use crate::runtime::clients::DEFAULT_USER;
use crate::runtime::pubsub;
use dataset::engines::Engines;
use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;
use subtle::{Choice, ConstantTimeEq as _};

/// Maximum size of a user's rules, in bytes.
pub(super) const MAX_RULES_BYTES: usize = 64 << 10;

/// SHA-256 of a password. The password itself is not stored.
pub(crate) type Digest = [u8; 32];

pub(crate) fn digest(password: &[u8]) -> Digest {
    Sha256::digest(password).into()
}

/// A user. Immutable once published; changes are made to a copy.
#[derive(Clone, Debug)]
pub struct User {
    name: String,
    on: bool,
    nopass: bool,
    passwords: Vec<Digest>,
    /// The root selector, followed by the selectors in parentheses.
    selectors: Vec<Selector>,
    /// Whether this is the unchanged initial default user.
    is_initial: bool,
}

impl User {
    /// Creates a user that is off, with no password and no permissions.
    pub(super) fn new(name: &str) -> User {
        User {
            name: name.to_owned(),
            on: false,
            nopass: false,
            passwords: Vec::new(),
            selectors: vec![Selector::new()],
            is_initial: false,
        }
    }

    /// Creates the initial default user: on, without a password, with all permissions.
    pub(super) fn default_user() -> User {
        let mut user = User::new(DEFAULT_USER);
        user.apply_all(&["on", "nopass", "~*", "&*", "+@all"])
            .expect("the rules of the initial user are valid");
        user.is_initial = true;
        user
    }

    /// Creates a user whose password cannot match. A login with an unknown name checks this user's
    /// password, so that the time does not reveal which users exist.
    pub(super) fn unknown_user() -> User {
        User { passwords: vec![[0; 32]], ..User::new("") }
    }

    /// Name of the user.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn is_initial_user(&self) -> bool {
        self.is_initial
    }

    pub(super) fn set_password(&mut self, password: &str) {
        self.nopass = false;
        self.passwords = vec![digest(password.as_bytes())];
    }

    /// Whether the user is on and needs no password, so that no login is necessary.
    pub(crate) fn needs_no_login(&self) -> bool {
        self.on && self.nopass
    }

    /// Whether any password is accepted: `nopass`.
    pub fn has_no_password(&self) -> bool {
        self.nopass
    }

    /// Whether the user has all permissions, so that checks can be skipped.
    pub fn has_all_permissions(&self) -> bool {
        self.selectors.iter().any(Selector::is_everything)
    }

    /// Whether all keys with this prefix may be read.
    pub fn reads_all_with(&self, prefix: &[u8]) -> bool {
        self.selectors.iter().any(|selector| selector.reads_all_with(prefix))
    }

    /// Whether a password has this digest. The comparison takes constant time, because it compares
    /// all passwords completely.
    pub(super) fn accepts(&self, given: &Digest) -> bool {
        let mut right = Choice::from(u8::from(self.nopass));
        for password in &self.passwords {
            right |= password.ct_eq(given);
        }
        (right & Choice::from(u8::from(self.on))).into()
    }

    /// Checks a request. If no selector allows the request, returns the reason from the selector
    /// that allowed the largest part.
    pub(crate) fn check(
        &self,
        request: &Request<'_>,
        engines: Option<&Engines>,
    ) -> Result<(), Denied> {
        let mut worst = Denied::Command;
        for selector in &self.selectors {
            match selector.check(request, engines) {
                Ok(()) => return Ok(()),
                Err(denied) => worst = worst.max(denied),
            }
        }
        Err(worst)
    }

    /// Applies rules of ACL SETUSER. After an error, some of the rules may already be applied.
    pub(super) fn apply_all(&mut self, rules: &[&str]) -> Result<(), String> {
        self.is_initial = false;
        for rule in joined(rules)? {
            // As in Redis, an empty rule has no effect.
            if rule.is_empty() {
                continue;
            }
            // A password may contain control characters, because only its digest is stored.
            let is_password = rule.starts_with(['>', '<']);
            let spoils = !is_password && rule.chars().any(char::is_control);
            if rule.len() > MAX_RULES_BYTES || spoils {
                return Err(in_modifier(&rule, "Syntax error"));
            }
            self.apply(&rule).map_err(|why| in_modifier(&rule, &why))?;
        }
        Ok(())
    }

    fn apply(&mut self, rule: &str) -> Result<(), String> {
        match rule.to_ascii_lowercase().as_str() {
            "on" => self.on = true,
            "off" => self.on = false,
            // These options of Redis's RESTORE have no effect in this server.
            "sanitize-payload" | "skip-sanitize-payload" => {}
            "nopass" => {
                self.nopass = true;
                self.passwords.clear();
            }
            "resetpass" => {
                self.nopass = false;
                self.passwords.clear();
            }
            "clearselectors" => self.selectors.truncate(1),
            "reset" => *self = User::new(&self.name),
            _ => match rule.as_bytes()[0] {
                b'>' => self.add(digest(&rule.as_bytes()[1..])),
                b'<' => self.remove(&digest(&rule.as_bytes()[1..]))?,
                b'#' => self.add(from_hex(&rule[1..])?),
                b'!' => self.remove(&from_hex(&rule[1..])?)?,
                b'(' => {
                    let inner = rule
                        .strip_prefix('(')
                        .and_then(|r| r.strip_suffix(')'))
                        .ok_or("Syntax error")?;
                    let mut selector = Selector::new();
                    for word in inner.split_ascii_whitespace() {
                        // A closing parenthesis would end the selector when the stored rules are
                        // parsed.
                        if word.ends_with(')') {
                            return Err("Syntax error".to_owned());
                        }
                        selector.apply(word)?;
                    }
                    self.selectors.push(selector);
                }
                _ if rule.contains(' ') => return Err("Syntax error".to_owned()),
                _ => self.selectors[0].apply(rule)?,
            },
        }
        Ok(())
    }

    pub(super) fn follow_renames(
        &mut self,
        renamed: &[(String, String)],
        stays: &dyn Fn(&str) -> bool,
    ) {
        self.selectors.iter_mut().for_each(|selector| selector.follow_renames(renamed, stays));
    }

    fn add(&mut self, password: Digest) {
        self.nopass = false;
        if !self.passwords.contains(&password) {
            self.passwords.push(password);
        }
    }

    fn remove(&mut self, password: &Digest) -> Result<(), String> {
        let before = self.passwords.len();
        self.passwords.retain(|p| p != password);
        if self.passwords.len() == before {
            return Err(
                "The password you are trying to remove from the user does not exist".to_owned()
            );
        }
        Ok(())
    }

    /// Returns the flags for ACL GETUSER.
    pub fn flags(&self) -> Vec<&'static str> {
        let mut flags = vec![if self.on { "on" } else { "off" }];
        flags.extend(self.nopass.then_some("nopass"));
        flags
    }

    /// Returns the digests of the passwords in hexadecimal.
    pub fn passwords(&self) -> impl ExactSizeIterator<Item = String> {
        self.passwords.iter().map(|p| hex(p))
    }

    /// Returns the root selector and the selectors in parentheses.
    pub fn selectors(&self) -> (&Selector, &[Selector]) {
        (&self.selectors[0], &self.selectors[1..])
    }

    /// Whether a selector allows a subscription.
    pub fn may_receive(&self, kind: pubsub::Kind, name: &[u8]) -> bool {
        self.selectors.iter().any(|selector| selector.may_receive(kind, name))
    }

    /// Whether the user `before` had a channel rule that this user lacks. If so, some subscriptions
    /// of the user may no longer be allowed. As in Redis, rules are compared literally.
    pub fn lacks_channel_rule_of(&self, before: &User) -> bool {
        if self.selectors.iter().any(Selector::allows_all_channels) {
            return false;
        }
        let has = |rule| self.selectors.iter().any(|own| own.channels().contains(rule));
        before
            .selectors
            .iter()
            .any(|old| old.allows_all_channels() || !old.channels().iter().all(has))
    }

    /// Returns all rules without the name.
    pub(crate) fn describe(&self) -> String {
        let mut out = self.flags().join(" ");
        for password in self.passwords() {
            let _ = write!(out, " #{password}");
        }
        let (own, others) = self.selectors();
        let _ = write!(out, " {}", own.describe());
        for other in others {
            let _ = write!(out, " ({})", other.describe());
        }
        out
    }

    /// Returns the user's name and rules, as in an ACL file.
    pub fn line(&self) -> String {
        format!("{} {}", self.name, self.describe())
    }
}

fn in_modifier(rule: &str, why: &str) -> String {
    // Passwords must not appear in errors or logs.
    let shown = if rule.starts_with(['>', '<']) { &rule[..1] } else { rule };
    let shown: String = shown.chars().take(128).collect();
    format!("Error in ACL SETUSER modifier '{shown}': {why}")
}

/// Joins the arguments of each selector in parentheses.
fn joined(rules: &[&str]) -> Result<Vec<String>, String> {
    let mut all: Vec<String> = Vec::new();
    let mut open: Option<String> = None;
    for rule in rules {
        match open.take() {
            Some(text) => open = Some(format!("{text} {rule}")),
            None if rule.starts_with('(') => open = Some((*rule).to_owned()),
            None => all.push((*rule).to_owned()),
        }
        if open.as_ref().is_some_and(|text| text.ends_with(')')) {
            all.extend(open.take());
        }
    }
    match open {
        Some(text) => Err(format!(
            "Unmatched parenthesis in acl selector starting at '{}'.",
            text.split(' ').next().unwrap_or_default()
        )),
        None => Ok(all),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

fn from_hex(text: &str) -> Result<Digest, String> {
    let wrong = || {
        "The password hash must be exactly 64 characters and contain only lowercase hexadecimal \
         characters"
            .to_owned()
    };
    let mut digest = [0; 32];
    if text.len() != 64 || !text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
        return Err(wrong());
    }
    for (at, byte) in digest.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).map_err(|_| wrong())?;
    }
    Ok(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_right_wrong_or_not_asked_for() {
        let mut user = User::new("u");
        user.apply_all(&[">one", ">two"]).unwrap();
        assert!(!user.accepts(&digest(b"one")), "the user is off");
        user.apply_all(&["on"]).unwrap();
        for (password, right) in
            [("one", true), ("two", true), ("onE", false), ("", false), ("one\0", false)]
        {
            assert_eq!(user.accepts(&digest(password.as_bytes())), right, "{password}");
        }
        user.apply_all(&["<one"]).unwrap();
        assert!(!user.accepts(&digest(b"one")) && user.accepts(&digest(b"two")));
        user.apply_all(&["nopass"]).unwrap();
        assert!(user.accepts(&digest(b"x")) && user.needs_no_login());
        user.apply_all(&["resetpass"]).unwrap();
        assert!(!user.accepts(&digest(b"x")) && !user.accepts(&digest(b"two")));
        assert!(!User::unknown_user().accepts(&digest(b"")));
    }

    #[test]
    fn an_error_does_not_repeat_a_password() {
        let mut user = User::new("u");
        let too_long = format!(">sec{}", "r".repeat(MAX_RULES_BYTES));
        for rule in ["<secret", &too_long] {
            let error = user.apply_all(&[rule]).unwrap_err();
            assert!(!error.contains("sec"), "{error}");
        }
    }

    /// Rules with names that exist only in Redis are stored unchanged. Rules that Redis rejects are
    /// rejected.
    #[test]
    fn rules_may_name_what_only_redis_has() {
        for rule in [
            "-eval",
            "-script",
            "-script|load",
            "+cluster|info",
            "+@search",
            "-@timeseries",
            "+ft.search",
            "+eval|x",
            "+select|0",
            "+get|x",
            "-georadius",
        ] {
            let mut user = User::new("u");
            user.apply_all(&[rule]).unwrap_or_else(|e| panic!("{rule}: {e}"));
            assert_eq!(user.describe(), format!("off resetchannels -@all {rule}"));
        }
        for (rule, why) in [
            ("+nonsense", "Unknown command or category name in ACL"),
            ("-nonsense", "Unknown command or category name in ACL"),
            ("+@nonsense", "Unknown command or category name in ACL"),
            ("+nonsense|x", "Unknown command or category name in ACL"),
            ("+config|nonsense", "Unknown command or category name in ACL"),
            ("+script|nonsense", "Unknown command or category name in ACL"),
            ("-get|x", "Unknown command or category name in ACL"),
            ("-eval|x", "Unknown command or category name in ACL"),
            ("+get|", "Syntax error"),
            ("+config|get|x", "Allowing first-arg of a subcommand is not supported"),
            ("+get|a|b", "Unknown command or category name in ACL"),
            ("-get|a|b", "Unknown command or category name in ACL"),
        ] {
            let error = User::new("u").apply_all(&[rule]).unwrap_err();
            assert_eq!(error, format!("Error in ACL SETUSER modifier '{rule}': {why}"));
        }
    }

    /// This case is from Redis's test suite.
    #[test]
    fn rights_to_read_and_to_write_one_pattern_are_one_rule() {
        let mut user = User::new("u");
        user.apply_all(&["%R~foo", "%W~bar", "%W~foo", "%R~bar", "%R~read"]).unwrap();
        assert_eq!(user.describe(), "off ~foo ~bar %R~read resetchannels -@all");
    }

    #[test]
    fn a_password_may_have_a_zero_byte() {
        let mut user = User::new("u");
        user.apply_all(&["on", ">abc\0def"]).unwrap();
        let mut same = User::new("u");
        same.apply_all(&["on", &format!("#{}", hex(&digest(b"abc\0def")))]).unwrap();
        assert_eq!(user.describe(), same.describe());
        user.apply_all(&["<abc\0def"]).unwrap();
        assert_eq!(user.describe(), "on resetchannels -@all");
    }

    /// Only a removed channel rule requires a check of the subscriptions.
    #[test]
    fn rules_about_channels_are_compared_as_they_stand() {
        use crate::runtime::pubsub::Kind::{Channel, Pattern, Shard};
        let user = |rules: &str| {
            let mut user = User::new("u");
            user.apply_all(&rules.split(' ').collect::<Vec<_>>()).unwrap();
            user
        };
        for (before, now, less) in [
            ("&a &b", "&b &a &c", false),
            ("&a &b", "&b", true),
            ("&a (&b)", "&b &a", false),
            ("&*", "&a", true),
            ("&a", "&*", false),
            ("&a", "(&*)", false),
            ("&a", "(&a)", false),
            ("resetchannels", "&a", false),
            ("&a", "resetchannels", true),
        ] {
            assert_eq!(user(now).lacks_channel_rule_of(&user(before)), less, "{before} -> {now}");
        }
        let hears = user("&a* (&b)");
        for (kind, name, may) in [
            (Channel, "a1", true),
            (Shard, "a1", true),
            (Pattern, "a1", false),
            (Pattern, "a*", true),
            (Channel, "b", true),
            (Channel, "c", false),
        ] {
            assert_eq!(hears.may_receive(kind, name.as_bytes()), may, "{kind:?} {name}");
        }
    }

    #[test]
    fn a_key_permission_names_each_right_once() {
        for rule in ["%RR~x", "%WWR~x", "%rR~x", "%RWR$x", "%~x", "%R", "%X~x"] {
            assert!(User::new("u").apply_all(&[rule]).is_err(), "{rule}");
        }
        for rule in ["%R~x", "%w~x", "%RW~x", "%wr~x", "%R$x"] {
            assert!(User::new("u").apply_all(&[rule]).is_ok(), "{rule}");
        }
    }

    #[test]
    fn a_user_description_recreates_the_user() {
        for rules in [
            &[
                "on",
                ">p",
                "~k*",
                "%R~r*",
                "$home",
                "%W$like",
                "&ch*",
                "+@read",
                "-@dangerous",
                "+config|get",
                "-get",
            ][..],
            &["+@all", "-@admin", "+acl|whoami", "(~q", "+get)", "(%R~x +@read $post)"],
            &["on", "nopass", "allkeys", "allchannels", "allcommands"],
            &["reset"],
        ] {
            let mut user = User::new("u");
            user.apply_all(rules).unwrap();
            let words = user.describe();
            let mut again = User::new("u");
            again.apply_all(&words.split(' ').collect::<Vec<_>>()).unwrap();
            assert_eq!(again.describe(), words);
        }
    }
}
