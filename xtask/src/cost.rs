//! What a token costs: measures models of one shape that differ in one thing (layers, experts per
//! token), and one model with different contexts and threads; prints tables and draws charts.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use oss_testing::median;
use serde_json::json;

use crate::bench::Bench;
use crate::quiet;
use crate::record::Record;
use crate::shell;
use crate::synth::{self, Format, Shape};

// The charts of the examples, without building the engine for every chore.
#[expect(unreachable_pub, reason = "there it is a library")]
#[path = "../../examples/src/chart.rs"]
mod chart;

use chart::{Chart, Kind, Series};

/// Positions before the measured tokens.
const CONTEXTS: [usize; 4] = [0, 1024, 4096, 16_384];
/// Experts of a token, where the shape has any.
const CHOSEN: [usize; 4] = [1, 2, 4, 8];

/// How often a point is tried in search of a minute that is like the first point's.
const TRIES: usize = 6;
/// How far apart the read bandwidths of two minutes may be that are alike.
const ALIKE: f64 = 0.1;

/// What to measure.
#[derive(Args)]
pub(crate) struct Options {
    /// The models' shape, as `synth` knows it
    #[arg(long, default_value = "gpt-oss-20b")]
    shape: String,
    /// Layers of the largest model; the others have a quarter, a half and three quarters of them
    #[arg(long, default_value_t = 8)]
    layers: usize,
    /// Tokens that are generated each time
    #[arg(long, default_value_t = 32)]
    gen_tokens: usize,
    /// How often each point is measured
    #[arg(long, default_value_t = 3)]
    repeat: usize,
    /// A folder for the charts, one SVG file each
    #[arg(long)]
    charts: Option<PathBuf>,
    /// Keeps the result in benches/record under this name
    #[arg(long)]
    record: Option<String>,
}

/// A measured model.
#[derive(Clone, Copy, PartialEq)]
struct Model {
    layers: usize,
    /// Experts of a token; 0 when dense.
    chosen: usize,
}

/// One run of the bench.
#[derive(Clone, Copy, PartialEq)]
struct Point {
    model: Model,
    context: usize,
    threads: usize,
}

/// What it gave: milliseconds of a token, what reading its weights alone would have taken, and how
/// fast memory was meanwhile.
#[derive(Clone, Copy)]
struct Cost {
    milliseconds: f64,
    bound: f64,
    read_gb_per_s: f64,
}

impl Cost {
    /// The same where memory is read so fast: a token's time is that of reading, nearly all of it.
    fn at(self, read_gb_per_s: f64) -> Self {
        let slower = self.read_gb_per_s / read_gb_per_s;
        let (milliseconds, bound) = (self.milliseconds * slower, self.bound * slower);
        Self { milliseconds, bound, read_gb_per_s }
    }
}

/// One thing that varies.
struct Line {
    name: &'static str,
    axis: &'static str,
    /// Its values, and where each is measured.
    points: Vec<(usize, Point)>,
    /// Its points read memory alike: what differs between them is the minute, which is taken out
    /// of what is drawn.
    alike: bool,
}

