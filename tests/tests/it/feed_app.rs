//! The application in `examples/feed`, in a real browser and over plain HTTP.

use super::browser::{Browser, ENTER};
use super::real_data::{generated_file, real_file, reposters};
use harness::program::{Program, SmallDisk};
use redis::{Commands, cmd};
use serde_json::json;
use std::collections::HashSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tidemark_tests::{DEFAULT_TIMEOUT, TestServer, cannot, eventually, listener};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

struct App {
    child: Child,
    address: String,
    said: Vec<String>,
}

impl App {
    fn start(port: u16, change: impl Fn(&mut Command)) -> App {
        let mut python = Command::new(root().join("target/clients/redis-py-5/bin/python"));
        python.arg("-B").arg(root().join("examples/feed/app.py"));
        python.args(["--port", "0", "--url", &format!("redis://127.0.0.1:{port}")]);
        change(&mut python);
        let mut child = python
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("{python:?}: {e}: run tests/clients/setup once"));
        let mut said = vec![];
        for line in BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap) {
            said.push(line);
            let address = said.last().and_then(|line| line.strip_prefix("The feed: http://"));
            if let Some(address) = address.and_then(|rest| rest.split('/').next()) {
                let address = address.to_owned();
                return App { child, address, said };
            }
        }
        let _ = child.wait();
        panic!("{python:?} ended: {said:?}");
    }

    fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// Sends a request; returns the header and the body.
    fn request(&self, method: &str, path: &str, headers: &[&str], body: &str) -> (String, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(DEFAULT_TIMEOUT)).unwrap();
        let mut text = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\n", self.address);
        for header in headers {
            text += &format!("{header}\r\n");
        }
        text += &format!("Content-Length: {}\r\n\r\n{body}", body.len());
        stream.write_all(text.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (format!("{head}\r\n"), body.to_owned())
    }

    /// Signs in and returns the cookie header.
    fn sign_in(&self, viewer: &str) -> String {
        let (head, _) = self.request("POST", "/viewer", &[], &format!("viewer={viewer}"));
        assert!(head.contains(" 303 "), "{head}");
        let cookie = head.lines().find_map(|line| line.strip_prefix("Set-Cookie: ")).unwrap();
        assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Lax"), "{cookie}");
        format!("Cookie: {}", cookie.split(';').next().unwrap())
    }

    fn get(&self, cookie: &str, path: &str) -> String {
        self.request("GET", path, &[cookie], "").1
    }

    fn posts(&self, cookie: &str) -> Vec<u64> {
        ids(&self.get(cookie, "/"))
    }
}

/// Returns the posts of a page.
fn ids(page: &str) -> Vec<u64> {
    friends(page).into_iter().map(|(post, _)| post).collect()
}

/// Returns the posts of a page, each with its text about followed users, which may be empty.
fn friends(page: &str) -> Vec<(u64, String)> {
    let cards = page.split("data-post=\"").skip(1);
    cards
        .map(|card| {
            let post = card.split('"').next().unwrap().parse().unwrap();
            let html = card.split("class=\"friends\">").nth(1).unwrap_or("");
            let html = html.split("</p>").next().unwrap();
            let text = html.split('<').map(|tag| tag.split_once('>').map_or(tag, |(_, text)| text));
            (post, text.collect::<String>().trim().to_owned())
        })
        .collect()
}

/// The author of the posts in [`file_of`].
const AUTHOR: u64 = 9;

/// Writes a file of posts and of the users that repost them, each of them twice.
fn file_of(folder: &Path, posts: impl IntoIterator<Item = (u64, Vec<u64>)>) -> PathBuf {
    let mut text = String::from("created_at,post_id,origin_post_id,user_id\n");
    for (post, users) in posts {
        text += &format!("2026-01-01 10:00:00,{post},,{AUTHOR}\n");
        for user in users.iter().chain(&users) {
            text += &format!("2026-01-01 10:00:01,1,{post},{user}\n");
        }
    }
    let path = folder.join("posts.csv");
    std::fs::write(&path, text).unwrap();
    path
}

