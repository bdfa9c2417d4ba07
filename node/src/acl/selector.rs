//! ACL selector: a bit for each command and subcommand, and globs for keys, names and channels.

use crate::acl::category::{CATEGORIES, of as categories};
use crate::acl::redis_names;
use crate::acl::redis_names::MODULE_CATEGORIES;
use crate::command::among;
use crate::command::footprint::key_positions;
use crate::command::keyspec::Uses;
use crate::command::spec::{KeyArgs, Spec, flag};
use crate::command::streams;
use crate::command::table;
use crate::runtime::glob;
use crate::runtime::pubsub;
use dataset::engines::{Engines, KeyRef};
use resp::Args;
use std::cell::LazyCell;
use std::fmt::Write as _;

/// A request to be checked.
pub struct Request<'a> {
    /// Command of the request.
    pub spec: &'static Spec,
    /// Index among all commands and subcommands ([`table::bit_of`]).
    pub number: usize,
    /// All arguments of the request.
    pub args: Args<'a>,
}

impl Request<'_> {
    /// Whether every client may send the command, for example AUTH.
    pub(super) fn applies_to_all_users(&self) -> bool {
        self.spec.has(flag::NO_AUTH)
    }

    pub(crate) fn name(&self) -> &'static str {
        self.spec.name
    }

    /// Returns the index of the command that an option runs, and the position of that command's
    /// first argument: FEED.ACT and the action for `FEED.GET ... MARK`, PH.ADD and the space for
    /// `PH.UNSEEN ... MARK`. The user needs permission for that command, too.
    pub(super) fn option_command(&self) -> Option<(usize, usize)> {
        let first = match self.spec.mark(self.args) {
            Some(action) => action,
            None if self.spec.sets_flags(self.args) => 1,
            None => return None,
        };
        Some((table::numbers_named(self.marks_with()).start, first))
    }

    /// Returns the command that the option MARK runs.
    fn marks_with(&self) -> &'static str {
        if self.spec.name == "feed.get" { "feed.act" } else { "ph.add" }
    }
}

/// Part of a request that is denied. The number is the position of the argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Denied {
    Command,
    /// A command that an option runs ([`Request::option_command`]).
    Option,
    Key(usize),
    /// A space, view or action.
    Name(usize),
    Channel(usize),
}

impl Denied {
    /// Returns the text of Redis's NOPERM error.
    pub(super) fn words(self, request: &Request<'_>) -> String {
        match self {
            Denied::Command => format!("run the '{}' command", request.name()),
            Denied::Option => format!("run the '{}' command", request.marks_with()),
            Denied::Key(_) => "access one of the keys used as arguments".to_owned(),
            Denied::Name(_) => {
                "access one of the spaces, views or actions used as arguments".to_owned()
            }
            Denied::Channel(_) => "access one of the channels used as arguments".to_owned(),
        }
    }

