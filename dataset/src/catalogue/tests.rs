use super::*;

fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
    list.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn numbers(catalogue: &Catalogue) -> (Vec<u32>, Vec<u32>) {
    let counters = catalogue.counter.iter().map(|known| known.number);
    (counters.collect(), catalogue.existence.iter().map(|known| known.number).collect())
}

#[test]
fn a_configuration_seeds_a_new_folder_and_no_other() {
    let mut config = Options::default();
    let first = Catalogue::default().completed(&config);
    assert_eq!(numbers(&first), (vec![1, 2], vec![3, 4, 5]));
    assert!(first.existence.iter().all(|known| known.made.seed != 0));
    assert_eq!((first.version, first.last), (1, 5));
    assert_eq!((first.view.len(), first.action.len()), (1, 3));
    assert_eq!(Catalogue::decode(&first.encode()).unwrap(), first);
    config.counter.reverse();
    config.counter[0].memory_limit_bytes = 7;
    config.existence.pop();
    assert_eq!(first.completed(&config), first, "the data folder takes precedence");
    let lists = ["counter", "existence", "view", "action"].map(str::to_owned);
    let said = first.differences(&config, &lists);
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(said[0].contains("'user' has memory_limit = \"0\" in"), "{said:?}");
    assert!(said[1].contains("existence space 'read', but the file"), "{said:?}");
    assert_eq!(first.differences(&config, &lists[1..2]).len(), 1, "lists that the file contains");
    assert_eq!(first.differences(&Options::default(), &lists), [""; 0]);
}

#[test]
fn fields_that_differ_are_named() {
    let mut config = Options::default();
    let first = Catalogue::default().completed(&config);
    let lists = ["counter".to_owned()];
    config.counter[0].fields = "like:20 repost:8 comment:8 share:8".into();
    let said = first.differences(&config, &lists);
    let names: Vec<&str> = said.iter().filter_map(|line| line.split('\'').nth(1)).collect();
    assert_eq!(names, ["like", "share", "read"], "{said:?}");
    let line = "the field 'like' of the counter space 'post' is 12 in the data folder, which takes \
        precedence over 20 in the file. Use TM.SPACE ALTER post to change it, or CONFIG REWRITE to \
        update the file";
    assert_eq!(said[0], line);
    assert!(said[1].contains(" is none in the data folder") && said[2].contains("over none in"));
    config.counter[0].fields = "repost:8 like:12 comment:8 read:16".into();
    let said = first.differences(&config, &lists);
    assert!(said.len() == 1 && said[0].contains("'post' has fields = "), "{said:?}");
}

/// Old releases stored only numbers, names, schemas and seeds.
#[test]
fn an_old_catalogue_is_completed_from_the_configuration() {
    let old = "[[counter]]\nnumber = 1\nname = \"post\"\nfields = \"like:24 !repost:8 read:16\"\n\
               [[counter]]\nnumber = 4\nname = \"lost\"\nfields = \"n:8\"\n\
               [[existence]]\nnumber = 2\nname = \"liked\"\nseed = \"ffffffffffffffff\"\n\
               false_positive_rate = 0.001\nfirst_id = \"8000000000000000\"\n";
    let old = Catalogue::decode(old.as_bytes()).unwrap();
    assert_eq!((old.version, old.last), (0, 4));
    assert_eq!(Catalogue::decode(&old.encode()).unwrap(), old);
    let config = Options::default();
    let filled = old.filled(&config);
    assert_eq!(numbers(&filled), (vec![1, 4], vec![2]), "the log mentions others");
    assert_eq!(filled.counter[0].made.rows, "post:{id} post:{{id}}");
    assert_eq!(filled.counter[0].made.fields, "like:24 !repost:8 read:16");
    assert_eq!(filled.counter[1].made.rows, "", "not in the configuration");
    let liked = &filled.existence[0];
    assert_eq!((liked.made.seed, liked.made.first_id), (u64::MAX, 1 << 63));
    assert_eq!(liked.made.false_positive_rate, 0.001);
    assert_eq!(liked.made.pairs, "liked:{id} liked:{{id}}");
    // Default views and actions omit missing spaces and fields.
    assert_eq!(filled.view[0].counters, ["post.like", "post.read"]);
    assert_eq!(filled.view[0].flags, ["liked"]);
    assert_eq!(filled.action.iter().map(|a| a.name.as_str()).collect::<Vec<_>>(), ["like"]);
    let whole = old.completed(&config);
    assert_eq!(numbers(&whole), (vec![1, 4, 5], vec![2, 6, 7]), "numbers are never reused");
    assert_eq!(whole.version, 1);
    assert_eq!(Catalogue::decode(&whole.encode()).unwrap(), whole);
    whole.check().unwrap();
}