impl Drop for App {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the number of likes and the viewer's own flag.
fn likes(server: &TestServer, viewer: &str, post: u64) -> (i64, bool) {
    let mut c = server.connection();
    let page: Vec<Vec<Option<i64>>> =
        cmd("FEED.GET").arg("home").arg(viewer).arg(post).query(&mut c).unwrap();
    (page[0][0].unwrap(), page[0][4] == Some(1))
}

/// Signs in through the form with the keyboard and waits for the viewer's page.
fn read_as(browser: &Browser, app: &App, viewer: &str) {
    browser.open(&app.url());
    browser.type_into("input[name=viewer]", &format!("{viewer}{ENTER}"));
    let shown = "document.querySelector('.viewer b')?.textContent";
    browser.wait("the page is this viewer's", &format!("return {shown} === {}", json!(viewer)));
}

/// Returns the state of a post's card: pressed, likes, reads, whether it is new.
fn card(browser: &Browser, post: u64) -> (bool, String, String, bool) {
    let script = format!(
        "const card = document.getElementById('p{post}'), like = card.querySelector('.like'); \
         return [like.getAttribute('aria-pressed') === 'true', like.textContent.trim(), \
         card.querySelector('[data-count=read]').firstElementChild.nextSibling.data.trim(), \
         card.querySelector('.seen').textContent === 'new']"
    );
    serde_json::from_value(browser.run(&script)).unwrap()
}

/// Presses the heart with the keyboard and waits for the page to show the change.
fn press_heart(browser: &Browser, post: u64, then: bool) {
    browser.type_into(&format!("#p{post} .like"), &ENTER.to_string());
    let pressed = format!("#p{post} .like[aria-pressed={then}]");
    browser.wait("the heart", &format!("return !!document.querySelector('{pressed}')"));
}

#[test]
fn a_like_moves_the_count_and_the_heart_is_its_viewers() {
    let Some(browser) = Browser::start() else { return };
    let server = TestServer::start();
    let app = App::start(server.port(), |_| {});
    let post = app.posts(&app.sign_in("nobody"))[1];
    let card = |browser: &Browser| card(browser, post);
    let shown = |heart, likes: &str, reads: &str, new| (heart, likes.into(), reads.into(), new);

    browser.resize(1440);
    read_as(&browser, &app, "7");
    assert_eq!(card(&browser), shown(false, "0", "1", true));
    press_heart(&browser, post, true);
    assert_eq!(card(&browser), shown(true, "1", "2", false), "read by the first visit");
    assert_eq!(likes(&server, "7", post), (1, true));
    browser.post("/refresh", &json!({}));
    assert_eq!(card(&browser), shown(true, "1", "2", false));

    // Sign in as a second viewer whose name contains markup.
    let second = "<b id=x>Ann</b>\"'&";
    read_as(&browser, &app, second);
    assert_eq!(browser.run("return document.getElementById('x')"), json!(null));
    assert_eq!(card(&browser), shown(false, "1", "2", true));
    press_heart(&browser, post, true);
    assert_eq!(card(&browser), shown(true, "2", "3", false));
    assert_eq!(likes(&server, second, post), (2, true));

    read_as(&browser, &app, "7");
    assert_eq!(card(&browser), shown(true, "2", "3", false));
    press_heart(&browser, post, false);
    assert_eq!(card(&browser), shown(false, "1", "3", false));
    assert_eq!(likes(&server, "7", post), (1, false));

    looks_right(&browser);
    // Navigates to older posts and to an author; the author's counter equals the number of posts.
    browser.run("document.querySelector('a[rel=next]').click()");
    browser.wait("older posts", "return location.search.startsWith('?before=')");
    assert_eq!(browser.run("return document.querySelectorAll('.post.post').length"), json!(20));
    browser.run("document.querySelector('.author').click()");
    browser.wait("an author's posts", "return location.search.startsWith('?author=')");
    let cards = browser.run("return document.querySelectorAll('.post').length").as_u64().unwrap();
    let told = browser.run("return document.querySelector('.post small').textContent");
    assert_eq!(told.as_str().unwrap().split(' ').next().unwrap(), cards.to_string());
    let errors = browser.errors();
    assert!(errors.is_empty(), "{errors:?}");
}

fn looks_right(browser: &Browser) {
    for width in [1440, 390] {
        browser.resize(width);
        assert_eq!(browser.overflowing(), json!([]), "{width} px");
    }
    assert_eq!(browser.nameless(), json!([]), "each control has an accessible name");
    assert_ne!(browser.background("light"), browser.background("dark"));
}

#[test]
fn unread_only_is_a_link_that_works_in_a_browser() {
    let Some(browser) = Browser::start() else { return };
    let server = TestServer::start();
    let app = App::start(server.port(), |_| {});
    let shown = || -> Vec<String> {
        let ids = browser.run("return [...document.querySelectorAll('.post')].map(p => p.id)");
        serde_json::from_value(ids).unwrap()
    };
    browser.resize(390);
    read_as(&browser, &app, "7");
    let mut seen = shown();
    let texts = "return [...document.querySelectorAll('.friends')].map(e => e.innerText.trim())";
    let texts: Vec<String> = serde_json::from_value(browser.run(texts)).unwrap();
    assert!(!texts.is_empty());
    for text in texts {
        assert!(text.starts_with("user ") && text.contains(" reposted"), "{text}");
    }

    let link = "[...document.querySelectorAll('.modes a')].find(a => a.text === 'Unread only')";
    browser.run(&format!("{link}.click()"));
    let title = "return document.querySelector('h2')?.textContent === 'Unread posts'";
    browser.wait("the unread posts", title);
    seen.extend(shown());
    browser.post("/refresh", &json!({}));
    let last = shown();
    seen.extend_from_slice(&last);
    assert_eq!(seen.len(), 60);
    assert_eq!(seen.iter().collect::<HashSet<_>>().len(), 60, "a post is shown twice");
    looks_right(&browser);

    // The page of unread posts has other posts by now, so the liked post is on the page of all.
    press_heart(&browser, last[5][1..].parse().unwrap(), true);
    assert_eq!(shown()[0], last[5]);
    let errors = browser.errors();
    assert!(errors.is_empty(), "{errors:?}");
}

#[test]
fn a_card_names_followed_users_that_reposted() {
    let folder = tempfile::tempdir().unwrap();
    // A viewer follows up to 200 users, so each viewer follows all of these.
    let posts = [0_u64, 1, 2, 3, 5].map(|n| (1_000 + n, (1..=n).collect::<Vec<u64>>()));
    let file = file_of(folder.path(), posts);
    let server = TestServer::start();
    let app = App::start(server.port(), |python| {
        python.arg("--data").arg(&file);
    });
    let cookie = app.sign_in("7");
    let cards = friends(&app.get(&cookie, "/"));
    let expected = [
        (1_005, 2, " reposted, and 3 others you follow"),
        (1_003, 2, " reposted, and 1 other you follow"),
        (1_002, 2, " reposted"),
        (1_001, 1, " reposted"),
        (1_000, 0, ""),
    ];
    assert_eq!(cards.len(), expected.len());
    for ((post, text), (expected_post, named, rest)) in cards.iter().zip(expected) {
        assert_eq!(*post, expected_post);
        let numbers = text.split(' ').filter_map(|word| word.parse::<u64>().ok());
        let users: Vec<u64> = numbers.take(named).collect();
        let names: Vec<String> = users.iter().map(|user| format!("user {user}")).collect();
        assert_eq!(*text, names.join(" and ") + rest);
        assert_eq!(users.iter().collect::<HashSet<_>>().len(), named, "{text}");
        assert!(users.iter().all(|user| (1..=post - 1_000).contains(user)), "{post}: {text}");
    }

    // Viewer 1 is one of the reposters, and follows the other reposters.
    let own = friends(&app.get(&app.sign_in("1"), "/"));
    assert_eq!(own[2..4], [(1_002, "user 2 reposted".to_owned()), (1_001, String::new())]);
    // The server decides which of the followed users are named.
    let mut c = server.connection();
    cmd("FEED.UNDO").arg(&["repost", "1", "1001"]).exec(&mut c).unwrap();
    cmd("FEED.ACT").arg(&["repost", "4", "1000"]).exec(&mut c).unwrap();
    let cards = friends(&app.get(&cookie, "/"));
    assert_eq!(cards[3..], [(1_001, String::new()), (1_000, "user 4 reposted".to_owned())]);
}

#[test]
fn each_viewer_follows_the_same_users_after_a_restart() {
    let server = TestServer::start();
    let pages = [(); 2].map(|()| {
        let app = App::start(server.port(), |_| {});
        ["7", "8"].map(|viewer| friends(&app.get(&app.sign_in(viewer), "/")))
    });
    assert_eq!(pages[0], pages[1]);
    assert_ne!(pages[0][0], pages[0][1]);
}

#[test]
fn unread_only_shows_the_next_posts_at_each_reload() {
    let folder = tempfile::tempdir().unwrap();
    let file = file_of(folder.path(), (1_001..=2_050).map(|post| (post, vec![])));
    let server = TestServer::start();
    let app = App::start(server.port(), |python| {
        python.arg("--data").arg(&file);
    });
    let mut c = server.connection();
    let mut read = |posts: &[u64]| cmd("FEED.ACT").arg("read").arg(7).arg(posts).exec(&mut c);
    let newest = |first: u64| (first - 19..=first).rev().collect::<Vec<u64>>();
    let cookie = app.sign_in("7");

    let page = app.get(&cookie, "/?unread=1");
    assert_eq!(ids(&page), newest(2_050));
    assert!(page.contains("a reload shows the next ones"), "{page}");
    for link in ["/?before=2031&amp;unread=1", "/?author=9&amp;unread=1"] {
        assert!(page.contains(&format!("href=\"{link}\"")), "{link}: {page}");
    }
    assert_eq!(ids(&app.get(&cookie, "/?unread=1")), newest(2_030));
    assert_eq!(ids(&app.get(&cookie, "/?author=9&unread=1")), newest(2_010));
    assert_eq!(ids(&app.get(&cookie, "/?before=1500&unread=1")), newest(1_499));
    assert_eq!(ids(&app.get(&app.sign_in("8"), "/?unread=1")), newest(2_050));
    assert_eq!(app.posts(&cookie), newest(2_050), "the page of all posts");

    // A post that the viewer read elsewhere is skipped.
    read(&[1_989]).unwrap();
    let mut expected = newest(1_990);
    expected.remove(1);
    expected.push(1_970);
    assert_eq!(ids(&app.get(&cookie, "/?unread=1")), expected);

    // All candidates are read: the page is empty and links to older pages.
    read(&(1_051..=2_050).collect::<Vec<u64>>()).unwrap();
    let page = app.get(&cookie, "/?unread=1");
    assert!(ids(&page).is_empty(), "{page}");
    assert!(page.contains("No unread posts here."), "{page}");
    assert!(page.contains("href=\"/?before=1051&amp;unread=1\""), "{page}");
    assert_eq!(ids(&app.get(&cookie, "/?before=1051&unread=1")), newest(1_050));
    let (head, _) = app.request("GET", "/?author=1&unread=1", &[&cookie], "");
    assert!(head.contains(" 404 "), "{head}");

    let (head, _) = app.request("POST", "/like?unread=1", &[&cookie], "post=1050");
    assert!(head.contains("Location: /?before=1051#p1050\r\n"), "{head}");
}

#[test]
fn a_page_without_marks_still_names_followed_users() {
    let Some(disk) = SmallDisk::mount(96) else {
        return cannot("requires permission to mount a tmpfs");
    };
    let program =
        Program::start_as(&[], disk.path(), &["--fsync", "always", "--admin-port", "0"]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = file_of(folder.path(), [(1_001, vec![5])]);
    let app = App::start(program.port, |python| {
        python.arg("--data").arg(&file);
    });
    disk.fill(64 << 10);
    let mut c = program.connection();
    let full = (0..100_000).find_map(|id| {
        cmd("HSET").arg(format!("post:{id}")).arg(&["like", "1"]).exec(&mut c).err()
    });
    assert!(full.expect("the disk is full").to_string().contains("MISCONF"));
    let cookie = app.sign_in("7");
    for path in ["/", "/?unread=1", "/?unread=1"] {
        let page = app.get(&cookie, path);
        assert_eq!(friends(&page), [(1_001, "user 5 reposted".to_owned())], "{page}");
    }
}

#[test]
fn forms_of_other_sites_and_forged_cookies_change_nothing() {
    let server = TestServer::start();
    let app = App::start(server.port(), |_| {});
    let cookie = app.sign_in("7");
    let post = app.posts(&cookie)[0];
    let form = format!("post={post}");
    let like = |headers: &[&str], body: &str| app.request("POST", "/like", headers, body).0;

    for from in ["Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: same-site", "Origin: http://evil"] {
        assert!(like(&[&cookie, from], &form).contains(" 403 "), "{from}");
    }
    let forged = cookie.replace("viewer=7", "viewer=8");
    assert!(app.posts(&forged).is_empty(), "a forged cookie is none");
    assert!(like(&[&forged], &form).contains("Location: /\r\n"));
    assert!(like(&[&cookie], "post=1").contains(" 404 "));
    assert!(like(&[&cookie], "post=1%0d%0aX: y").contains(" 404 "));
    assert!(like(&[&cookie], &"x".repeat(5_000)).contains(" 413 "));
    let (head, _) = app.request("GET", "/like?post=1", &[&cookie], "");
    assert!(head.contains(" 404 "), "a GET likes nothing");
    assert_eq!(likes(&server, "7", post), (0, false));

    // A form that is submitted again, or from a stale page, is applied only once.
    let own = format!("Origin: http://{}", app.address);
    for from in [own.as_str(), "Sec-Fetch-Site: same-origin", &own] {
        let head = like(&[&cookie, from], &form);
        assert!(head.contains(&format!("Location: /#p{post}\r\n")), "{head}");
        assert!(head.contains("Content-Security-Policy: default-src 'none'"), "{head}");
    }
    assert_eq!(likes(&server, "7", post), (1, true));
}

#[test]
fn a_post_below_the_horizon_has_a_heart_that_cannot_be_pressed() {
    let server = TestServer::with(|config| {
        for existence in &mut config.existence {
            existence.pairs_per_table = 1 << 9;
            (existence.spill, existence.max_tables) = (false, 2);
            existence.ledger = tidemark_server::config::LedgerMode::Off;
        }
    });
    let app = App::start(server.port(), |_| {});
    let cookie = app.sign_in("7");
    let post = app.posts(&cookie)[0];
    let mut c = server.connection();
    for id in 1..4_000 {
        let like =
            cmd("FEED.ACT").arg("like").arg(3).arg(post + id).query::<Vec<Option<i64>>>(&mut c);
        like.unwrap();
    }
    let (_, page) = app.request("GET", "/", &[&cookie], "");
    assert!(page.contains("disabled title='too old to be liked'"), "{page}");
    let (head, _) = app.request("POST", "/like", &[&cookie], &format!("post={post}"));
    assert!(head.contains(" 303 "), "{head}");
    assert_eq!(likes(&server, "7", post), (0, false));
}

/// Loads the real data set, if available. Counts must equal those of plain sets, apart from false
/// positives, and a second load must change nothing.
#[test]
fn a_file_of_reposts_is_shown_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let file = real_file().unwrap_or_else(|| generated_file(folder.path(), 100));
    let (users, ..) = reposters(&file);
    let newest: Vec<u64> = users.keys().rev().take(20).copied().collect();
    let server = TestServer::start();
    for round in 1..=2 {
        let app = App::start(server.port(), |python| {
            python.arg("--data").arg(&file);
        });
        assert!(app.said[0].ends_with(" reposts are loaded."), "{:?}", app.said);
        assert_eq!(app.posts(&app.sign_in("7")), newest, "newest first");
        let mut c = server.connection();
        for (post, users) in &users {
            let count: usize = c.hget(format!("post:{post}"), "repost").unwrap();
            let all = users.len();
            assert!((all.saturating_sub(2)..=all).contains(&count), "{round}: {count} of {all}");
        }
    }
}

#[test]
fn the_application_starts_a_server_and_ends_it() {
    let free = listener();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let mut app = App::start(port, |python| {
        python.env("TIDEMARK", harness::program());
    });
    assert!(app.said[0].starts_with("Started "), "{:?}", app.said);
    assert_eq!(app.posts(&app.sign_in("7")).len(), 20);
    let stop = Command::new("kill").args(["-TERM", &app.child.id().to_string()]).status();
    assert!(stop.unwrap().success());
    assert!(app.child.wait().unwrap().success());
    eventually("the server has ended", || TcpStream::connect(("127.0.0.1", port)).is_err());
}

/// Without a server and without a binary to start a server, the application prints instructions.
#[test]
fn the_application_says_what_it_lacks() {
    let port = listener().local_addr().unwrap().port();
    let python = root().join("target/clients/redis-py-new/bin/python");
    let done = Command::new(python)
        .arg("-B")
        .arg(root().join("examples/feed/app.py"))
        .args(["--url", &format!("redis://:wrong@127.0.0.1:{port}")])
        .env("TIDEMARK", "/nowhere/tidemark")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success() && !said.contains("Traceback"), "{said}");
    assert!(said.contains("/nowhere/tidemark"), "{said}");
}
