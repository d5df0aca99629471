use super::*;

fn found(value: f64) -> Found {
    Found { value, resident: 2_000_000_000, details: Json::Null }
}

fn line(row: &'static Row, pairs: &[(f64, f64)]) -> Line {
    let variant = Variant::all(true)[0];
    let pair = |(ours, theirs): &(f64, f64)| {
        let beside = row.beside.map(|_| found(2.0 * ours));
        Pair { ours: found(*ours), theirs: row.llama.then(|| found(*theirs)), beside }
    };
    let (variant, tried) = match row.llama {
        true => (Some(variant), vec![(variant, 2.0)]),
        false => (None, Vec::new()),
    };
    let pairs = pairs.iter().map(pair).collect();
    Line { row, variant, tried, failed: Vec::new(), pairs }
}

fn against(against: Option<Against>) -> Option<(f64, f64)> {
    against.map(|Against { value, ratio, .. }| (value, ratio))
}

fn row(name: &str) -> &'static Row {
    chosen(&[name.to_owned()]).expect("a row")[0]
}

#[test]
fn a_ratio_is_the_middle_of_the_pairs_and_above_one_where_we_are_better() {
    let speeds = line(row("decode"), &[(4.0, 2.0), (30.0, 10.0), (8.0, 2.0)]);
    assert_eq!((speeds.ours(), against(speeds.theirs())), (8.0, Some((2.0, 3.0))));
    assert_eq!(against(speeds.beside()), None);
    let broken = line(row("decode"), &[(4.0, 2.0), (4.0, 0.1), (6.0, 2.0)]);
    assert_eq!(against(broken.theirs()), Some((2.0, 2.5)));
    assert_eq!(broken.json()["pairs_left_out"], 1);
    let times = line(row("start"), &[(1.0, 4.0), (1.0, 6.0)]);
    assert_eq!(against(times.theirs()), Some((5.0, 5.0)));
    assert!(row("start").better(1.0, 2.0) && row("decode").better(2.0, 1.0));
}

#[test]
fn a_row_may_be_held_beside_another_one_of_ours() {
    let narrow = line(row("decode-avx2"), &[(4.0, 2.0), (8.0, 2.0), (6.0, 2.0)]);
    assert_eq!(against(narrow.theirs()), Some((2.0, 3.0)));
    assert_eq!(against(narrow.beside()), Some((12.0, 0.5)));
    let deep = line(row("decode-16384"), &[(4.0, 0.0)]);
    assert_eq!((against(deep.theirs()), against(deep.beside())), (None, Some((8.0, 0.5))));
    let json = deep.json();
    assert_eq!((&json["beside"], &json["ratio_beside"]), (&json!("decode"), &json!(0.5)));
    assert!(json["llama_cpp"].is_null() && json["pairs"][0]["llama_cpp"].is_null(), "{json}");
    let table = table(&[narrow, deep]);
    assert_eq!(table.lines().count(), 2 + 3, "{table}");
    let expected = "| decode at depth 16384, beside our own decode instead of llama.cpp \
                    | 4.00 tokens/s | 8.00 tokens/s | 0.50 |  | 2.0 | 2.0 |";
    assert!(table.ends_with(expected), "{table}");
}

#[test]
fn the_table_names_units_settings_and_memory() {
    let table = table(&[line(row("first-token"), &[(250.0, 1000.0)])]);
    let expected = "| first token of 40 after an idle second | 250 ms | 1000 ms | 4.00 \
                    | flash on, repack on | 2.0 | 2.0 |";
    assert!(table.ends_with(expected), "{table}");
}

#[test]
fn the_result_keeps_every_pair_and_every_setting() {
    let json = line(row("prefill"), &[(4.0, 2.0)]).json();
    assert_eq!(json["pairs"][0]["llama_cpp"]["value"], 2.0);
    assert_eq!(json["llama_cpp_tried"]["flash on, repack on"], 2.0);
    assert_eq!(json["unit"], "tokens/s");
    assert!(json["our_share_of_the_bound"].is_null(), "{json}");
    let mut told = line(row("decode"), &[(4.0, 2.0), (5.0, 2.0), (4.0, 2.0)]);
    for (pair, share) in told.pairs.iter_mut().zip([0.9, 0.95, 0.8]) {
        pair.ours.details = json!({ "decode": { "share_of_read_bandwidth": share } });
    }
    assert_eq!(told.json()["our_share_of_the_bound"], 0.9);
    let mut last = found(2.0);
    last.details = json!({ "n_gen": 64 });
    told.pairs[2].theirs = Some(last);
    told.failed = vec![(Variant::all(true)[3], "SIGILL".to_owned())];
    let json = told.json();
    assert_eq!(json["llama_cpp_details"]["n_gen"], 64);
    assert_eq!(json["llama_cpp_failed"], json!({ "flash off, repack off": "SIGILL" }));
}

