//! The dashboard in a real browser.

use super::admin::{some_traffic, with_admin};
use super::browser::Browser;
use harness::program::{Program, SmallDisk};
use redis::{Connection, cmd};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tidemark_tests::{DEFAULT_TIMEOUT, TestServer, cannot, eventually, listener};

/// Opens the dashboard and waits for its first values.
fn open(browser: &Browser, address: SocketAddr) {
    browser.open(&format!("http://{address}/"));
    browser.wait("the dashboard shows figures", "return Number(document.body.dataset.rounds) >= 1");
}

/// Returns all values on the page that stem from a single metric, by name.
fn figures(browser: &Browser) -> BTreeMap<String, String> {
    let script = "return Object.fromEntries([...document.querySelectorAll('[data-value]')]\
         .map(e => [e.dataset.value, e.dataset.raw]))";
    serde_json::from_value(browser.run(script)).unwrap()
}

/// Returns INFO's fields under the page's names.
fn info(connection: &mut Connection) -> BTreeMap<String, String> {
    let text: String = cmd("INFO").arg("everything").query(connection).unwrap();
    let mut fields = BTreeMap::new();
    for (name, value) in text.lines().filter_map(|line| line.split_once(':')) {
        fields.insert(name.to_owned(), value.to_owned());
        for (field, value) in value.split(',').filter_map(|pair| pair.split_once('=')) {
            fields.insert(format!("{name}.{field}"), value.to_owned());
        }
    }
    fields
}

/// Returns whether the shown value is between INFO's values before and after.
fn is_between(shown: &str, before: &str, after: &str) -> bool {
    let number = |text: &str| text.parse::<f64>().ok();
    match (number(shown), number(before), number(after)) {
        (Some(shown), Some(before), Some(after)) => {
            let rounding = after.abs() * 1e-9 + 1e-6;
            (before.min(after) - rounding..=before.max(after) + rounding).contains(&shown)
        }
        _ => shown == before || shown == after,
    }
}

/// Checks that every value on the page equals the one of INFO. Retries the values that differ,
/// because some values change while the server runs.
fn shows_what_info_tells(browser: &Browser, connection: &mut Connection) {
    let rounds = "Number(document.body.dataset.rounds)";
    let mut wrong: BTreeSet<String> = figures(browser).into_keys().collect();
    assert!(wrong.len() > 25, "{wrong:?}");
    wrong.retain(|name| !NOT_OF_INFO.contains(&name.as_str()));
    for _ in 0..8 {
        let before = info(connection);
        // The current refresh may have started before INFO was read.
        let now = browser.run(&format!("return {rounds}")).as_u64().unwrap();
        browser.wait("a refresh has completed", &format!("return {rounds} > {now} + 1"));
        let shown = figures(browser);
        let after = info(connection);
        wrong.retain(|name| {
            let of = |told: &BTreeMap<String, String>| {
                told.get(name).unwrap_or_else(|| panic!("INFO has no {name}")).clone()
            };
            shown.get(name).is_some_and(|shown| !is_between(shown, &of(&before), &of(&after)))
        });
        if wrong.is_empty() {
            return;
        }
    }
    panic!("values differ from INFO: {wrong:?}");
}

/// Values that have no counterpart in INFO: rates of the last interval, sums, and counters that the
/// test's own requests change.
const NOT_OF_INFO: [&str; 6] = [
    "pages_per_s",
    "writes_per_s",
    "rows",
    "pairs",
    "total_commands_processed",
    "connected_clients",
];

#[test]
fn dashboard_agrees_with_info_and_fits_desktop_and_phone() {
    let Some(browser) = Browser::start() else { return };
    let backups = tempfile::tempdir().unwrap();
    let (server, address) = with_admin(|config| {
        config.backup.dir = backups.path().into();
        for existence in &mut config.existence {
            existence.pairs_per_table = 1 << 9;
            (existence.spill, existence.max_tables) = (false, 2);
            existence.ledger = tidemark_server::config::LedgerMode::Off;
        }
    });
    some_traffic(&server);
    let mut c = server.connection();
    // Fill several tables, so that the oldest is recycled.
    for id in 501..4000 {
        cmd("FEED.ACT").arg("like").arg(3).arg(id).query::<Vec<Option<i64>>>(&mut c).unwrap();
    }
    cmd("BACKUP").arg("TO").arg("first").exec(&mut c).unwrap();
    eventually("the backup is listed", || info(&mut c)["backup_last_time"] != "0");
    browser.resize(1440);
    open(&browser, address);

    shows_what_info_tells(&browser, &mut c);
    let figures = figures(&browser);
    let told = info(&mut c);
    let of = |space: &str| told[&format!("existence_{space}.pairs")].parse::<u64>().unwrap();
    let pairs = of("liked") + of("reposted") + of("read");
    assert_eq!(figures["pairs"], pairs.to_string());
    assert_ne!(figures["existence_liked.horizon"], "0", "the oldest table was recycled");
    assert_ne!(figures["backup_bytes_done"], "0", "a backup was made");

    fits_and_is_accessible(&browser, "quiet");
    walks_along_a_ring(&browser);
    inspects_a_page(&browser, &server);

    // The console shows no error except that of the query that the server must refuse.
    let errors = browser.errors();
    assert!(errors.iter().all(|error| error.contains("ids=x")), "{errors:?}");
}

