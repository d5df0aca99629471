//! Charts as SVG: lines or grouped bars over a few series, one colour each.

use std::fmt::{self, Write as _};

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 420.0;
/// The plot within the picture: left, top, right, bottom.
const PLOT: [f64; 4] = [70.0, 40.0, 740.0, 340.0];
/// Colours that people with any colour vision can tell apart.
const COLOURS: [&str; 7] =
    ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#000000"];

/// How values are drawn.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// Points joined by lines over a numeric axis.
    Lines,
    /// Upright bars, grouped: a point's `x` is the index of its group, and these are their names.
    Bars(Vec<String>),
}

/// Values of one colour.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// What the legend says.
    pub name: String,
    /// `(x, y)`, ascending in `x`.
    pub points: Vec<(f64, f64)>,
    /// Drawn with a dashed line, for bounds and targets.
    pub dashed: bool,
}

impl Series {
    /// Values drawn plainly.
    #[must_use]
    pub fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), points, dashed: false }
    }
}

/// A chart; the y axis begins at zero. [`Chart::svg`] draws it.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// What is shown.
    pub title: String,
    /// What the horizontal axis says, with its unit.
    pub x: String,
    /// What the vertical axis says, with its unit.
    pub y: String,
    /// How values are drawn.
    pub kind: Kind,
    /// The values.
    pub series: Vec<Series>,
}

/// From values to places: `low..=high` lies on `from..=to`.
#[derive(Clone, Copy)]
struct Scale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Scale {
    fn at(self, value: f64) -> f64 {
        self.from + (value - self.low) / (self.high - self.low) * (self.to - self.from)
    }
}