#[test]
fn odd_pairs_begin_with_what_ours_is_held_beside() {
    for (pair, expected) in [(1, ["other", "ours"]), (2, ["ours", "other"])] {
        let order = std::cell::RefCell::new(Vec::new());
        let turn = |whose: &'static str| {
            order.borrow_mut().push(whose);
            Ok(whose)
        };
        let found = in_turn(pair, || turn("ours"), || turn("other")).expect("both");
        assert_eq!((found, order.take()), (("ours", "other"), expected.to_vec()));
    }
}

#[test]
fn settings_are_tried_in_turn_and_what_fails_is_left_out() {
    let (rows, variants) = ([row("decode"), row("prefill")], Variant::all(false));
    let mut asked = Vec::new();
    let tried = try_settings(&rows, (&variants, 3), |variant| {
        asked.push(variant);
        anyhow::ensure!(variant != variants[1] || asked.len() < 4, "SIGILL");
        Ok(vec![asked.len() as f64, 0.0])
    });
    let Tried { found, failed } = tried.expect("one is left");
    // The second fails in the second round and is not tried again.
    assert_eq!(asked, [variants[0], variants[1], variants[0], variants[1], variants[0]]);
    assert_eq!(found, [(variants[0], vec![vec![1.0, 3.0, 5.0], vec![0.0; 3]])]);
    assert_eq!(failed, [(variants[1], "SIGILL".to_owned())]);
    let none = try_settings(&rows, (&variants, 3), |_| Err(anyhow::anyhow!("SIGILL")));
    let said = none.expect_err("nothing is left").to_string();
    assert!(said.ends_with("flash off, repack off: SIGILL"), "{said}");
    let alone = try_settings(&rows, (&[], 3), |_| Ok(Vec::new())).expect("nothing is asked");
    assert!(alone.found.is_empty() && alone.failed.is_empty());
}

#[test]
fn settings_without_a_second_copy_of_the_weights_can_be_had_alone() {
    assert_eq!(Variant::all(true).len(), 4);
    let lean: Vec<_> = Variant::all(false).iter().map(ToString::to_string).collect();
    assert_eq!(lean, ["flash on, repack off", "flash off, repack off"]);
}

#[test]
fn rows_share_processes_where_the_programs_allow_it() {
    let theirs = |a: &str, b: &str| row(a).shares_their_process(row(b));
    assert!(theirs("decode", "prefill") && theirs("first-token", "decode-4096"));
    assert!(!theirs("decode", "decode-1") && !theirs("decode", "batch-16"));
    assert!(!theirs("first-token", "start") && !theirs("batch-16", "batch-16"));
    let ours = |a: &str, b: &str| row(a).shares_our_process(row(b));
    assert!(ours("decode-4096", "prefill-4096"));
    assert!(!ours("decode", "prefill") && !ours("decode", "decode-4096"));
    let rows = chosen(&[]).expect("all of llama.cpp's");
    assert_eq!(rows.chunk_by(|a, b| a.shares_their_process(b)).count(), 4);
    assert!(!theirs("decode", "decode-16384") && !ours("decode-4096", "decode-16384"));
}

#[test]
fn an_unknown_row_lists_the_known_ones() {
    let error = chosen(&["nothing".to_owned()]).expect_err("no such row").to_string();
    assert!(ROWS.iter().all(|row| error.contains(row.name)), "{error}");
}

#[test]
fn a_record_of_too_few_pairs_is_refused() {
    check_pairs(5, true).expect("enough");
    check_pairs(1, false).expect("enough to look at");
    let said = |got, recorded| check_pairs(got, recorded).expect_err("too few").to_string();
    assert_eq!(said(4, true), "--pairs beside --record: got 4, expected at least 5");
    assert_eq!(said(0, false), "--pairs: got 0, expected at least 1");
}
