//! The dashboard in a real browser: Debian's chromium, driven by chromedriver over WebDriver.

use super::admin::{is_there, some_traffic, with_admin};
use redis::cmd;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use tidemark_tests::{PATIENCE, TestServer, eventually, listener};

/// A browser without a window.
struct Browser {
    driver: Child,
    address: SocketAddr,
    session: String,
}

impl Browser {
    fn start() -> Browser {
        let address = listener().local_addr().unwrap();
        let driver = Command::new("chromedriver")
            .arg(format!("--port={}", address.port()))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut browser = Browser { driver, address, session: String::new() };
        eventually("chromedriver listens", || TcpStream::connect(address).is_ok());
        let args = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"];
        let options = json!({ "args": args });
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "goog:chromeOptions": options,
            "goog:loggingPrefs": { "browser": "ALL" },
        } } });
        let answer = browser.call("POST", "/session", &wanted);
        browser.session = answer["sessionId"].as_str().expect("a session").to_owned();
        browser
    }

    /// One WebDriver command: its value.
    fn call(&self, method: &str, path: &str, body: &Value) -> Value {
        let body = if method == "GET" { String::new() } else { body.to_string() };
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body.as_bytes()).unwrap();
        // The connection stays open: the head tells how much there is.
        let mut reader = BufReader::new(stream);
        let mut length = 0;
        for line in reader.by_ref().lines().map(Result::unwrap).take_while(|l| !l.is_empty()) {
            let header = line.to_lowercase();
            if let Some(value) = header.strip_prefix("content-length:") {
                length = value.trim().parse().expect("a number");
            }
        }
        let mut text = vec![0; length];
        reader.read_exact(&mut text).unwrap();
        let answer: Value = serde_json::from_slice(&text).unwrap();
        let value = answer["value"].clone();
        assert!(value.get("error").is_none(), "{method} {path}: {value}");
        value
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        self.call("POST", &format!("/session/{}{path}", self.session), body)
    }

    /// Runs a function body in the page and gives what it returns.
    fn run(&self, script: &str) -> Value {
        self.post("/execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// A command of Chrome's own protocol.
    fn chrome(&self, name: &str, params: &Value) {
        self.post("/goog/cdp/execute", &json!({ "cmd": name, "params": params }));
    }

    /// The page as wide as this.
    fn resize(&self, width: u32) {
        let size =
            json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500 });
        self.chrome("Emulation.setDeviceMetricsOverride", &size);
    }

    /// Presses keys where the focus is.
    fn press(&self, keys: &str) {
        for key in ["keyDown", "keyUp"] {
            self.chrome(
                "Input.dispatchKeyEvent",
                &json!({ "type": key, "key": keys, "code": keys }),
            );
        }
    }

    /// Opens the dashboard, and waits until it has shown the figures.
    fn open(&self, address: SocketAddr) {
        self.post("/url", &json!({ "url": format!("http://{address}/") }));
        self.wait(
            "the dashboard shows figures",
            "return Number(document.body.dataset.rounds) >= 1",
        );
    }

    fn wait(&self, what: &str, script: &str) {
        eventually(what, || self.run(script) == json!(true));
    }

    /// All figures of the page that were made of one value, by their names.
    fn figures(&self) -> BTreeMap<String, String> {
        let script = "return Object.fromEntries([...document.querySelectorAll('[data-value]')]\
             .map(e => [e.dataset.value, e.dataset.raw]))";
        serde_json::from_value(self.run(script)).unwrap()
    }

    /// What sticks out of the page on the right, but for what scrolls by itself.
    fn overflowing(&self) -> Value {
        self.run(
            "const wide = [...document.querySelectorAll('body *')].filter(e => \
             !e.closest('.scroll table, .skip, svg') \
             && e.getBoundingClientRect().right > innerWidth + 0.5) \
             .map(e => e.outerHTML.slice(0, 120)); \
             if (document.documentElement.scrollWidth > innerWidth) wide.push('it scrolls'); \
             return wide",
        )
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() && !std::thread::panicking() {
            self.call("DELETE", &format!("/session/{}", self.session), &json!({}));
        }
        // Its browser ends with it.
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
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
    if !is_there("chromedriver") || !is_there("chromium") {
        return;
    }
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
    let browser = Browser::start();
    browser.resize(1440);
    browser.open(address);

    // Nothing happens: each figure is INFO's, before or after.
    eventually("all figures are those of INFO", || {
        let before = info(&server);
        let shown = browser.figures();
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
    let figures = browser.figures();
    let told = info(&server);
    let of = |space: &str| told[&format!("existence_{space}.pairs")].parse::<u64>().unwrap();
    let pairs = of("liked") + of("reposted") + of("read");
    assert_eq!(figures["pairs"], pairs.to_string());
    assert_ne!(figures["existence_liked.horizon"], "0", "the oldest table was recycled");

    fits_and_is_accessible(&browser);
    walks_along_a_ring(&browser);
    inspects_a_page(&browser, &server);

    let log = browser.post("/se/log", &json!({ "type": "browser" }));
    let severe: Vec<&Value> = log
        .as_array()
        .unwrap()
        .iter()
        .filter(|line| line["level"] == "SEVERE")
        // The query that is refused on purpose.
        .filter(|line| !line["message"].as_str().unwrap().contains("ids=x"))
        .collect();
    assert!(severe.is_empty(), "{severe:?}");
}

fn fits_and_is_accessible(browser: &Browser) {
    for width in [1440, 390] {
        browser.resize(width);
        browser.wait("it is drawn anew", "return document.querySelector('#rates svg') !== null");
        assert_eq!(browser.overflowing(), json!([]), "{width} px");
    }
    let nameless = browser.run(
        "return [...document.querySelectorAll('button, input, select, a, [role=img], \
         [role=slider], [role=region]')].filter(e => !(e.getAttribute('aria-label') \
         || e.getAttribute('aria-labelledby') || e.labels?.length || e.textContent.trim())) \
         .map(e => e.outerHTML.slice(0, 100))",
    );
    assert_eq!(nameless, json!([]), "each control has an accessible name");
    let background = || browser.run("return getComputedStyle(document.body).backgroundColor");
    let dark = |scheme: &str| {
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        browser.chrome("Emulation.setEmulatedMedia", &features);
        background()
    };
    assert_ne!(dark("light"), dark("dark"));
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