/// Measures, prints and draws.
pub(crate) fn run(options: &Options) -> Result<()> {
    ensure!(options.layers >= 4, "--layers: got {}, expected at least 4", options.layers);
    let name = options.record.as_ref().map(|name| format!("cost-{name}"));
    let record = name.as_deref().map(Record::begin).transpose()?;
    let folder = shell::scratch("cost")?;
    let threads = std::thread::available_parallelism()?.get();
    let file = folder.path().join("model.gguf");
    let mut wanted = synth::Options::new(&options.shape, Format::Gguf, file.clone());
    let shape = wanted.shape()?;
    let bench = Bench::build()?;
    let busy = quiet::wait();
    let longest = shape.context.saturating_sub(options.gen_tokens);
    let lines = lines(&shape, options.layers, threads, longest);
    let mut found: Vec<(Point, Cost)> = Vec::new();
    let mut written = None;
    // Lines meet: each point is measured once. One file at a time, they are large.
    for point in points(&lines) {
        if written != Some(point.model) {
            wanted.layers = Some(point.model.layers);
            wanted.chosen = (shape.experts > 0).then_some(point.model.chosen);
            synth::write(&wanted)?;
            written = Some(point.model);
        }
        // Fewer threads may read less in any minute.
        let first = found.first().filter(|(first, _)| first.threads == point.threads);
        let usual = first.map(|(_, cost)| cost.read_gb_per_s);
        let cost = in_a_usual_minute(usual, || measure(&bench, &file, point, options))?;
        let Point { model: Model { layers, chosen }, context, threads } = point;
        let ms = cost.milliseconds;
        eprintln!(
            "{layers} layers, {chosen} experts, context {context}, threads {threads}: {ms:.2} ms"
        );
        found.push((point, cost));
    }
    let mut json = json!({
        "shape": options.shape,
        "layers": options.layers,
        "busy_cpus_before": busy,
    });
    let mut charts = Vec::new();
    for line in &lines {
        let cost = |point: &Point| found.iter().find(|(at, _)| at == point).map(|(_, cost)| *cost);
        let value = |(value, point): &(usize, Point)| Some((*value, cost(point)?));
        let costs: Vec<(usize, Cost)> = line.points.iter().filter_map(value).collect();
        let each = |(value, cost): &(usize, Cost)| {
            let Cost { milliseconds, bound, read_gb_per_s } = cost;
            json!({
                line.name: value,
                "ms": milliseconds,
                "weights_read_ms": bound,
                "read_gb_per_s": read_gb_per_s,
            })
        };
        json[line.name] = costs.iter().map(each).collect();
        let rates = costs.iter().map(|(_, cost)| cost.read_gb_per_s);
        let usual = median(rates).filter(|_| line.alike);
        let alike = |(value, cost): &(usize, Cost)| (*value, usual.map_or(*cost, |at| cost.at(at)));
        let drawn: Vec<_> = costs.iter().map(alike).collect();
        println!("{}", table(line, &costs, &drawn));
        charts.push((line.name, picture(&options.shape, line, &drawn, usual)));
    }
    if let Some(record) = &record {
        record.write(json)?;
    }
    // Last: a folder that cannot be written takes no figures along.
    if let Some(folder) = &options.charts {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        for (name, chart) in charts {
            let path = folder.join(format!("cost-{name}.svg"));
            fs::write(&path, chart.svg()).with_context(|| path.display().to_string())?;
        }
    }
    Ok(())
}

/// What is varied around the largest model, read by all threads from an empty context.
fn lines(shape: &Shape, layers: usize, threads: usize, longest: usize) -> Vec<Line> {
    let base = Point { model: Model { layers, chosen: shape.top }, context: 0, threads };
    let with_layers = |n: usize| {
        let layers = n * layers / 4;
        (layers, Point { model: Model { layers, ..base.model }, ..base })
    };
    let with_chosen = |n: usize| (n, Point { model: Model { chosen: n, ..base.model }, ..base });
    let contexts = CONTEXTS.into_iter().filter(|context| *context <= longest);
    let chosen = CHOSEN.into_iter().filter(|chosen| *chosen <= shape.experts);
    let counts = std::iter::successors(Some(1), |n| Some(n * 2)).take_while(|n| *n < threads);
    let mut lines = vec![
        Line {
            name: "layers",
            axis: "layers",
            points: (1..=4).map(with_layers).collect(),
            alike: true,
        },
        Line {
            name: "context",
            axis: "positions before the token",
            points: contexts.map(|context| (context, Point { context, ..base })).collect(),
            alike: true,
        },
        Line {
            name: "threads",
            axis: "threads",
            points: counts.chain([threads]).map(|n| (n, Point { threads: n, ..base })).collect(),
            alike: false,
        },
    ];
    if shape.experts > 0 {
        let points = chosen.map(with_chosen).collect();
        lines.push(Line { name: "experts", axis: "experts of a token", points, alike: true });
    }
    lines
}

/// Every point of the lines once, those of a model one after the other.
fn points(lines: &[Line]) -> Vec<Point> {
    let mut points: Vec<Point> = Vec::new();
    for (_, point) in lines.iter().flat_map(|line| &line.points) {
        if !points.contains(point) {
            points.push(*point);
        }
    }
    points.sort_by_key(|point| (point.model.layers, point.model.chosen));
    points
}

/// Measures until the read bandwidth is about the usual one: minutes may differ by half. What came
/// nearest to it, where none was alike.
fn in_a_usual_minute(
    usual: Option<f64>,
    mut measure: impl FnMut() -> Result<Cost>,
) -> Result<Cost> {
    let mut best = measure()?;
    let Some(usual) = usual else { return Ok(best) };
    let off = |cost: Cost| (cost.read_gb_per_s / usual - 1.0).abs();
    for _ in 1..TRIES {
        if off(best) <= ALIKE {
            break;
        }
        let again = measure()?;
        if off(again) < off(best) {
            best = again;
        }
    }
    Ok(best)
}

