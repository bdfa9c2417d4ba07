//! Layout check between cluster nodes. Two nodes may have different definitions of a view, action
//! or counter space with the same name. A node refuses a part if the expected layout differs from
//! its own layout, or if its layout changes during the request (`TM.SPACE ALTER`).

use crate::commands::call::{action, counter_space, view};
use crate::commands::cluster::gathering::SHAPE;
use crate::session::Session;
use dataset::engines::Engines;
use node::cluster::{Member, Topology};
use node::command::error::{Printable, Refusal, refuse};
use node::command::spec::{KeyArgs, Of, Outcome, Spec, flag};
use node::command::table::Found;
use node::roles::node::Now;
use resp::Args;

/// Returns the hash of the reply's element layout. Returns `None` if the request alone determines
/// the layout. Fails if the view, action or counter space does not exist.
pub(crate) fn own(spec: &Spec, args: Args<'_>, engines: &Engines) -> Result<Option<u64>, Refusal> {
    let KeyArgs::Ids(of, ..) = spec.keys else { return Ok(None) };
    let name = args.at(1);
    Ok(match of {
        Of::View => {
            let mark = spec.mark(args).map(|at| action(engines, args.at(at))).transpose()?;
            Some(engines.shape_of_view(view(engines, name)?, mark))
        }
        Of::Action => Some(engines.shape_of_action(action(engines, name)?)),
        Of::Rows if spec.has(flag::READONLY) => Some(counter_space(engines, name)?.shape_of_rows()),
        Of::Rows | Of::Pairs | Of::RowsAndPairs => None,
    })
}

#[inline]
pub(crate) fn split<'a>(
    found: Found,
    args: Args<'a>,
    session: &Session,
) -> (Args<'a>, Option<u64>) {
    if session.is_coordinator { split_part(found, args) } else { (args, None) }
}

#[cold]
fn split_part(found: Found, args: Args<'_>) -> (Args<'_>, Option<u64>) {
    let last = args.len().saturating_sub(1);
    let told = args.at(last).strip_prefix(SHAPE).and_then(|bytes| bytes.try_into().ok());
    match (found, told) {
        (Some((_, spec)), Some(told)) if spec.has(flag::PER_ID) => {
            (args.until(last), Some(u64::from_le_bytes(told)))
        }
        _ => (args, None),
    }
}

/// Executes a part of a request if the layout matches the layout that the coordinator expects.
#[inline]
pub(crate) fn execute_part(
    told: Option<u64>,
    spec: &Spec,
    args: Args<'_>,
    session: &mut Session,
    node: Now<'_>,
    work: impl FnOnce(&mut Session) -> Outcome,
) -> Outcome {
    let Some(told) = told else { return work(session) };
    let before = own(spec, args, node.engines())?;
    if before.is_some_and(|own| own != told) {
        return Err(layout_error(spec, args, session));
    }
    work(session)?;
    check_layout(before, spec, args, node)
}

/// Fails if the layout changed during the request.
pub(super) fn check_layout(
    shape: Option<u64>,
    spec: &Spec,
    args: Args<'_>,
    node: Now<'_>,
) -> Outcome {
    if own(spec, args, node.engines())? == shape {
        return Ok(());
    }
    Err(refuse!("ERR '{}' changed during the request: retry it", Printable(args.at(1))))
}

#[cold]
fn layout_error(spec: &Spec, args: Args<'_>, session: &Session) -> Refusal {
    let what = match spec.keys {
        KeyArgs::Ids(Of::View, ..) => "a different view",
        KeyArgs::Ids(Of::Action, ..) => "a different action",
        _ => "different counters in",
    };
    let beside = spec
        .mark(args)
        .map_or(String::new(), |action| format!(", or action '{}',", Printable(args.at(action))));
    let own = session.topology.as_deref().and_then(Topology::own).map(Member::address);
    refuse!(
        "ERR {} has {what} '{}'{beside} than this node",
        own.unwrap_or_default(),
        Printable(args.at(1))
    )
}