impl Chart {
    /// The chart as an SVG document. Values that are not finite are left out.
    #[must_use]
    pub fn svg(&self) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) -> fmt::Result {
        let [left, top, right, bottom] = PLOT;
        let ys = self.finite().map(|(_, y)| y).fold(0.0, f64::max);
        let step = nice_step(ys / 5.0);
        let high = (ys / step).ceil().max(1.0) * step;
        let y = Scale { low: 0.0, high, from: bottom, to: top };
        write!(out, r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}""#)?;
        writeln!(out, r#" font-family="sans-serif" font-size="12">"#)?;
        writeln!(out, r##"<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>"##)?;
        let middle = f64::midpoint(left, right);
        text(out, (middle, top - 18.0), "middle", &self.title)?;
        text(out, (middle, bottom + 38.0), "middle", &self.x)?;
        let centre = f64::midpoint(top, bottom);
        write!(out, r#"<g transform="rotate(-90 16 {centre})">"#)?;
        text(out, (16.0, centre), "middle", &self.y)?;
        writeln!(out, "</g>")?;
        for n in 0..=(high / step).round() as usize {
            let value = n as f64 * step;
            line(out, (left, y.at(value)), (right, y.at(value)), "#dddddd")?;
            text(out, (left - 6.0, y.at(value) + 4.0), "end", &short(value))?;
        }
        match &self.kind {
            Kind::Lines => self.lines(out, y)?,
            Kind::Bars(groups) => self.bars(out, y, groups)?,
        }
        line(out, (left, bottom), (right, bottom), "#000000")?;
        self.legend(out)?;
        writeln!(out, "</svg>")
    }

    fn finite(&self) -> impl Iterator<Item = (f64, f64)> {
        let all = self.series.iter().flat_map(|series| series.points.iter().copied());
        all.filter(|(x, y)| x.is_finite() && y.is_finite())
    }

    fn lines(&self, out: &mut String, y: Scale) -> fmt::Result {
        let low = self.finite().map(|(x, _)| x).fold(f64::INFINITY, f64::min);
        let high = self.finite().map(|(x, _)| x).fold(f64::NEG_INFINITY, f64::max);
        // One value, or none, lies in the middle.
        let (low, high) = if low < high { (low, high) } else { (low - 1.0, low + 1.0) };
        let (low, high) = if low.is_finite() { (low, high) } else { (0.0, 1.0) };
        let x = Scale { low, high, from: PLOT[0], to: PLOT[2] };
        let step = nice_step((high - low) / 8.0);
        for n in (low / step).ceil() as i64..=(high / step).floor() as i64 {
            let value = n as f64 * step;
            text(out, (x.at(value), PLOT[3] + 18.0), "middle", &short(value))?;
        }
        for (series, colour) in self.series.iter().zip(COLOURS.iter().cycle()) {
            let dashes = if series.dashed { r#" stroke-dasharray="6 4""# } else { "" };
            let points: Vec<_> = series.points.iter().filter(|p| finite(p)).collect();
            write!(out, r#"<polyline fill="none" stroke="{colour}" stroke-width="2"{dashes}"#)?;
            write!(out, r#" points=""#)?;
            for (px, py) in &points {
                write!(out, "{:.1},{:.1} ", x.at(*px), y.at(*py))?;
            }
            writeln!(out, r#""/>"#)?;
            if let [(px, py)] = points[..] {
                let (px, py) = (x.at(*px), y.at(*py));
                writeln!(out, r#"<circle cx="{px:.1}" cy="{py:.1}" r="3" fill="{colour}"/>"#)?;
            }
        }
        Ok(())
    }

    fn bars(&self, out: &mut String, y: Scale, groups: &[String]) -> fmt::Result {
        let group = (PLOT[2] - PLOT[0]) / groups.len().max(1) as f64;
        let bar = group * 0.8 / self.series.len().max(1) as f64;
        for (n, name) in groups.iter().enumerate() {
            let x = PLOT[0] + (n as f64 + 0.5) * group;
            text(out, (x, PLOT[3] + 18.0), "middle", name)?;
        }
        for (n, (series, colour)) in self.series.iter().zip(COLOURS.iter().cycle()).enumerate() {
            for (px, py) in series.points.iter().filter(|p| finite(p)) {
                let x = PLOT[0] + (px + 0.1) * group + n as f64 * bar;
                let (top, height) = (y.at(*py), PLOT[3] - y.at(*py));
                write!(out, r#"<rect x="{x:.1}" y="{top:.1}" width="{bar:.1}""#)?;
                writeln!(out, r#" height="{height:.1}" fill="{colour}"/>"#)?;
                text(out, (x + bar / 2.0, top - 4.0), "middle", &short(*py))?;
            }
        }
        Ok(())
    }

    fn legend(&self, out: &mut String) -> fmt::Result {
        let width = (PLOT[2] - PLOT[0]) / self.series.len().max(1) as f64;
        let y = HEIGHT - 18.0;
        for (n, (series, colour)) in self.series.iter().zip(COLOURS.iter().cycle()).enumerate() {
            let x = PLOT[0] + n as f64 * width;
            let box_y = y - 10.0;
            writeln!(
                out,
                r#"<rect x="{x:.1}" y="{box_y}" width="12" height="12" fill="{colour}"/>"#
            )?;
            text(out, (x + 18.0, y), "start", &series.name)?;
        }
        Ok(())
    }
}

fn finite((x, y): &(f64, f64)) -> bool {
    x.is_finite() && y.is_finite()
}

/// The next larger of 1, 2 and 5 times a power of ten.
fn nice_step(least: f64) -> f64 {
    let power = 10f64.powf(least.max(1e-12).log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|n| n * power).into_iter().find(|n| *n >= least).unwrap_or(power)
}

/// A number with as many digits as a reader needs.
fn short(value: f64) -> String {
    let digits = if value.abs() >= 100.0 { 0 } else { 3 };
    let text = format!("{value:.digits$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

fn line(out: &mut String, from: (f64, f64), to: (f64, f64), colour: &str) -> fmt::Result {
    let ((x1, y1), (x2, y2)) = (from, to);
    writeln!(
        out,
        r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{colour}"/>"#
    )
}

fn text(out: &mut String, (x, y): (f64, f64), anchor: &str, text: &str) -> fmt::Result {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    writeln!(out, r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{text}</text>"#)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(kind: Kind, points: &[(f64, f64)]) -> String {
        let series = Series::new("a < b & c", points.to_vec());
        let dashed = Series { dashed: true, ..Series::new("bound", points.to_vec()) };
        let (title, x, y) = ("title".into(), "x".into(), "y".into());
        Chart { title, x, y, kind, series: vec![series, dashed] }.svg()
    }

    #[test]
    fn the_largest_value_lies_on_the_plot_and_zero_on_its_floor() {
        let svg = chart(Kind::Lines, &[(0.0, 0.0), (4.0, 10.0)]);
        assert!(svg.contains("points=\"70.0,340.0 740.0,40.0 \""), "{svg}");
        assert_eq!(svg.matches("stroke-dasharray").count(), 1, "{svg}");
    }

    #[test]
    fn bars_stand_beside_each_other_in_their_group() {
        let groups = vec!["one".to_owned(), "two".to_owned()];
        let svg = chart(Kind::Bars(groups), &[(0.0, 5.0), (1.0, 10.0)]);
        // Two groups of 335, two bars of 134 each.
        for x in ["103.5", "237.5", "438.5", "572.5"] {
            assert!(svg.contains(&format!("<rect x=\"{x}\"")), "{x}: {svg}");
        }
    }

    #[test]
    fn names_are_escaped_and_odd_values_left_out() {
        let svg = chart(Kind::Lines, &[(0.0, f64::NAN), (1.0, 2.0)]);
        assert!(svg.contains("a &lt; b &amp; c") && !svg.contains("NaN"), "{svg}");
        for points in [&[][..], &[(3.0, 0.0)]] {
            let svg = chart(Kind::Lines, points);
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
            assert!(svg.trim_end().ends_with("</svg>"), "{svg}");
        }
    }

    #[test]
    fn steps_are_round_numbers() {
        assert_eq!([0.03, 1.0, 1.1, 4.0, 70.0].map(nice_step), [0.05, 1.0, 2.0, 5.0, 100.0]);
        assert_eq!([0.25, 3.0, 1234.5].map(short), ["0.25", "3", "1234"]);
    }
}
