//! Options of XREAD and XREADGROUP, which precede the keys.

use crate::command::error::{Refusal, refuse};
use crate::command::spec::Spec;
use resp::Args;

/// Options of XREAD and XREADGROUP.
#[derive(Default)]
pub struct Options<'a> {
    /// Value of the option COUNT.
    pub count: Option<&'a [u8]>,
    /// Value of the option BLOCK, in milliseconds.
    pub block: Option<&'a [u8]>,
    /// Group and consumer in the option GROUP.
    pub group: Option<(&'a [u8], &'a [u8])>,
    /// Whether the option NOACK is present.
    pub no_ack: bool,
    /// Position and number of the keys.
    pub keys: (usize, usize),
}

impl<'a> Options<'a> {
    /// Parses the options as Redis does. This is the only code that determines which arguments are
    /// keys.
    pub fn read(spec: &Spec, args: Args<'a>) -> Result<Options<'a>, Refusal> {
        let name = spec.name;
        let is_group = name == "xreadgroup";
        let of_group = |option: &str| {
            refuse!(
                "ERR The {option} option is only supported by XREADGROUP. You called XREAD instead."
            )
        };
        let mut options = Options::default();
        let mut at = 1;
        while at < args.len() {
            let (word, more) = (args.at(at), args.len() - at - 1);
            let is =
                |option: &[u8], needs: usize| word.eq_ignore_ascii_case(option) && more >= needs;
            if is(b"block", 1) {
                options.block = Some(args.at(at + 1));
                at += 2;
            } else if is(b"count", 1) {
                options.count = Some(args.at(at + 1));
                at += 2;
            } else if is(b"streams", 1) {
                if more % 2 != 0 {
                    let symbol = if is_group { '>' } else { '$' };
                    return Err(refuse!(
                        "ERR Unbalanced '{name}' list of streams: for each stream key an ID or \
                         '{symbol}' must be specified."
                    ));
                }
                options.keys = (at + 1, more / 2);
                break;
            } else if is(b"group", 2) {
                if !is_group {
                    return Err(of_group("GROUP"));
                }
                options.group = Some((args.at(at + 1), args.at(at + 2)));
                at += 3;
            } else if is(b"noack", 0) {
                if !is_group {
                    return Err(of_group("NOACK"));
                }
                options.no_ack = true;
                at += 1;
            } else {
                return Err(Refusal::SYNTAX);
            }
        }
        if options.keys.1 == 0 {
            return Err(Refusal::SYNTAX);
        }
        if is_group && options.group.is_none() {
            return Err(refuse!("ERR Missing GROUP option for XREADGROUP"));
        }
        Ok(options)
    }
}
