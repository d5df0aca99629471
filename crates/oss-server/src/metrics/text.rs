//! The text that Prometheus reads (exposition format 0.0.4).
//!
//! The engine keeps its own histograms and counters, and a scrape is a look at them: a registry
//! that wants to own the numbers would have to copy them first.

use std::fmt::{Display, Write as _};

/// Metrics written one after the other, all with the same labels.
pub(crate) struct Text {
    out: String,
    labels: String,
}

impl Text {
    /// An empty text whose metrics carry `labels`.
    pub(crate) fn new(labels: &[(&str, &str)]) -> Self {
        let labels: Vec<_> = labels.iter().map(|(name, value)| label(name, value)).collect();
        Self { out: String::with_capacity(16 << 10), labels: labels.join(",") }
    }

    pub(crate) fn finish(self) -> String {
        self.out
    }

    /// A number that goes up and down.
    pub(crate) fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.head(name, "gauge", help);
        self.line(name, "", value);
    }

    /// A number that only goes up.
    pub(crate) fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        self.head(name, "counter", help);
        self.line(name, "", value);
    }

    /// A counter or gauge that there is once for each value of a label.
    pub(crate) fn by<V: Display>(
        &mut self,
        (name, kind): (&str, &str),
        help: &str,
        by: &str,
        values: impl IntoIterator<Item = (String, V)>,
    ) {
        self.head(name, kind, help);
        for (value, count) in values {
            self.line(name, &label(by, &value), count);
        }
    }

    /// A gauge of 1 whose labels say something.
    pub(crate) fn info(&mut self, name: &str, help: &str, labels: &[(&str, &str)]) {
        let labels: Vec<_> = labels.iter().map(|(name, value)| label(name, value)).collect();
        self.head(name, "gauge", help);
        self.line(name, &labels.join(","), 1);
    }

    /// A histogram: each bucket's upper end and its own count, and count and sum of all.
    pub(crate) fn histogram(
        &mut self,
        name: &str,
        help: &str,
        buckets: impl Iterator<Item = (f64, u64)>,
        (count, sum): (u64, f64),
    ) {
        self.head(name, "histogram", help);
        let bucket = format!("{name}_bucket");
        let mut below = 0;
        for (end, here) in buckets {
            below += here;
            self.line(&bucket, &label("le", &end.to_string()), below);
        }
        self.line(&bucket, &label("le", "+Inf"), count);
        self.line(&format!("{name}_sum"), "", sum);
        self.line(&format!("{name}_count"), "", count);
    }

    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.out, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn line(&mut self, name: &str, labels: &str, value: impl Display) {
        let comma = if self.labels.is_empty() || labels.is_empty() { "" } else { "," };
        let _ = writeln!(self.out, "{name}{{{}{comma}{labels}}} {value}", self.labels);
    }
}

fn label(name: &str, value: &str) -> String {
    let value = value.replace('\\', r"\\").replace('"', r#"\""#).replace('\n', r"\n");
    format!("{name}=\"{value}\"")
}

#[cfg(test)]
mod tests {
    use super::Text;

    #[test]
    fn metrics_are_written_as_prometheus_reads_them() {
        let mut text = Text::new(&[("model_name", "a\"b"), ("engine", "0")]);
        text.gauge("x", "How many.", 3);
        text.by(("y_total", "counter"), "By code.", "code", [("200".to_owned(), 7)]);
        text.histogram("z", "Long.", [(0.5, 1), (1.0, 2)].into_iter(), (4, 9.5));
        let expected = r#"# HELP x How many.
# TYPE x gauge
x{model_name="a\"b",engine="0"} 3
# HELP y_total By code.
# TYPE y_total counter
y_total{model_name="a\"b",engine="0",code="200"} 7
# HELP z Long.
# TYPE z histogram
z_bucket{model_name="a\"b",engine="0",le="0.5"} 1
z_bucket{model_name="a\"b",engine="0",le="1"} 3
z_bucket{model_name="a\"b",engine="0",le="+Inf"} 4
z_sum{model_name="a\"b",engine="0"} 9.5
z_count{model_name="a\"b",engine="0"} 4
"#;
        assert_eq!(text.finish(), expected);
    }
}
