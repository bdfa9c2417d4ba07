//! What the server has, as far as it tells us.

use super::ImportArgs;
use super::command::Shape;
use super::redis::source::Remote;
use node::client::connect::{ConnectArgs, Link, refused, timely};
use redis_protocol::resp2::types::OwnedFrame;
use std::collections::HashMap;
use std::io;

/// What the server has, as far as it tells us.
#[derive(Default)]
pub(crate) struct Spaces {
    pub(crate) counters: Vec<String>,
    pub(crate) existences: Vec<String>,
    pub(super) actions: Vec<String>,
    /// The counters of each counter space, in the order of its rows.
    pub(crate) fields: HashMap<String, Vec<String>>,
}

/// Whether a space with these counters has this one.
pub(super) fn check_field(space: &str, known: &[String], field: &String) -> Result<(), String> {
    if known.contains(field) {
        return Ok(());
    }
    Err(format!("the space '{space}' has no field '{field}'; it has: {}", known.join(", ")))
}

impl Spaces {
    /// A connection to the server, and what it has.
    pub(crate) fn open(connect: &ConnectArgs) -> io::Result<(Remote, Spaces)> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let tls = connect.tls()?;
        let (link, spaces) = runtime.block_on(async {
            let mut link = connect.open(tls.as_ref()).await?;
            let spaces = Spaces::ask(&mut link).await?;
            io::Result::Ok((link, spaces))
        })?;
        Ok((Remote::of(link, runtime), spaces))
    }

    /// Asks. Users without the right to ask hear of what is missing with the first line.
    pub(crate) async fn ask(link: &mut Link) -> io::Result<Spaces> {
        let mut spaces = Spaces::default();
        let list = timely(link.call(&[b"TM.SPACE", b"LIST"])).await?;
        if let OwnedFrame::Error(reason) = &list
            && reason.starts_with("ERR unknown command")
        {
            return Err(refused(format!("it is no Tidemark: {reason}")));
        }
        for map in maps(list) {
            let Some(name) = map.get("name").cloned() else { continue };
            match map.get("kind").map(String::as_str) {
                Some("counter") => {
                    let fields = map.get("fields").map(String::as_str).unwrap_or_default();
                    spaces.fields.insert(name.clone(), names_of(fields));
                    spaces.counters.push(name);
                }
                Some("existence") => spaces.existences.push(name),
                _ => {}
            }
        }
        let actions = maps(timely(link.call(&[b"TM.ACTION", b"LIST"])).await?);
        spaces.actions = actions.into_iter().filter_map(|mut map| map.remove("name")).collect();
        Ok(spaces)
    }

    /// Whether what a file wants is there.
    pub(super) fn check(&self, shape: &Shape, args: &ImportArgs) -> Result<(), String> {
        if let Shape::Rows { fields } = shape
            && let Some(known) = self.fields.get(&args.space)
        {
            let is_twice = |at: usize| fields[..at].contains(&fields[at]);
            if let Some(at) = (0..fields.len()).find(|at| is_twice(*at)) {
                return Err(format!("the field '{}' is named twice", fields[at]));
            }
            fields.iter().try_for_each(|field| check_field(&args.space, known, field))?;
        }
        let (what, name, all) = match shape {
            Shape::Rows { .. } => ("counter space", &args.space, &self.counters),
            Shape::Flags => ("existence space", &args.space, &self.existences),
            Shape::Events => ("action", &args.action, &self.actions),
        };
        if all.is_empty() || all.contains(name) {
            return Ok(());
        }
        Err(format!("the server has no {what} '{name}'; it has: {}", all.join(", ")))
    }
}

/// The names of a schema, in the order in which CNT.GET answers their values: dropped fields, which
/// begin with `!`, have none.
fn names_of(fields: &str) -> Vec<String> {
    let name = |field: &str| field.split(':').next().unwrap_or_default().to_owned();
    fields.split_whitespace().filter(|field| !field.starts_with('!')).map(name).collect()
}

/// The texts of each of the maps of a list, by name.
pub(crate) fn maps(reply: OwnedFrame) -> Vec<HashMap<String, String>> {
    let OwnedFrame::Array(maps) = reply else { return Vec::new() };
    let text = |frame: &OwnedFrame| match frame {
        OwnedFrame::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        _ => None,
    };
    let one = |map: OwnedFrame| {
        let OwnedFrame::Array(items) = map else { return None };
        let pairs = items.chunks_exact(2);
        Some(pairs.filter_map(|pair| Some((text(&pair[0])?, text(&pair[1])?))).collect())
    };
    maps.into_iter().filter_map(one).collect()
}