fn measure(bench: &Bench, file: &Path, point: Point, options: &Options) -> Result<Cost> {
    let numbers = [
        ("--prompt-tokens", 0),
        ("--threads", point.threads),
        ("--depth", point.context),
        ("--gen-tokens", options.gen_tokens),
        ("--repeat", options.repeat),
    ];
    let printed = bench.run(file, &numbers, &[], &[])?;
    Ok(Cost {
        milliseconds: 1e3 / printed.number("/decode/tokens_per_s/median")?,
        bound: 1e3 / printed.number("/bound/decode_tokens_per_s")?,
        read_gb_per_s: printed.number("/machine/read_gb_per_s/median")?,
    })
}

/// What was measured, and what is drawn of it.
fn table(line: &Line, costs: &[(usize, Cost)], drawn: &[(usize, Cost)]) -> String {
    let axis = line.axis;
    let mut text =
        format!("| {axis} | ms a token | reading its weights, ms | GB/s | drawn, ms |\n");
    text += "|---:|---:|---:|---:|---:|\n";
    for ((value, cost), (_, drawn)) in costs.iter().zip(drawn) {
        let Cost { milliseconds, bound, read_gb_per_s } = cost;
        let drawn = drawn.milliseconds;
        text += &format!(
            "| {value} | {milliseconds:.2} | {bound:.2} | {read_gb_per_s:.1} | {drawn:.2} |\n"
        );
    }
    text
}

/// The chart of a line; `usual` is the read bandwidth that its points were brought to.
fn picture(shape: &str, line: &Line, costs: &[(usize, Cost)], usual: Option<f64>) -> Chart {
    // Threads are few, and their times lie on no line.
    let bars = line.name == "threads";
    let series = |name: &str, of: fn(&Cost) -> f64| {
        let points = costs.iter().enumerate();
        let points =
            points.map(|(n, (value, cost))| (if bars { n } else { *value } as f64, of(cost)));
        Series::new(name, points.collect())
    };
    let mut bound = series("reading its weights", |cost| cost.bound);
    bound.dashed = true;
    Chart {
        title: format!("{shape}: a token against {}", line.name),
        x: line.axis.to_owned(),
        y: match usual {
            Some(rate) => format!("ms a token, at {rate:.0} GB/s"),
            None => "ms a token".to_owned(),
        },
        kind: match bars {
            true => Kind::Bars(costs.iter().map(|(value, _)| value.to_string()).collect()),
            false => Kind::Lines,
        },
        series: vec![series("measured", |cost| cost.milliseconds), bound],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_is_measured_until_a_minute_is_alike_or_the_tries_are_over() {
        let measured = |usual, rates: &[f64]| {
            let mut rates = rates.iter();
            let cost = in_a_usual_minute(usual, || {
                let read_gb_per_s = *rates.next().expect("no more tries");
                Ok(Cost { milliseconds: 1.0, bound: 1.0, read_gb_per_s })
            });
            cost.expect("it was measured").read_gb_per_s
        };
        assert_eq!(measured(None, &[80.0]), 80.0);
        assert_eq!(measured(Some(50.0), &[80.0, 70.0, 46.0]), 46.0);
        assert_eq!(measured(Some(50.0), &[80.0, 75.0, 60.0, 70.0, 30.0, 90.0]), 60.0);
    }

    #[test]
    fn what_is_drawn_is_brought_to_one_bandwidth() {
        let cost = Cost { milliseconds: 12.0, bound: 10.0, read_gb_per_s: 40.0 };
        let brought = cost.at(80.0);
        assert_eq!((brought.milliseconds, brought.bound, brought.read_gb_per_s), (6.0, 5.0, 80.0));
    }

    #[test]
    fn each_line_varies_one_thing_and_meets_the_largest_model() {
        let shape = |name| synth::Options::new(name, Format::Gguf, PathBuf::new()).shape();
        let all = lines(&shape("gpt-oss-20b").expect("known"), 8, 6, 100_000);
        let values =
            |n: usize| all[n].points.iter().map(|(value, _)| *value).collect::<Vec<usize>>();
        assert_eq!(values(0), [2, 4, 6, 8]);
        assert_eq!(values(1), CONTEXTS);
        assert_eq!(values(2), [1, 2, 4, 6]);
        assert_eq!(values(3), CHOSEN);
        for line in &all {
            let full = |(_, point): &&(usize, Point)| {
                point.model == Model { layers: 8, chosen: 4 }
                    && (point.context, point.threads) == (0, 6)
            };
            assert_eq!(line.points.iter().filter(full).count(), 1, "{}", line.name);
        }
        assert_eq!(points(&all).len(), 13, "16 points, of which one is on all four lines");
        let dense = lines(&shape("tinyllama").expect("known"), 8, 1, 2000);
        assert_eq!(dense.len(), 3, "a dense model has no experts to vary");
        assert_eq!(dense[1].points.len(), 2, "the model sees no more than its context");
    }
}
