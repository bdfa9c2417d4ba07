//! The catalogue: which spaces the data folder holds, under which numbers, with which schemas and
//! seeds.
//!
//! Records name spaces by number, and filters are unreadable without their seed, so both are data:
//! written to the log before the first record that needs them, and read back before anything else.
//! The configuration says which spaces there should be; once a space exists, what the catalogue
//! says of it holds.

use crate::options::{self, Options};
use serde::{Deserialize, Serialize};

/// All spaces of a data folder.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Catalogue {
    /// Counter spaces.
    pub counter: Vec<Counter>,
    /// Existence spaces.
    pub existence: Vec<Existence>,
}

/// A counter space.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counter {
    /// Names it in records; never used again for another.
    pub number: u32,
    /// Names it for clients.
    pub name: String,
    /// Its schema: at first as in the configuration, later as it was altered, dropped fields
    /// marked.
    pub fields: String,
}

/// An existence space.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Existence {
    /// Names it in records; never used again for another.
    pub number: u32,
    /// Names it for clients.
    pub name: String,
    /// Of its hashes: secret.
    #[serde(with = "seed_as_text")]
    pub seed: u64,
    /// What its filters are made for.
    pub false_positive_rate: f64,
    /// Its horizon when it was new.
    #[serde(default, skip_serializing_if = "is_zero", with = "seed_as_text")]
    pub first_id: u64,
    /// The counter that its flags are tied to (number of the counter space, position of the field),
    /// since it was made or since the ids that there were became loose:
    /// `engines/zero_proof.rs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tie: Option<(u32, u32)>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// TOML's integers have 63 bits.
mod seed_as_text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(seed: &u64, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&format!("{seed:016x}"))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        let text = String::deserialize(from)?;
        u64::from_str_radix(&text, 16)
            .map_err(|_| D::Error::custom("expected 16 hexadecimal digits"))
    }
}

/// Configuration and data folder do not fit together.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// The folder holds a space that the configuration does not name. Starting without it would
    /// hide its data.
    #[error(
        "the data folder has the {kind} space '{name}', which the configuration lacks: add it, or \
         use another folder"
    )]
    Unnamed {
        /// "counter" or "existence".
        kind: &'static str,
        /// The space.
        name: String,
    },
    /// The catalogue's own text is wrong: damage that the checksums did not see, or a newer
    /// release.
    #[error("the catalogue cannot be read: {0}")]
    Unreadable(String),
}

/// The fields of a schema that were not dropped, as the configuration writes them.
fn living(fields: &str) -> Option<String> {
    let schema = counter::Schema::parse(fields).ok()?;
    let fields = schema.living().map(|(_, field)| field.to_string());
    Some(fields.collect::<Vec<_>>().join(" "))
}

/// Whether two texts are the same schema, dropped fields aside.
pub fn is_same(a: &str, b: &str) -> bool {
    a == b || matches!((living(a), living(b)), (Some(a), Some(b)) if a == b)
}

impl Catalogue {
    /// The catalogue for this configuration: `self` and what is new. Spaces get the seeds that the
    /// configuration gives, or random ones.
    pub fn completed(&self, options: &Options) -> Result<Catalogue, Mismatch> {
        let mut next = self.clone();
        let numbers =
            self.counter.iter().map(|c| c.number).chain(self.existence.iter().map(|e| e.number));
        let mut number = numbers.max().unwrap_or(0);
        for made in &options.counter {
            match next.counter.iter().find(|c| c.name == made.name) {
                Some(known) if !is_same(&known.fields, &made.fields) => tracing::warn!(
                    "counter space '{}' has the fields '{}'; those of the configuration ('{}') are \
                     for a new space; TM.SPACE ALTER changes them, CONFIG REWRITE writes them down",
                    made.name,
                    known.fields,
                    made.fields
                ),
                Some(_) => {}
                None => {
                    number += 1;
                    next.counter.push(Counter {
                        number,
                        name: made.name.clone(),
                        fields: made.fields.clone(),
                    });
                }
            }
        }
        for made in &options.existence {
            match next.existence.iter().find(|e| e.name == made.name) {
                Some(known) if known.false_positive_rate != made.false_positive_rate => {
                    tracing::warn!(
                        "existence space '{}' was made for a false-positive rate of {}; the \
                         configuration's {} is for a new space; make another space, or set the \
                         file back",
                        made.name,
                        known.false_positive_rate,
                        made.false_positive_rate
                    )
                }
                Some(_) => {}
                None => {
                    number += 1;
                    let seed = if made.seed == 0 { fastrand::u64(1..) } else { made.seed };
                    next.existence.push(Existence {
                        number,
                        name: made.name.clone(),
                        seed,
                        false_positive_rate: made.false_positive_rate,
                        first_id: made.first_id,
                        tie: None,
                    });
                }
            }
        }
        next.named_by(options)?;
        Ok(next)
    }

