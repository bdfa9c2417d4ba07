//! Dead letters are events that could not be applied. They are stored as one JSON object per line,
//! in a file of bounded size. A dead letter is written before the offset advances. A crash may
//! therefore duplicate a letter, but never loses a letter.

use base64::Engine as _;
use dataset::clock::unix_ms;
use node::runtime::ingest::IngestSource;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

/// Maximum number of payload bytes kept per letter.
const MAX_PAYLOAD_BYTES: usize = 64 << 10;

/// Dead-letter file of one partition of a source.
pub(super) struct DeadLetterFile {
    path: PathBuf,
    file: Option<File>,
}

pub(super) struct DeadLetter<'a> {
    pub(super) partition: u32,
    pub(super) message: u128,
    /// Zero-based index of the event within the message.
    pub(super) event: u64,
    pub(super) why: &'a str,
    pub(super) payload: &'a [u8],
}

impl DeadLetterFile {
    pub(super) fn new(source: &IngestSource, folder: &Path) -> DeadLetterFile {
        let path = match source.config.dead_letters.as_str() {
            "" => folder.join(format!("{}.dead", source.config.name)),
            path => PathBuf::from(path),
        };
        DeadLetterFile { path, file: None }
    }

    /// Counts the event as poison, and writes the dead letter if the file has room.
    pub(super) fn put(&mut self, source: &IngestSource, letter: &DeadLetter<'_>) {
        source.poison.fetch_add(1, Relaxed);
        let shown = source.shown(letter.message);
        let text = format!("poison event {} of message {shown}: {}", letter.event, letter.why);
        if source.note_error(&text) {
            tracing::warn!(
                "ingest '{}', partition {}: {text}",
                source.config.name,
                letter.partition
            );
        }
        let written = self.write(source, letter, &shown);
        if let Err(why) = written {
            source.poison_dropped.fetch_add(1, Relaxed);
            let text = format!(
                "{}: cannot write dead letters, which are only counted: {why}",
                self.path.display()
            );
            if source.note_error(&text) {
                tracing::error!("ingest '{}': {text}", source.config.name);
            }
            self.file = None;
        }
    }

    fn write(
        &mut self,
        source: &IngestSource,
        letter: &DeadLetter<'_>,
        shown: &str,
    ) -> Result<(), String> {
        let DeadLetter { partition, event, why, payload, .. } = letter;
        let kept = &payload[..payload.len().min(MAX_PAYLOAD_BYTES)];
        let mut line = serde_json::json!({
            "time_ms": unix_ms(),
            "source": source.config.name,
            "partition": partition,
            "offset": shown,
            "event": event,
            "why": why,
            "bytes": payload.len(),
        });
        match std::str::from_utf8(kept) {
            Ok(text) => line["payload"] = text.into(),
            Err(_) => {
                let text = base64::engine::general_purpose::STANDARD.encode(kept);
                line["payload_base64"] = text.into();
            }
        }
        let line = format!("{line}\n");
        let text = |e: std::io::Error| e.to_string();
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(
                OpenOptions::new().create(true).append(true).open(&self.path).map_err(text)?,
            ),
        };
        let most = source.config.dead_letter_bytes;
        let there = file.metadata().map_err(text)?.len();
        if there + line.len() as u64 > most {
            return Err(format!("the file has reached max_dead_letters = {most}"));
        }
        file.write_all(line.as_bytes()).map_err(text)
    }
}
