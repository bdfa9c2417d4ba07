//! The dashboard in a real browser.

use super::admin::{some_traffic, with_admin};
use super::browser::Browser;
use redis::cmd;
use serde_json::json;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use tidemark_tests::{TestServer, eventually};

/// Opens the dashboard, and waits until it has shown the figures.
fn open(browser: &Browser, address: SocketAddr) {
    browser.open(&format!("http://{address}/"));
    browser.wait("the dashboard shows figures", "return Number(document.body.dataset.rounds) >= 1");
}

/// All figures of the page that were made of one value, by their names.
fn figures(browser: &Browser) -> BTreeMap<String, String> {
    let script = "return Object.fromEntries([...document.querySelectorAll('[data-value]')]\
         .map(e => [e.dataset.value, e.dataset.raw]))";
    serde_json::from_value(browser.run(script)).unwrap()
}

/// The fields of INFO by the names that the page gives its figures.
fn info(server: &TestServer) -> BTreeMap<String, String> {
    let text: String = cmd("INFO").arg("everything").query(&mut server.connection()).unwrap();
    let mut fields = BTreeMap::new();
    for (name, value) in text.lines().filter_map(|line| line.split_once(':')) {
        fields.insert(name.to_owned(), value.to_owned());
        for (field, value) in value.split(',').filter_map(|pair| pair.split_once('=')) {
            fields.insert(format!("{name}.{field}"), value.to_owned());
        }
    }
    fields
}

/// Whether the page's figure is INFO's.
fn is_same(shown: &str, told: &str) -> bool {
    let number = |text: &str| text.parse::<f64>().ok();
    match (number(shown), number(told)) {
        (Some(shown), Some(told)) => (shown - told).abs() <= told.abs() * 1e-9 + 1e-6,
        _ => shown == told,
    }
}

/// Figures that are of the last interval, sums of several fields, or rise by asking.
const NOT_OF_INFO: [&str; 6] = [
    "pages_per_s",
    "writes_per_s",
    "rows",
    "pairs",
    "total_commands_processed",
    "connected_clients",
];

#[test]
fn the_dashboard_shows_what_info_tells_and_fits_a_desk_and_a_phone() {
    let Some(browser) = Browser::start() else { return };
    let (server, address) = with_admin(|config| {
        for existence in &mut config.existence {
            existence.pairs_per_table = 1 << 9;
            existence.max_tables = 2;
        }
    });
    some_traffic(&server);
    let mut c = server.connection();
    // Some tables, the oldest recycled.
    for id in 501..4000 {
        cmd("FEED.ACT").arg("like").arg(3).arg(id).query::<Vec<Option<i64>>>(&mut c).unwrap();
    }
    browser.resize(1440);
    open(&browser, address);

    // Nothing happens: each figure is INFO's, before or after.
    eventually("all figures are those of INFO", || {
        let before = info(&server);
        let shown = figures(&browser);
        let after = info(&server);
        let differing: Vec<_> = shown
            .iter()
            .filter(|(name, _)| !NOT_OF_INFO.contains(&name.as_str()))
            .filter(|(name, shown)| {
                let is = |told: &BTreeMap<String, String>| {
                    let told = told.get(*name).unwrap_or_else(|| panic!("INFO has no {name}"));
                    is_same(shown, told)
                };
                !is(&before) && !is(&after)
            })
            .collect();
        assert!(shown.len() > 25, "{shown:?}");
        differing.is_empty()
    });
    let figures = figures(&browser);
    let told = info(&server);
    let of = |space: &str| told[&format!("existence_{space}.pairs")].parse::<u64>().unwrap();
    let pairs = of("liked") + of("reposted") + of("read");
    assert_eq!(figures["pairs"], pairs.to_string());
    assert_ne!(figures["existence_liked.horizon"], "0", "the oldest table was recycled");

    fits_and_is_accessible(&browser);
    walks_along_a_ring(&browser);
    inspects_a_page(&browser, &server);

    // But for the query that is refused on purpose.
    let errors = browser.errors();
    assert!(errors.iter().all(|error| error.contains("ids=x")), "{errors:?}");
}

fn fits_and_is_accessible(browser: &Browser) {
    for width in [1440, 390] {
        browser.resize(width);
        browser.wait("it is drawn anew", "return document.querySelector('#rates svg') !== null");
        assert_eq!(browser.overflowing(), json!([]), "{width} px");
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
        "the table before is described",
        &format!("return {ring}.getAttribute('aria-valuetext').includes('closed, ids ')"),
    );
    // The next round draws it anew, and keeps what is chosen and the focus.
    let rounds = "Number(document.body.dataset.rounds)";
    let now = browser.run(&format!("return {rounds}")).as_u64().unwrap();
    browser.wait("another round", &format!("return {rounds} > {now}"));
    assert!(told().as_str().unwrap().contains("closed, ids "));
    assert_eq!(browser.run("return document.activeElement.id"), json!("ring-liked"));
}

fn inspects_a_page(browser: &Browser, server: &TestServer) {
    let mut c = server.connection();
    // Larger than its bits; liked; never there; below the horizon.
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
    assert_eq!(values, page.concat(), "they are those of FEED.GET");
    let from: Vec<&str> = cells.iter().map(|(_, from)| from.as_str()).collect();
    assert_eq!(from[..6], ["aux", "bits", "bits", "bits", "filter", "zero"], "post 3999");
    assert_eq!(from[6..12], ["bits", "bits", "bits", "bits", "filter", "zero"], "post 3998");
    assert_eq!(from[12..18], ["none", "none", "none", "none", "zero", "zero"], "no such post");
    assert_eq!(from[22], "horizon", "post 1, liked");
    assert_eq!(browser.overflowing(), json!([]));
    browser.run(
        "document.getElementById('ids').value = 'x'; \
         document.getElementById('inspect').requestSubmit()",
    );
    browser.wait(
        "an error is shown",
        "const e = document.getElementById('inspect-error'); \
         return !e.hidden && e.textContent === \"'x' is no id\"",
    );
}
