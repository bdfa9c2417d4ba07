//! Tests `node/src/command/footprint.rs` with the commands of this server.

use crate::commands::families::install;
use dataset::catalogue::Catalogue;
use dataset::commit::Durability;
use dataset::engines::Engines;
use dataset::options::Options;
use node::command::footprint::{Footprint, Reach, Touch};
use node::command::spec::{ALL_KEYS, KeyArgs};
use node::command::table::find;
use phantom::Member;
use resp::RequestQueue;
use std::sync::Arc;

/// Formats a touched item: `post 7` is a row, `liked 7/42` a pair, `home 7/42` an entry of a page.
fn text(touch: &Touch<'_>) -> String {
    let member = |member: &Member<'_>| match member {
        Member::Number(number) => number.to_string(),
        Member::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
    };
    match touch {
        Touch::Row(space, id) => format!("{} {id}", space.name()),
        Touch::Pair(space, id, of) => {
            format!("{} {id}/{}", space.name(), of.as_ref().map_or("*".into(), member))
        }
        Touch::Shown(view, id, viewer) => format!("{} {id}/{}", view.name(), member(viewer)),
    }
}

#[test]
fn a_request_touches_what_its_keys_and_ids_name() {
    install();
    let options = Options::default();
    let catalogue = Catalogue::default().completed(&options);
    let engines =
        Engines::new(&options, &catalogue, Arc::new(Durability::new(options.fsync))).unwrap();
    let max = u64::MAX;
    for (request, touched, marked) in [
        ("HGET post:7 like", "post 7", ""),
        ("MGET post:7:like post:8:read", "post 7, post 8", ""),
        ("DEL post:7 nothing:8 post:9", "post 7, post 9", ""),
        ("FEED.ROW post:7 home 42", "home 7/42", ""),
        ("FEED.ROW post:7 nothing 42", "", ""),
        ("FEED.ROW liked:7 home 42", "", ""),
        ("SADD liked:7 1 x", "liked 7/1, liked 7/x", ""),
        ("EXISTS liked:7 post:7", "liked 7/*, post 7", ""),
        ("CNT.GET post 7 x 8", "post 7, post 8", ""),
        ("TM.FORGET post 7", "post 7, liked 7/*, reposted 7/*, read 7/*", ""),
        ("TM.FORGET liked 7 8", "liked 7/*, liked 8/*", ""),
        ("CNT.INCRBY post 7 like 9", "post 7", ""),
        ("CNT.MINCRBY post 7 like 9 8 like 9", "post 7, post 8", ""),
        ("CNT.MINCRBY post 7 like 9 8 like 9 TOKEN 9", "post 7, post 8", ""),
        ("CNT.HINCRBY post:7 like 9 TOKEN 9", "post 7", ""),
        ("CNT.GET nothing 7", "", ""),
        ("PH.ADD liked 42 7 8", "liked 7/42, liked 8/42", ""),
        ("FEED.ACT like 42 7", "liked 7/42, post 7", ""),
        ("FEED.GET home 42 7 8 BINARY", "home 7/42, home 8/42", ""),
        ("FEED.GET home 42 7 MARK read", "home 7/42", "read 7/42, post 7"),
        ("FEED.GET home 42 7 MARK", "home 7/42", ""),
        ("FEED.GET home 42 7 EXACT AMONG liked 8 MARK read", "home 7/42", ""),
        ("FEED.GET home 42 7 MARK read AMONG liked 8", "home 7/42", "read 7/42, post 7"),
        ("FEED.GET home 42 7 MARK AMONG", "home 7/42", ""),
        ("FEED.GET home 42 18446744073709551615", &format!("home {max}/42"), ""),
        ("FEED.GET home 42 18446744073709551616", "", ""),
        ("INFO", "", ""),
    ] {
        let mut kept = RequestQueue::default();
        kept.push_words(&request.split(' ').collect::<Vec<_>>());
        let args = kept.iter().next().unwrap();
        let (_, spec) = find(args.at(0)).unwrap();
        let footprint = Footprint::new(spec, args, &engines);
        let all = |footprint: &Footprint<'_>| {
            let (mut all, mut ids) = (Vec::new(), Vec::new());
            footprint.each(|_, touch| all.push((touch.id(), text(&touch))));
            let _ = footprint.ids(|id| ids.push(id));
            let touched: Vec<u64> = all.iter().map(|(id, _)| *id).collect();
            assert!(touched.iter().all(|id| ids.contains(id)), "{request}: {ids:?}");
            all.into_iter().map(|(_, text)| text).collect::<Vec<_>>()
        };
        let touches = all(&footprint);
        assert_eq!(touches.join(", "), touched, "{request}");
        let marks = footprint.marked().map(|marked| all(&marked)).unwrap_or_default();
        assert_eq!(marks.join(", "), marked, "{request}");
        if spec.keys != ALL_KEYS {
            let mut first = Vec::new();
            footprint.first(|touch| first.push(text(&touch)));
            assert!(touches.starts_with(&first), "{request}: {first:?}");
        }
        let mut old = 0;
        footprint.old(false, |_| old += 1);
        assert!(old == 0 || matches!(spec.keys, KeyArgs::Keys(..)), "{request}: nothing is cold");
    }
}

#[test]
fn what_walks_or_changes_schemas_reaches_everything() {
    install();
    let options = Options::default();
    let catalogue = Catalogue::default().completed(&options);
    let engines =
        Engines::new(&options, &catalogue, Arc::new(Durability::new(options.fsync))).unwrap();
    for (request, reach) in [
        ("KEYS *", Reach::Everything),
        ("FLUSHALL", Reach::Everything),
        ("DBSIZE", Reach::Everything),
        ("PING", Reach::Named),
        ("HGET post:7 like", Reach::Named),
        ("FEED.GET home 42 7", Reach::Named),
    ] {
        let mut kept = RequestQueue::default();
        kept.push_words(&request.split(' ').collect::<Vec<_>>());
        let args = kept.iter().next().unwrap();
        let (_, spec) = find(args.at(0)).unwrap();
        assert_eq!(Footprint::new(spec, args, &engines).reach(), reach, "{request}");
    }
}
