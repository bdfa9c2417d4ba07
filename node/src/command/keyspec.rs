//! What commands do with their keys, in the words of Redis's COMMAND: key specifications.
//!
//! Where the keys are follows from [`Spec::keys`]; what is done with them from the flags, unless
//! [`Spec::uses`] says it.

use crate::command::spec::{KeyArgs, Spec, flag};
use resp::Args;

/// Some of a command's keys, and what is done with them.
pub struct KeySpec {
    /// As in [`Spec::keys`].
    pub keys: KeyArgs,
    /// `RO`, `RW`, `OW` (overwritten) or `RM` (removed), then what of their content is touched,
    /// parted by spaces.
    pub uses: &'static str,
}

const READ: &str = "RO access";
const UPDATE: &str = "RW update";
const EXCHANGE: &str = "RW access update";
const OVERWRITE: &str = "OW update";

/// The key specifications of a command.
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

/// What a request does with its keys, in the words of [`KeySpec::uses`].
pub struct Uses {
    /// Where the first key stands.
    at: usize,
    first: &'static str,
    others: &'static str,
}

impl Uses {
    /// Of a request of this command.
    pub fn of(spec: &Spec, args: Args<'_>) -> Uses {
        let at = usize::try_from(spec.keys.positions().0).unwrap_or(0);
        if spec.name == "set" {
            // Whether SET also reads depends on its options.
            let gets = args.from(3).iter().any(|word| word.eq_ignore_ascii_case(b"get"));
            let uses = if gets { EXCHANGE } else { OVERWRITE };
            return Uses { at, first: uses, others: uses };
        }
        let specs = of(spec);
        let of = |keys: Option<&KeySpec>| keys.map_or("", |keys| keys.uses);
        Uses { at, first: of(specs.first()), others: of(specs.last()) }
    }

    /// What is done with the key at this position.
    pub fn at(&self, position: usize) -> &'static str {
        if position == self.at { self.first } else { self.others }
    }

    /// Whether the content of the key at this position is read, and whether it is changed: the
    /// rights that this needs. Neither where it is only looked whether something is there.
    pub(crate) fn needs(&self, position: usize) -> (bool, bool) {
        let uses = self.at(position);
        let has = |word| uses.split(' ').any(|used| used == word);
        (has("access"), ["insert", "update", "delete"].into_iter().any(has))
    }
}
