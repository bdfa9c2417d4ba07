//! A real browser: Debian's chromium, controlled through chromedriver and WebDriver.

use super::admin::is_there;
use base64::prelude::{BASE64_STANDARD, Engine};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tidemark_tests::{DEFAULT_TIMEOUT, eventually, listener};

/// WebDriver's code for the Enter key.
pub(crate) const ENTER: char = '\u{e007}';

pub(crate) struct Browser {
    driver: Child,
    address: SocketAddr,
    session: String,
}

impl Browser {
    /// Starts a browser. Returns `None`, with a message, if none is installed.
    pub(crate) fn start() -> Option<Browser> {
        if !is_there("chromedriver") || !is_there("chromium") {
            return None;
        }
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
        Some(browser)
    }

    /// Sends a WebDriver command and returns its value.
    fn call(&self, method: &str, path: &str, body: &Value) -> Value {
        let body = if method == "GET" { String::new() } else { body.to_string() };
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(DEFAULT_TIMEOUT)).unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body.as_bytes()).unwrap();
        // Keep-alive connection: read as many bytes as the header announces.
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

    pub(crate) fn post(&self, path: &str, body: &Value) -> Value {
        self.call("POST", &format!("/session/{}{path}", self.session), body)
    }

    /// Runs a function body in the page and returns its result.
    pub(crate) fn run(&self, script: &str) -> Value {
        self.post("/execute/sync", &json!({ "script": script, "args": [] }))
    }

    pub(crate) fn chrome(&self, name: &str, params: &Value) -> Value {
        self.post("/goog/cdp/execute", &json!({ "cmd": name, "params": params }))
    }

    /// Saves a full-page screenshot to `target/screenshots`.
    pub(crate) fn screenshot(&self, name: &str) {
        let whole = json!({ "captureBeyondViewport": true });
        let picture = self.chrome("Page.captureScreenshot", &whole);
        let bytes = BASE64_STANDARD.decode(picture["data"].as_str().expect("base64")).unwrap();
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/screenshots");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(format!("{name}.png")), bytes).unwrap();
    }

    pub(crate) fn resize(&self, width: u32) {
        let size =
            json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500 });
        self.chrome("Emulation.setDeviceMetricsOverride", &size);
    }

    /// Presses a key in the focused element.
    pub(crate) fn press(&self, keys: &str) {
        for key in ["keyDown", "keyUp"] {
            self.chrome(
                "Input.dispatchKeyEvent",
                &json!({ "type": key, "key": keys, "code": keys }),
            );
        }
    }

    pub(crate) fn open(&self, url: &str) {
        self.post("/url", &json!({ "url": url }));
    }

    pub(crate) fn wait(&self, what: &str, script: &str) {
        eventually(what, || self.run(script) == json!(true));
    }

    /// Returns the elements that extend beyond the right edge of the page, except those inside
    /// scrollable elements.
    pub(crate) fn overflowing(&self) -> Value {
        self.run(
            "const wide = [...document.querySelectorAll('body *')].filter(e => \
             !e.closest('.scroll table, .skip, svg') \
             && e.getBoundingClientRect().right > innerWidth + 0.5) \
             .map(e => e.outerHTML.slice(0, 120)); \
             if (document.documentElement.scrollWidth > innerWidth) wide.push('it scrolls'); \
             return wide",
        )
    }

    /// Returns controls without an accessible name.
    pub(crate) fn nameless(&self) -> Value {
        self.run(
            "return [...document.querySelectorAll('button, input:not([type=hidden]), select, a, \
             [role=img], [role=slider], [role=region]')].filter(e => \
             !(e.getAttribute('aria-label') || e.getAttribute('aria-labelledby') \
             || e.labels?.length || e.textContent.trim())).map(e => e.outerHTML.slice(0, 100))",
        )
    }

    /// Returns the background color in a light or dark scheme.
    pub(crate) fn background(&self, scheme: &str) -> Value {
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.chrome("Emulation.setEmulatedMedia", &features);
        self.run("return getComputedStyle(document.body).backgroundColor")
    }

    /// Types into the first element that matches a selector. The character `ENTER` presses the
    /// Enter key.
    pub(crate) fn type_into(&self, selector: &str, text: &str) {
        let found = self.post("/element", &json!({ "using": "css selector", "value": selector }));
        let element = found.as_object().unwrap().values().next().unwrap().as_str().unwrap();
        self.post(&format!("/element/{element}/value"), &json!({ "text": text }));
    }

    /// Returns console errors since the last call.
    pub(crate) fn errors(&self) -> Vec<String> {
        let log = self.post("/se/log", &json!({ "type": "browser" }));
        let severe = log.as_array().unwrap().iter().filter(|line| line["level"] == "SEVERE");
        severe.map(|line| line["message"].as_str().unwrap().to_owned()).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() && !std::thread::panicking() {
            self.call("DELETE", &format!("/session/{}", self.session), &json!({}));
        }
        // The browser process ends with the driver.
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
