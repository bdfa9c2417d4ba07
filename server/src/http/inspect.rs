//! `/api/page` returns the result of FEED.GET, with the source of each value.

use super::answer::{Answer, json, wrong};
use super::guard::{AccessPolicy, AdminRequest};
use dataset::cold;
use dataset::cold::fetch::ColdReads;
use dataset::engines::{CounterSpace, Engines, Page, View};
use hyper::StatusCode;
use node::roles::node::Node;
use phantom::{Answer as Flag, Member};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

const MAX_IDS: usize = 200;

#[derive(Default)]
struct Query {
    view: String,
    viewer: String,
    ids: Vec<u64>,
}

impl Query {
    /// Parses `view=home&viewer=42&ids=1,2,3`; ids are separated by commas or spaces.
    fn parse(text: &str) -> Result<Query, String> {
        let mut query = Query::default();
        for (key, value) in form_urlencoded::parse(text.as_bytes()) {
            match &*key {
                "view" => query.view = value.into_owned(),
                "viewer" => query.viewer = value.into_owned(),
                "ids" => {
                    let words = value.split([',', ' ', '\n']).filter(|word| !word.is_empty());
                    for word in words {
                        let id = resp::natural(word.as_bytes());
                        query.ids.push(id.ok_or_else(|| format!("'{word}' is not a valid id"))?);
                    }
                }
                other => {
                    return Err(format!("unknown parameter '{other}': use view, viewer and ids"));
                }
            }
        }
        if query.viewer.is_empty() || query.ids.is_empty() {
            return Err("give a viewer and at least one id".to_owned());
        }
        if query.ids.len() > MAX_IDS {
            return Err(format!("at most {MAX_IDS} ids are allowed"));
        }
        Ok(query)
    }
}

pub(super) async fn page(
    access_policy: &AccessPolicy,
    node: Arc<Node>,
    asked: &AdminRequest<'_>,
    query: Option<&str>,
) -> Answer {
    let query = match Query::parse(query.unwrap_or_default()) {
        Ok(query) => query,
        Err(why) => return wrong(StatusCode::BAD_REQUEST, &why),
    };
    let ids: Vec<String> = query.ids.iter().map(u64::to_string).collect();
    let mut command = vec!["FEED.GET", &query.view, &query.viewer];
    command.extend(ids.iter().map(String::as_str));
    if let Err(refusal) = access_policy.check_access(&node, asked, &command).await {
        return refusal;
    }
    let Some(engines) = node.loaded() else {
        return wrong(StatusCode::SERVICE_UNAVAILABLE, "the server is loading its data");
    };
    let Some(view) = engines.view(query.view.as_bytes()) else {
        return wrong(StatusCode::BAD_REQUEST, &format!("no such view '{}'", query.view));
    };
    let viewer = Member::parse(query.viewer.as_bytes());
    let mut fetching = ColdReads::default();
    for &id in &query.ids {
        for space in engines.sources(view).filter(|space| space.is_cold(id)) {
            space.cold().ask(id, &mut fetching);
        }
        engines.flags(view).for_each(|space| space.ask((id, &viewer), false, &mut fetching));
    }
    // There must be no `await` between `pin` and `unpin`, because pinned rows are thread-local.
    if !fetching.is_ready() {
        cold::pin(engines.cold.fetch(fetching).await);
    }
    let answer = json(&read(&engines, view, &viewer, &query));
    cold::unpin();
    answer
}

fn read(engines: &Engines, view: &View, viewer: &Member<'_>, query: &Query) -> Value {
    let mut page = Page::default();
    let read = engines.feed_get(view, viewer, &query.ids, &mut page);
    let failed = read.err().map_or_else(Vec::new, Vec::from);
    let unreadable: BTreeMap<u64, String> =
        failed.into_iter().map(|failed| (failed.id, failed.why.to_string())).collect();
    let columns = engines.columns(view);
    let rows = query.ids.iter().enumerate().map(|(index, &id)| {
        // `feed_get` has already reported unreadable rows.
        let origin = |space: &CounterSpace| space.origin(id).ok().flatten();
        let sources: Vec<_> = engines.sources(view).map(|space| (space, origin(space))).collect();
        let counters = columns.iter().enumerate().map(|(column, name)| {
            let (space, field) = name.split_once('.').unwrap_or((name, ""));
            let source = sources.iter().find(|(source, _)| source.name() == space);
            let from = source.map_or("none", |(space, origin)| {
                origin_of(origin.as_ref(), space.index_of(field.as_bytes()))
            });
            json!({ "value": page.counter(index, column).to_string(), "from": from })
        });
        let flags = engines.flags(view).enumerate().map(|(flag, space)| {
            let value = match page.flag(index, flag) {
                Flag::Yes => Some(1),
                Flag::No => Some(0),
                Flag::Unknown => None,
            };
            json!({ "value": value, "from": flag_from(space.origin(id, viewer)) })
        });
        json!({
            "id": id.to_string(),
            "counters": counters.collect::<Vec<_>>(),
            "flags": flags.collect::<Vec<_>>(),
            "error": unreadable.get(&id),
        })
    });
    let rows: Vec<Value> = rows.collect();
    let flags: Vec<&str> = engines.flags(view).map(|space| space.name()).collect();
    json!({
        "view": query.view,
        "viewer": query.viewer,
        "columns": columns,
        "flags": flags,
        "rows": rows,
    })
}

/// Name of a counter's source.
fn origin_of(origin: Option<&counter::Origin>, field: Option<usize>) -> &'static str {
    use counter::Origin::{Below, Outlier, Table};
    match origin {
        None => "none",
        Some(Outlier) => "outlier",
        Some(Below) => "cold",
        Some(Table { in_aux, .. }) if field.is_some_and(|field| in_aux[field]) => "aux",
        Some(Table { is_extended: true, .. }) => "extend",
        Some(Table { .. }) => "bits",
    }
}

/// Name of a flag's source.
fn flag_from(origin: phantom::Origin) -> &'static str {
    use phantom::Origin::{BelowHorizon, Filter, Outlier, Unset};
    match origin {
        BelowHorizon => "horizon",
        Outlier => "outlier",
        Unset => "unset",
        Filter { is_cold: true, .. } => "cold",
        Filter { .. } => "filter",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_read_or_its_error_told() {
        let query = Query::parse("view=home&viewer=a%20b&ids=1%2C2+3").unwrap();
        assert_eq!((&*query.view, &*query.viewer, &query.ids[..]), ("home", "a b", &[1, 2, 3][..]));
        let why = |text: &str| Query::parse(text).err().unwrap_or_default();
        assert_eq!(why("view=home&viewer=1&ids=1,-2"), "'-2' is not a valid id");
        assert_eq!(why("view=home&ids=1"), "give a viewer and at least one id");
        assert_eq!(why("nope=1"), "unknown parameter 'nope': use view, viewer and ids");
        let many: Vec<String> = (0..201).map(|id| id.to_string()).collect();
        assert_eq!(why(&format!("viewer=1&ids={}", many.join(","))), "at most 200 ids are allowed");
    }
}
