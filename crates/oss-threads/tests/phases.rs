//! What a phase promises, for every kind of partition.

use oss_threads::{Chunks, PerWorker, RowCuts, Spans, Team, Tiles};

#[test]
fn every_unit_runs_exactly_once_for_any_count_and_team() {
    for threads in 1..=5 {
        let team = Team::new(threads).expect("threads");
        for units in [0, 1, 2, 3, 4, 5, 7, 64, 101, 1000] {
            let mut runs = vec![0u32; units];
            team.phase(units, Chunks::new(&mut runs, 1), |_, run| run[0] += 1);
            assert!(runs.iter().all(|&run| run == 1), "{threads} threads, {units} units");
        }
    }
}

/// As on machines with many cores: most phases have fewer units than the team has threads.
#[test]
fn large_teams_run_every_unit_once_whether_all_take_part_or_few() {
    for threads in [16, 64] {
        let team = Team::new(threads).expect("threads");
        let mut scratch = vec![0; threads];
        let mut sum = 0;
        for round in 0..20 {
            for units in [8, 1, 17] {
                let mut runs = vec![(0u32, 0); units];
                let out = (Chunks::new(&mut runs, 1), PerWorker::new(&mut scratch));
                team.phase(units, out, |unit, (run, done)| {
                    run[0] = (run[0].0 + 1, unit.worker);
                    *done += 1;
                });
                let takers = threads.min(units);
                let all = runs.iter().all(|&(run, worker)| run == 1 && worker < takers);
                assert!(all, "{threads} threads, {units} units, round {round}: {runs:?}");
                sum += units;
            }
        }
        assert_eq!(scratch.iter().sum::<usize>(), sum);
    }
}

#[test]
fn fewer_units_than_the_partition_has_leave_the_rest_alone() {
    let team = Team::new(2).expect("threads");
    let mut data = [0; 10];
    team.phase(2, Chunks::new(&mut data, 3), |unit, part| part.fill(unit.index + 1));
    assert_eq!(data, [1, 1, 1, 2, 2, 2, 0, 0, 0, 0]);
}

#[test]
fn tiles_spans_and_tuples_put_each_unit_in_its_place() {
    let team = Team::new(2).expect("threads");
    let mut even = [99; 20];
    let cuts = RowCuts::Every { rows: 4, block: 3 };
    team.phase(4, Tiles::new(&mut even, 4, cuts, 2), |unit, mut tile| {
        let (range, block) = (unit.index / 2, unit.index % 2);
        assert_eq!(tile.row_range(), [0..3, 3..4][range]);
        assert_eq!(tile.columns(), [0..2, 2..4][block]);
        (0..tile.rows()).for_each(|row| tile.row_mut(row).fill(unit.index * 10 + row));
    });
    let rows = [[0, 0, 10, 10], [1, 1, 11, 11], [2, 2, 12, 12], [20, 20, 30, 30], [99; 4]];
    assert_eq!(even.as_chunks::<4>().0, rows);

    let mut tiles = [9; 12];
    let borders = [0, 1, 1, 3];
    team.phase(6, Tiles::new(&mut tiles, 3, RowCuts::At(&borders), 2), |unit, mut tile| {
        (0..tile.rows()).for_each(|row| tile.row_mut(row).fill(unit.index));
    });
    assert_eq!(tiles, [0, 0, 1, 4, 4, 5, 4, 4, 5, 9, 9, 9]);

    let (mut data, mut scratch) = ([0; 6], [0, 0]);
    let spans = [0..1, 1..1, 2..6];
    let out = (Spans::new(&mut data, &spans), PerWorker::new(&mut scratch));
    team.phase(3, out, |unit, (part, sum)| {
        part.fill(unit.index + 1);
        *sum += part.len();
    });
    assert_eq!((data, scratch.iter().sum::<usize>()), ([1, 0, 3, 3, 3, 3], 5));

    let (mut some, mut seen) = ([0; 3], [0; 3]);
    let none = None::<Chunks<'_, i32>>;
    let out = (Some(Chunks::new(&mut some, 1)), none, Chunks::new(&mut seen, 1));
    team.phase(3, out, |_, (some, none, seen)| {
        some.expect("a part").fill(1);
        seen.fill(i32::from(none.is_none()));
    });
    assert_eq!((some, seen), ([1; 3], [1; 3]));
}
