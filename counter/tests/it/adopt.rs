//! Replaying schema changes and rows from any point of the history yields the same space.

use counter::{Alteration, Error, Options, Schema, Space};

fn space(schema: &str) -> Space {
    Space::new(Options::new(Schema::parse(schema).unwrap())).unwrap()
}

#[test]
fn a_history_ends_where_it_ended_from_wherever_it_is_told_again() {
    let source = space("a:4 b:5");
    let mut history = vec![source.schema()];
    let name = |name: &str| name.to_owned();
    for change in [
        Alteration::Add { name: name("c"), width: 6, bounds: Default::default() },
        Alteration::Widen { name: name("a"), width: 9 },
        Alteration::Drop { name: name("a") },
        Alteration::Add { name: name("a"), width: 3, bounds: Default::default() },
        Alteration::Drop { name: name("b") },
        Alteration::Widen { name: name("c"), width: 2 },
    ] {
        history.push(source.alter(&change).unwrap());
    }
    assert_eq!(history.last().unwrap().to_string(), "!a:9 !b:5 c:2 a:3");
    for known in 0..history.len() {
        for from in 0..=known {
            let copy = space(&history[known].to_string());
            copy.put(7, Some(&vec![1; history[known].width()])).unwrap();
            for (step, told) in history.iter().enumerate().skip(from) {
                copy.adopt(told).unwrap();
                // Logs a row under this schema.
                copy.put(7, Some(&vec![2; told.width()])).unwrap();
                assert!(copy.schema().width() >= told.width(), "from {from}, step {step}");
            }
            assert_eq!(copy.schema(), source.schema(), "known {known}, from {from}");
            let mut row = [9; 4];
            assert!(copy.get(7, &mut row).unwrap());
            assert_eq!(row, [0, 0, 2, 2]);
        }
    }
}

#[test]
fn another_spaces_schema_is_refused() {
    let copy = space("a:4 b:5");
    let told = Schema::parse("a:4 x:5 c:6").unwrap();
    assert!(matches!(copy.adopt(&told), Err(Error::BadSchema(_))));
    assert_eq!(copy.schema().to_string(), "a:4 b:5");
}
