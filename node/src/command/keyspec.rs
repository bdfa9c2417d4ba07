//! Key specifications of commands, as in Redis's COMMAND.
//!
//! [`Spec::keys`] determines the positions of the keys. The flags determine how a command uses the
//! keys, unless [`Spec::uses`] overrides the flags.

use crate::command::spec::{KeyArgs, Spec, flag};
use resp::Args;

/// A range of a command's keys and their use.
pub struct KeySpec {
    /// Positions of the keys, as in [`Spec::keys`].
    pub keys: KeyArgs,
    /// `RO`, `RW`, `OW` (overwrite) or `RM` (remove), followed by flags for the access to the
    /// content, separated by spaces.
    pub uses: &'static str,
}

const READ: &str = "RO access";
const UPDATE: &str = "RW update";
const EXCHANGE: &str = "RW access update";
const OVERWRITE: &str = "OW update";

/// Returns the key specifications of a command.
pub fn of(spec: &Spec) -> Vec<KeySpec> {
    let (first, last, step) = match spec.keys {
        KeyArgs::Keys(..) | KeyArgs::Shown => spec.keys.positions(),
        KeyArgs::Streams(_) => return vec![KeySpec { keys: spec.keys, uses: READ }],
        KeyArgs::None | KeyArgs::Ids(..) => return Vec::new(),
    };
    let (one, others) = spec.uses;
    if one != others {
        let rest = KeyArgs::Keys(first + step, last, step);
        return vec![
            KeySpec { keys: KeyArgs::Keys(first, first, 1), uses: one },
            KeySpec { keys: rest, uses: others },
        ];
    }
    let uses = match (spec.has(flag::WRITE), spec.has(flag::READS)) {
        _ if !one.is_empty() => one,
        (false, _) => READ,
        (true, false) => UPDATE,
        (true, true) => EXCHANGE,
    };
    vec![KeySpec { keys: spec.keys, uses }]
}

/// How a request uses its keys, in terms of [`KeySpec::uses`].
pub struct Uses {
    at: usize,
    first: &'static str,
    others: &'static str,
}

impl Uses {
    /// Returns the uses of a request.
    pub fn of(spec: &Spec, args: Args<'_>) -> Uses {
        let at = usize::try_from(spec.keys.positions().0).unwrap_or(0);
        if spec.name == "set" {
            // SET reads the key only with the option GET.
            let gets = args.from(3).iter().any(|word| word.eq_ignore_ascii_case(b"get"));
            let uses = if gets { EXCHANGE } else { OVERWRITE };
            return Uses { at, first: uses, others: uses };
        }
        let specs = of(spec);
        let of = |keys: Option<&KeySpec>| keys.map_or("", |keys| keys.uses);
        Uses { at, first: of(specs.first()), others: of(specs.last()) }
    }

    /// Returns how the key at this position is used.
    pub fn at(&self, position: usize) -> &'static str {
        if position == self.at { self.first } else { self.others }
    }

    /// Whether the request reads, and whether it changes, the content of the key at this position.
    /// The user needs these permissions. An existence check needs neither of them.
    pub(crate) fn needs(&self, position: usize) -> (bool, bool) {
        let uses = self.at(position);
        let has = |word| uses.split(' ').any(|used| used == word);
        (has("access"), ["insert", "update", "delete"].into_iter().any(has))
    }
}