/// Checks the page in one server state: values equal INFO, nothing overflows. Saves screenshots at
/// two widths to `target/screenshots`.
fn is_seen(browser: &Browser, state: &str, address: SocketAddr, connection: &mut Connection) {
    browser.resize(1440);
    open(browser, address);
    shows_what_info_tells(browser, connection);
    fits_and_is_accessible(browser, state);
    assert_eq!(browser.errors(), Vec::<String>::new(), "{state}");
}

#[test]
fn the_dashboard_shows_what_is_empty_busy_rolls_and_spills() {
    let Some(browser) = Browser::start() else { return };
    let (server, address) = with_admin(|_| ());
    let mut c = server.connection();
    is_seen(&browser, "empty", address, &mut c);
    let compared = "return document.getElementById('memory-bars').textContent";
    assert!(browser.run(compared).as_str().unwrap().contains("Comparison with Redis: no data yet"));

    let (server, address) = with_admin(|config| {
        for existence in &mut config.existence {
            existence.pairs_per_table = 1 << 12;
            (existence.spill, existence.max_tables) = (false, 4);
            existence.ledger = tidemark_server::config::LedgerMode::Off;
        }
        let posts = config.counter.iter_mut().find(|space| space.name == "post").unwrap();
        posts.spill = true;
        posts.rows_per_table = 10_000;
        posts.memory_limit_bytes = 1 << 20;
    });
    let mut c = server.connection();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Likes and reads posts with increasing ids.
        scope.spawn(|| {
            let mut c = server.connection();
            let until = Instant::now() + DEFAULT_TIMEOUT;
            for id in (1..).take_while(|_| !is_over.load(Relaxed) && Instant::now() < until) {
                let mut pipe = redis::pipe();
                for id in 20 * id..20 * id + 20 {
                    pipe.cmd("HSET").arg(format!("post:{id}")).arg("read").arg(id).ignore();
                    pipe.cmd("FEED.ACT").arg("like").arg(7).arg(id).ignore();
                }
                let ids: Vec<u64> = (20 * id..20 * id + 20).collect();
                pipe.cmd("FEED.GET").arg("home").arg(7).arg(ids).ignore();
                pipe.exec(&mut c).unwrap();
                // Pause, so that the disk can keep up.
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        let is = |name: &str| info(&mut server.connection())[name] != "0";
        eventually("tables roll, and the oldest are recycled", || is("existence_liked.horizon"));
        eventually("the oldest rows are on disk", || is("cold_files"));
        is_seen(&browser, "busy", address, &mut c);
        is_over.store(true, Relaxed);
    });
    let bars = |state: &str| browser.run(&format!("return !!document.querySelector('{state}')"));
    assert_eq!(bars("#space-list .cold"), json!(true), "a ring shows the tables on disk");
    assert_eq!(bars("#space-list .closed"), json!(true));
}

#[test]
fn the_dashboard_shows_a_replica_that_lags_and_a_full_disk() {
    let Some(browser) = Browser::start() else { return };
    let admin = listener().local_addr().unwrap();
    let port = admin.port().to_string();
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let options = ["--admin-port", &port];
    let master = Program::start_as(&[], folders[0].path(), &options).unwrap();
    let replica = Program::start(folders[1].path(), "everysec");
    let mut c = master.connection();
    let follow = format!("REPLICAOF 127.0.0.1 {}", master.port);
    assert_eq!(replica.ask(&follow), client::Reply::SimpleString(b"OK".into()));
    eventually("the node is a connected replica", || info(&mut c)["connected_slaves"] == "1");
    eventually("in step", || info(&mut c).get("slave0.state").is_some_and(|s| s == "online"));
    replica.freeze(true);
    for id in 0..200_000u64 {
        if id % 1000 == 0 {
            let mut pipe = redis::pipe();
            for id in id..id + 1000 {
                pipe.cmd("HSET").arg(format!("post:{id}")).arg("like").arg(id).ignore();
            }
            pipe.exec(&mut c).unwrap();
        }
    }
    is_seen(&browser, "lagging", admin, &mut c);
    let lag = "return document.querySelector('#topology .node:last-child').textContent";
    let told = browser.run(lag);
    let told = told.as_str().unwrap();
    assert!(told.contains("Lag") && !told.contains("Lag0 B"), "{told}");
    drop((master, replica));

    let Some(disk) = SmallDisk::mount(96) else {
        return cannot("requires permission to mount a tmpfs");
    };
    let options = ["--fsync", "always", "--admin-port", &port];
    let program = Program::start_as(&[], disk.path(), &options).unwrap();
    let mut c = program.connection();
    disk.fill(64 << 10);
    let full = (0..100_000).find_map(|id| {
        cmd("HSET").arg(format!("post:{id}")).arg(&["like", "1"]).exec(&mut c).err()
    });
    assert!(full.expect("the disk is full").to_string().contains("MISCONF"));
    is_seen(&browser, "disk full", admin, &mut c);
    let alert = browser.run("return document.getElementById('alert').textContent");
    assert!(alert.as_str().unwrap().contains("No space left"), "{alert}");
    assert_eq!(
        browser.run("return document.getElementById('state').textContent"),
        json!("not ready")
    );
}

fn fits_and_is_accessible(browser: &Browser, state: &str) {
    for width in [1440, 390] {
        browser.resize(width);
        browser
            .wait("the chart is redrawn", "return document.querySelector('#rates svg') !== null");
        assert_eq!(browser.overflowing(), json!([]), "{state}, {width} px");
        browser.screenshot(&format!("{state} {width}"));
    }
    assert_eq!(browser.nameless(), json!([]), "each control has an accessible name");
    assert_ne!(browser.background("light"), browser.background("dark"));
}

fn walks_along_a_ring(browser: &Browser) {
    let ring = "document.getElementById('ring-liked')";
    let told = || browser.run(&format!("return {ring}.getAttribute('aria-valuetext')"));
    browser.run(&format!("{ring}.focus()"));
    let newest = told();
    assert!(newest.as_str().unwrap().contains("live, ids "), "{newest}");
    browser.press("ArrowLeft");
    browser.wait(
        "the previous table is described",
        &format!("return {ring}.getAttribute('aria-valuetext').includes('closed, ids ')"),
    );
    // A refresh redraws the ring and keeps selection and focus.
    let rounds = "Number(document.body.dataset.rounds)";
    let now = browser.run(&format!("return {rounds}")).as_u64().unwrap();
    browser.wait("another round", &format!("return {rounds} > {now}"));
    assert!(told().as_str().unwrap().contains("closed, ids "));
    assert_eq!(browser.run("return document.activeElement.id"), json!("ring-liked"));
}

fn inspects_a_page(browser: &Browser, server: &TestServer) {
    let mut c = server.connection();
    // Inspect a value wider than its field, a liked post, an absent row, and a post below the
    // lowest stored id.
    cmd("HSET").arg(&["post:3999", "like", "100000"]).exec(&mut c).unwrap();
    let ids = [3999, 3998, 900_000, 1];
    let page: Vec<Vec<Option<i64>>> =
        cmd("FEED.GET").arg("home").arg(3).arg(&ids).query(&mut c).unwrap();
    let form = format!(
        "document.getElementById('viewer').value = '3'; \
         document.getElementById('ids').value = '{}'; \
         document.getElementById('inspect').requestSubmit()",
        ids.map(|id| id.to_string()).join(", ")
    );
    browser.run(&form);
    let shown = "document.querySelectorAll('#page [data-cell]')";
    browser.wait("the page is shown", &format!("return {shown}.length === 24"));
    let script = format!("return [...{shown}].map(e => [e.dataset.raw, e.dataset.from])");
    let cells: Vec<(String, String)> = serde_json::from_value(browser.run(&script)).unwrap();
    let values: Vec<Option<i64>> = cells.iter().map(|(raw, _)| raw.parse().ok()).collect();
    assert_eq!(values, page.concat(), "the values differ from FEED.GET");
    let from: Vec<&str> = cells.iter().map(|(_, from)| from.as_str()).collect();
    assert_eq!(from[..6], ["aux", "bits", "bits", "bits", "filter", "filter"], "post 3999");
    assert_eq!(from[6..12], ["bits", "bits", "bits", "bits", "filter", "filter"], "post 3998");
    assert_eq!(from[12..18], ["none", "none", "none", "none", "filter", "filter"], "no such post");
    assert_eq!(from[22], "horizon", "post 1, liked");
    assert_eq!(browser.overflowing(), json!([]));
    browser.run(
        "document.getElementById('ids').value = 'x'; \
         document.getElementById('inspect').requestSubmit()",
    );
    browser.wait(
        "an error is shown",
        "const e = document.getElementById('inspect-error'); return !e.hidden && e.textContent === \
         \"'x' is not a valid id\"",
    );
}