    /// Returns the object for ACL LOG: the command or the argument.
    pub(super) fn object<'a>(self, request: &Request<'a>) -> &'a [u8] {
        match self {
            Denied::Command => request.name().as_bytes(),
            Denied::Option => request.marks_with().as_bytes(),
            Denied::Key(at) | Denied::Name(at) | Denied::Channel(at) => request.args.at(at),
        }
    }

    /// Returns the text for ACL DRYRUN.
    pub(crate) fn dry_words(self, request: &Request<'_>) -> String {
        let object = |at| String::from_utf8_lossy(request.args.at(at)).into_owned();
        match self {
            Denied::Command | Denied::Option => self.words(request),
            Denied::Key(at) => format!("access the '{}' key", object(at)),
            Denied::Name(at) => format!("access the space, view or action '{}'", object(at)),
            Denied::Channel(at) => format!("access the '{}' channel", object(at)),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Commands {
    bits: Box<[u64]>,
}

const UNKNOWN: &str = "Unknown command or category name in ACL";

impl Commands {
    pub(super) fn none() -> Commands {
        Commands { bits: vec![0; table::bits().div_ceil(64)].into() }
    }

    pub(super) fn every() -> Commands {
        Commands { bits: vec![u64::MAX; table::bits().div_ceil(64)].into() }
    }

    #[inline]
    pub(super) fn has(&self, number: usize) -> bool {
        self.bits.get(number / 64).is_some_and(|word| word >> (number % 64) & 1 == 1)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bits.iter().all(|word| *word == 0)
    }

    fn set(&mut self, number: usize, on: bool) {
        let (word, bit) = (&mut self.bits[number / 64], 1 << (number % 64));
        if on { *word |= bit } else { *word &= !bit }
    }

    /// Sets or clears a command with its subcommands, a subcommand (`config|get`), or a category
    /// (`@read`). Ignores names that only Redis has.
    pub(super) fn set_named(&mut self, name: &str, on: bool) -> Result<(), &'static str> {
        if let Some(category) = name.strip_prefix('@') {
            let category = category.to_ascii_lowercase();
            if category == "all" {
                *self = if on { Commands::every() } else { Commands::none() };
                return Ok(());
            }
            if MODULE_CATEGORIES.contains(&category.as_str()) {
                return Ok(());
            }
            if !CATEGORIES.contains(&category.as_str()) {
                return Err(UNKNOWN);
            }
            for (number, spec) in table::with_numbers() {
                if categories(spec).contains(&category.as_str()) {
                    self.set(number, on);
                }
            }
            return Ok(());
        }
        if name.matches('|').count() > 1 {
            let of = name.rsplit_once('|').map_or("", |(of, _)| of);
            let is_one = !table::numbers_named(of).is_empty()
                || redis_names::is_known(&of.to_ascii_lowercase());
            let why = "Allowing first-arg of a subcommand is not supported";
            return Err(if is_one { why } else { UNKNOWN });
        }
        let found = table::numbers_named(name);
        if found.is_empty() && !redis_names::is_known(&name.to_ascii_lowercase()) {
            return Err(UNKNOWN);
        }
        found.for_each(|number| self.set(number, on));
        Ok(())
    }
}

/// A glob with its permissions.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pattern {
    glob: String,
    read: bool,
    write: bool,
}

impl Pattern {
    /// Adds the pattern to a list and merges equal globs. As in Redis, `%R~a %W~a` equals `~a`.
    fn grant(self, list: &mut Vec<Pattern>) {
        match list.iter_mut().find(|known| known.glob == self.glob) {
            Some(known) => {
                known.read |= self.read;
                known.write |= self.write;
            }
            None => list.push(self),
        }
    }

    /// Whether the pattern allows `text`. `needs` returns whether the request reads the object, and
    /// whether the request writes the object.
    fn allows(&self, text: &[u8], needs: impl Fn() -> (bool, bool)) -> bool {
        let suffices = |(read, write): (bool, bool)| (self.read || !read) && (self.write || !write);
        glob::matches(self.glob.as_bytes(), text, false)
            && (self.read && self.write || suffices(needs()))
    }

    fn describe(&self, mark: char, out: &mut String) {
        let _ = match (self.read, self.write) {
            (true, true) => write!(out, "{mark}{} ", self.glob),
            (true, false) => write!(out, "%R{mark}{} ", self.glob),
            _ => write!(out, "%W{mark}{} ", self.glob),
        };
    }
}

/// A set of commands with the keys, names and channels that they may touch.
#[derive(Clone, Debug)]
pub struct Selector {
    commands: Commands,
    /// Whether the rules start from all commands, including commands of future releases, or from no
    /// command.
    all_commands: bool,
    /// Allowed first arguments, in lower case, of commands that are not in `commands`
    /// (`+select|0`).
    first_args: Vec<(usize, String)>,
    /// Rules that produced `commands`, without overridden rules.
    rules: Vec<String>,
    all_keys: bool,
    keys: Vec<Pattern>,
    names: Vec<Pattern>,
    all_channels: bool,
    channels: Vec<String>,
}

const AFTER_ALL_KEYS: &str = "Adding a pattern after the * pattern (or the 'allkeys' flag) is not \
                              valid and does not have any effect. Try 'resetkeys' to start with an \
                              empty list of patterns";
const AFTER_ALL_CHANNELS: &str = "Adding a pattern after the * pattern (or the 'allchannels' flag) \
                                  is not valid and does not have any effect. Try 'resetchannels' \
                                  to start with an empty list of channels";