#[test]
fn a_configuration_is_described_as_it_has_become() {
    let mut config = Options::default();
    let mut now = Catalogue::default().completed(&config);
    now.counter[0].made.fields = "like:24 repost:8 !comment:8 read:16 share:14".into();
    config.counter[1].fields = "follower:16, following:10, post:12".into();
    now.drop_view("home").unwrap();
    now.create_existence("saved", &pairs(&[("pairs", "saved:{id}"), ("seed", "9")])).unwrap();
    let Options { counter, existence, view, action, .. } = &mut config;
    now.describe(Described { counter, existence, view, action });
    assert_eq!(config.counter[0].fields, "like:24 repost:8 read:16 share:14");
    assert_eq!(
        config.counter[1].fields, "follower:16, following:10, post:12",
        "the field list is unchanged"
    );
    assert_eq!(config.view, []);
    let saved = config.existence.last().unwrap();
    assert_eq!((saved.name.as_str(), saved.seed), ("saved", 0), "seeds are secret");
}

#[test]
fn changes_are_whole_and_refused_with_a_reason() {
    let mut now = Catalogue::default().completed(&Options::default());
    let invalid = |why: &str| Err(EditError::Invalid(why.to_owned()));
    assert_eq!(
        now.create_counter("a", &pairs(&[("nope", "1")]))
            .map_err(|e| e.to_string()[..22].to_owned()),
        Err("unknown option 'nope':".to_owned())
    );
    assert_eq!(
        now.create_counter("a", &pairs(&[("spill", "perhaps")])),
        invalid("spill: argument must be 'yes' or 'no'")
    );
    assert_eq!(
        now.create_counter("a", &pairs(&[("rows", "a"), ("rows", "b")])),
        invalid("rows: duplicate parameter")
    );
    assert_eq!(
        now.set("post", &pairs(&[("fields", "a:1")])),
        invalid(
            "cannot change fields of an existing space: use TM.SPACE ALTER ADD, WIDEN, NARROW, \
             BOUND or DROP"
        )
    );
    assert_eq!(now.set("nope", &[]), Err(EditError::NoSuch("space", "nope".to_owned())));
    now.set("post", &pairs(&[("memory_limit", "2gb"), ("spill", "yes")])).unwrap();
    assert_eq!(now.counter[0].made.memory_limit_bytes, 2 << 30);
    now.set("liked", &pairs(&[("max_tables", "7")])).unwrap();
    assert_eq!(now.existence[0].made.max_tables, 7);
    assert_ne!(now.existence[0].made.seed, 0);

    now.rename("post", "article").unwrap();
    now.rename("liked", "loved").unwrap();
    assert_eq!(now.view[0].counters[0], "article.like");
    assert_eq!(now.view[0].flags, ["loved", "read"]);
    assert_eq!((&*now.action[0].flag, &*now.action[0].counter), ("loved", "article.like"));
    now.check().unwrap();
    let by = "the view 'home', the action 'like', the action 'repost', the action 'read'";
    let in_use = EditError::InUse { what: "space 'article'".to_owned(), by: by.to_owned() };
    assert_eq!(now.drop_space("article"), Err(in_use));
    now.drop_view("home").unwrap();
    ["like", "repost", "read"].iter().for_each(|name| now.drop_action(name).unwrap());
    now.drop_space("article").unwrap();
    assert_eq!(now.drop_action("like"), Err(EditError::NoSuch("action", "like".to_owned())));
    now.create_counter("post", &pairs(&[("fields", "like:8"), ("rows", "p:{id}")])).unwrap();
    assert_eq!(now.counter.last().map(|known| known.number), Some(6), "a new number");
    now.check().unwrap();
    let exists = |what, name: &str| Err(EditError::Exists(what, name.to_owned()));
    assert_eq!(now.create_counter("post", &[]), exists("space", "post"));
    assert_eq!(now.rename("post", "loved"), exists("space", "loved"));
    let shown = |counters| pairs(&[("counters", counters)]);
    now.create_view("wall", &shown("post.like"), false).unwrap();
    assert_eq!(now.create_view("wall", &shown("post"), false), exists("view", "wall"));
    now.create_view("wall", &shown("post"), true).unwrap();
    assert_eq!(now.view.last().map(|view| view.counters.join(" ")), Some("post".to_owned()));
    assert!(now.rename("post", "wall").is_err(), "a view's name");
    now.check().unwrap();
}

#[test]
fn what_is_no_catalogue_is_refused() {
    for text in [
        "counter = 7",
        "nope = 1",
        "[[counter]]\nname = \"a\"\nfields = \"a:1\"",
        "[[counter]]\nnumber = -1\nname = \"a\"",
        "[[counter]]\nnumber = 1\nnope = 1",
        "[[existence]]\nnumber = 1\nname = \"a\"",
        "[[existence]]\nnumber = 1\nseed = \"x\"",
        "[[view]]\nnope = 1",
        "version = \"x\"",
    ] {
        assert!(Catalogue::decode(text.as_bytes()).is_err(), "{text}");
    }
    assert!(Catalogue::decode(b"\xff").is_err());
}