    /// Whether the configuration names all of its spaces.
    pub fn named_by(&self, options: &Options) -> Result<(), Mismatch> {
        let unnamed = |kind, name: &str| Mismatch::Unnamed { kind, name: name.to_owned() };
        if let Some(lost) =
            self.counter.iter().find(|c| !options.counter.iter().any(|m| m.name == c.name))
        {
            return Err(unnamed("counter", &lost.name));
        }
        if let Some(lost) =
            self.existence.iter().find(|e| !options.existence.iter().any(|m| m.name == e.name))
        {
            return Err(unnamed("existence", &lost.name));
        }
        Ok(())
    }

    /// Writes into a configuration what is true of its spaces in this data folder: the fields as
    /// TM.SPACE ALTER has left them, and the rates that filters were made for. So a new folder that
    /// begins with this configuration gets the same spaces.
    pub fn describe(
        &self,
        counters: &mut [options::Counter],
        existences: &mut [options::Existence],
    ) {
        for known in &self.counter {
            let made = counters.iter_mut().find(|made| made.name == known.name);
            let Some((made, fields)) = made.zip(living(&known.fields)) else { continue };
            if !is_same(&made.fields, &fields) {
                made.fields = fields;
            }
        }
        for known in &self.existence {
            if let Some(made) = existences.iter_mut().find(|made| made.name == known.name) {
                made.false_positive_rate = known.false_positive_rate;
            }
        }
    }

    /// As a record's payload.
    pub fn encode(&self) -> Vec<u8> {
        // Structs of strings and numbers always have a TOML form.
        toml::to_string(self).unwrap_or_default().into_bytes()
    }

    /// From a record's payload.
    pub fn decode(bytes: &[u8]) -> Result<Catalogue, Mismatch> {
        let text = std::str::from_utf8(bytes).map_err(|e| Mismatch::Unreadable(e.to_string()))?;
        toml::from_str(text).map_err(|e| Mismatch::Unreadable(e.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spaces_keep_their_numbers_and_seeds() {
        let mut config = Options::default();
        let first = Catalogue::default().completed(&config).unwrap();
        assert_eq!(first.counter.iter().map(|c| c.number).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(first.existence.iter().map(|e| e.number).collect::<Vec<_>>(), [3, 4, 5]);
        assert!(first.existence.iter().all(|e| e.seed != 0));
        assert_eq!(Catalogue::decode(&first.encode()).unwrap(), first);

        // Another order and a new space: the old ones stay what they are.
        config.counter.reverse();
        let new = crate::options::Existence {
            name: "saved".into(),
            seed: u64::MAX,
            ..Default::default()
        };
        config.existence.insert(0, new);
        let second = first.completed(&config).unwrap();
        assert_eq!(second.counter, first.counter);
        assert_eq!(second.existence[..3], first.existence[..]);
        assert_eq!((second.existence[3].number, second.existence[3].seed), (6, u64::MAX));
        assert_eq!(Catalogue::decode(&second.encode()).unwrap(), second);

        // What was altered is described, without what was dropped; what says the same stays as it
        // is written.
        let mut altered = second.clone();
        altered.counter[0].fields = "like:24 repost:8 !comment:8 read:16 share:14".into();
        config.counter[0].fields = "follower:16, following:10, post:12".into();
        let mut described = config.clone();
        altered.describe(&mut described.counter, &mut described.existence);
        assert_eq!(described.counter[1].fields, "like:24 repost:8 read:16 share:14");
        assert_eq!(described.counter[0], config.counter[0]);
        assert_eq!(described.existence, config.existence);

        config.counter.pop();
        let error = second.completed(&config).unwrap_err();
        assert_eq!(error, Mismatch::Unnamed { kind: "counter", name: "post".into() });
        assert!(Catalogue::decode(b"counter = 7").is_err());
        assert!(Catalogue::decode(b"\xff").is_err());
    }
}