impl Selector {
    pub(super) fn new() -> Selector {
        Selector {
            commands: Commands::none(),
            all_commands: false,
            first_args: Vec::new(),
            rules: Vec::new(),
            all_keys: false,
            keys: Vec::new(),
            names: Vec::new(),
            all_channels: false,
            channels: Vec::new(),
        }
    }

    pub(super) fn is_everything(&self) -> bool {
        self.all_commands && self.rules.is_empty() && self.all_keys && self.all_channels
    }

    pub(super) fn apply(&mut self, rule: &str) -> Result<(), &'static str> {
        let lower = rule.to_ascii_lowercase();
        match lower.as_str() {
            "allcommands" | "+@all" => self.all_or_none(true),
            "nocommands" | "-@all" => self.all_or_none(false),
            "allkeys" => self.allow_all_keys(),
            "resetkeys" => {
                self.keys.clear();
                self.all_keys = false;
            }
            "resetspaces" => self.names.clear(),
            "allchannels" | "&*" => {
                self.channels.clear();
                self.all_channels = true;
            }
            "resetchannels" => {
                self.channels.clear();
                self.all_channels = false;
            }
            _ => match rule.as_bytes()[0] {
                b'~' | b'%' | b'$' => return self.allow_pattern(rule),
                b'&' => {
                    if self.all_channels {
                        return Err(AFTER_ALL_CHANNELS);
                    }
                    self.channels.retain(|c| *c != rule[1..]);
                    self.channels.push(rule[1..].to_owned());
                }
                sign @ (b'+' | b'-') => {
                    self.apply_command_rule(&lower[1..], sign == b'+')?;
                    self.record_rule(&lower);
                }
                _ => return Err("Syntax error"),
            },
        }
        Ok(())
    }

    /// Applies `+name` or `-name`; `name` is in lower case.
    fn apply_command_rule(&mut self, name: &str, on: bool) -> Result<(), &'static str> {
        // Whether this server has the command or subcommand.
        let is_ours = |name: &str| !table::numbers_named(name).is_empty();
        let first_arg = name
            .split_once('|')
            .filter(|(_, arg)| !name.starts_with('@') && !is_ours(name) && !arg.contains('|'));
        let Some((command, arg)) = first_arg else {
            self.commands.set_named(name, on)?;
            // A rule about the whole command overrides rules about its first arguments.
            let (named, category) = (table::numbers_named(name), name.strip_prefix('@'));
            let is_in = |number: usize, category: &str| {
                let spec = table::with_numbers().nth(number);
                spec.is_some_and(|(_, spec)| categories(spec).contains(&category))
            };
            self.first_args.retain(|(number, _)| {
                !named.contains(number) && !category.is_some_and(|c| is_in(*number, c))
            });
            return Ok(());
        };
        let number = table::numbers_named(command);
        if on && arg.is_empty() {
            return Err("Syntax error");
        }
        // Redis accepts any first argument for DEBUG.
        let takes_any = if command == "debug" {
            true
        } else if number.is_empty() {
            redis_names::takes_first_arg(command)
        } else {
            // Rules cannot name first arguments of a command with subcommands.
            number.len() == 1
        };
        if !(redis_names::is_known(name) || on && takes_any) {
            return Err(UNKNOWN);
        }
        if number.len() == 1 {
            let rule = (number.start, arg.to_owned());
            self.first_args.retain(|other| *other != rule);
            self.first_args.extend(on.then_some(rule));
        }
        Ok(())
    }

    /// Whether the command with this index is allowed with this first argument.
    fn runs(&self, number: usize, first_arg: &[u8]) -> bool {
        let allows = |(other, arg): &(usize, String)| {
            *other == number && arg.as_bytes().eq_ignore_ascii_case(first_arg)
        };
        self.commands.has(number) || self.first_args.iter().any(allows)
    }

    fn all_or_none(&mut self, all: bool) {
        self.commands = if all { Commands::every() } else { Commands::none() };
        self.all_commands = all;
        self.first_args.clear();
        self.rules.clear();
    }

    fn allow_all_keys(&mut self) {
        self.keys.clear();
        self.all_keys = true;
    }

    /// Applies `~keys` or `$names`, with an optional prefix `%R`, `%W` or `%RW`.
    fn allow_pattern(&mut self, rule: &str) -> Result<(), &'static str> {
        let (mut read, mut write) = (true, true);
        let mut rest = rule;
        if let Some(flags) = rule.strip_prefix('%') {
            let at = flags.find(['~', '$']).filter(|at| *at > 0).ok_or("Syntax error")?;
            let (flags, pattern) = flags.split_at(at);
            // As in Redis, each letter may occur at most once.
            let (reads, writes) =
                (flags.matches(['r', 'R']).count(), flags.matches(['w', 'W']).count());
            if reads > 1 || writes > 1 || reads + writes < flags.len() {
                return Err("Syntax error");
            }
            (read, write, rest) = (reads > 0, writes > 0, pattern);
        }
        if rest == "~*" && read && write {
            self.allow_all_keys();
            return Ok(());
        }
        let pattern = Pattern { glob: rest[1..].to_owned(), read, write };
        if rest.starts_with('~') && self.all_keys {
            return Err(AFTER_ALL_KEYS);
        }
        let list = if rest.starts_with('~') { &mut self.keys } else { &mut self.names };
        pattern.grant(list);
        Ok(())
    }

    /// Updates the rules that contain the old name of a renamed space, without wildcards. If a view
    /// or action still has the old name, `stays` returns true, and the old rule also remains.
    pub(super) fn follow_renames(
        &mut self,
        renamed: &[(String, String)],
        stays: &dyn Fn(&str) -> bool,
    ) {
        for mut pattern in std::mem::take(&mut self.names) {
            if let Some((was, name)) = renamed.iter().find(|(was, _)| *was == pattern.glob) {
                if stays(was) {
                    pattern.clone().grant(&mut self.names);
                }
                pattern.glob.clone_from(name);
            }
            pattern.grant(&mut self.names);
        }
    }

    /// Records a rule. The new rule replaces earlier rules about the same command and its
    /// subcommands, or about the same category.
    fn record_rule(&mut self, rule: &str) {
        let about = &rule[1..];
        let replaced = |old: &String| {
            old[1..]
                .strip_prefix(about)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('|'))
        };
        self.rules.retain(|old| !replaced(old));
        self.rules.push(rule.to_owned());
    }

    /// Returns the rules about commands.
    pub fn command_rules(&self) -> String {
        let mut out = if self.all_commands { "+@all" } else { "-@all" }.to_owned();
        for rule in &self.rules {
            let _ = write!(out, " {rule}");
        }
        out
    }

    /// Returns the patterns of keys.
    pub fn key_rules(&self) -> String {
        let mut out = if self.all_keys { "~* ".to_owned() } else { String::new() };
        self.keys.iter().for_each(|p| p.describe('~', &mut out));
        self.names.iter().for_each(|p| p.describe('$', &mut out));
        out.trim_end().to_owned()
    }

    /// Returns the patterns of channels.
    pub fn channel_rules(&self) -> String {
        if self.all_channels {
            return "&*".to_owned();
        }
        self.channels.iter().map(|c| format!("&{c}")).collect::<Vec<_>>().join(" ")
    }

    /// Returns all rules as ACL LIST shows them.
    pub(super) fn describe(&self) -> String {
        let mut out = self.key_rules();
        if !out.is_empty() {
            out.push(' ');
        }
        if !self.all_channels {
            out += "resetchannels ";
        }
        let channels = self.channel_rules();
        if !channels.is_empty() {
            let _ = write!(out, "{channels} ");
        }
        out + &self.command_rules()
    }

    /// Checks whether the selector allows a request.
    pub(super) fn check(
        &self,
        request: &Request<'_>,
        engines: Option<&Engines>,
    ) -> Result<(), Denied> {
        let (spec, args) = (request.spec, request.args);
        if !request.applies_to_all_users() && !self.runs(request.number, args.at(1)) {
            return Err(Denied::Command);
        }
        if let Some((number, action)) = request.option_command()
            && !self.runs(number, args.at(action))
        {
            return Err(Denied::Option);
        }
        if !self.all_keys {
            let uses = LazyCell::new(|| Uses::of(spec, args));
            let may = |at: &usize| self.allows_key(spec, args.at(*at), || uses.needs(*at), engines);
            if let Some(at) = key_positions(spec, args).find(|at| !may(at)) {
                return Err(Denied::Key(at));
            }
            // A subcommand's name or a key precedes the space's name.
            let is_later = spec.name.contains('|') || spec.keys == KeyArgs::Shown;
            let first = 1 + usize::from(is_later);
            let write = spec.has(flag::WRITE);
            let needs = || (!write || spec.has(flag::READS), write || spec.sets_flags(args));
            // TM.SPACE RENAME needs permission for both names, because it also renames the space in
            // rules.
            let names = first..first + 1 + usize::from(spec.name == "tm.space|rename");
            let mut names = names.filter(|at| spec.has(flag::NAMED) && *at < args.len());
            if let Some(at) = names.find(|at| !self.allows_name(args.at(*at), needs)) {
                return Err(Denied::Name(at));
            }
            if let Some(at) = spec.mark(args)
                && !self.allows_name(args.at(at), || (false, true))
            {
                return Err(Denied::Name(at));
            }
            let mut among = among::spaces(args);
            if let Some(at) = among.find(|at| !self.allows_name(args.at(*at), || (true, false))) {
                return Err(Denied::Name(at));
            }
        }
        if !self.all_channels
            && let Some(at) = channel_positions(spec, args)
                .find(|at| !self.allows_channel(args.at(*at), spec.name == "psubscribe"))
        {
            return Err(Denied::Channel(at));
        }
        Ok(())
    }

    fn allows_key(
        &self,
        spec: &Spec,
        key: &[u8],
        needs: impl Fn() -> (bool, bool),
        engines: Option<&Engines>,
    ) -> bool {
        if self.keys.iter().any(|p| p.allows(key, &needs)) {
            return true;
        }
        // A pattern for a space allows all its keys and its stream of changes.
        if let Some(space) = streams::space_in(key) {
            return self.names.iter().any(|p| p.allows(space, &needs));
        }
        let space = match engines.and_then(|e| e.resolve_for(spec.is_about_pairs(), key)) {
            Some(KeyRef::Row { space, .. } | KeyRef::Cell { space, .. }) => space.name(),
            Some(KeyRef::Pair { space, .. }) => space.name(),
            _ => return false,
        };
        self.names.iter().any(|p| p.allows(space.as_bytes(), &needs))
    }

    /// Whether a single pattern allows reading all keys with this prefix.
    pub(super) fn reads_all_with(&self, prefix: &[u8]) -> bool {
        let covers = |pattern: &Pattern| {
            let start = pattern.glob.strip_suffix('*');
            pattern.read
                && start.is_some_and(|start| {
                    !start.contains(['*', '?', '[', '\\']) && prefix.starts_with(start.as_bytes())
                })
        };
        self.all_keys || self.keys.iter().any(covers)
    }

    fn allows_name(&self, name: &[u8], needs: impl Fn() -> (bool, bool)) -> bool {
        let all = |p: &&Pattern| p.glob == "*";
        self.names.iter().chain(self.keys.iter().filter(all)).any(|p| p.allows(name, &needs))
    }

    pub(super) fn may_receive(&self, kind: pubsub::ChannelKind, name: &[u8]) -> bool {
        self.all_channels || self.allows_channel(name, kind == pubsub::ChannelKind::Pattern)
    }

    pub(super) fn allows_all_channels(&self) -> bool {
        self.all_channels
    }

    pub(super) fn channels(&self) -> &[String] {
        &self.channels
    }

    /// Whether a client may use a channel. A pattern of PSUBSCRIBE must equal one of the selector's
    /// patterns, since the channels that it will match are unknown.
    fn allows_channel(&self, channel: &[u8], is_pattern: bool) -> bool {
        let matches = |own: &String| {
            if is_pattern {
                own.as_bytes() == channel
            } else {
                glob::matches(own.as_bytes(), channel, false)
            }
        };
        self.channels.iter().any(matches)
    }
}

/// Returns the positions of the channels in a request. Unsubscribing is always allowed.
fn channel_positions(spec: &Spec, args: Args<'_>) -> std::ops::Range<usize> {
    match spec.name {
        "publish" | "spublish" => 1..2.min(args.len()),
        "subscribe" | "psubscribe" | "ssubscribe" => 1..args.len(),
        _ => 0..0,
    }
}
